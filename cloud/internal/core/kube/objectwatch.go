package kube

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// reviewers bounds the reviews in flight, opening the watches that are being opened. What
	// finds no room waits.
	reviewers = 64
	opening   = 64
)

// ObjectWatch is a node's part in the watch of an object.
type ObjectWatch struct {
	Cancel func()
	// CatchUp has changed called with a state that is no older than version (a resourceVersion),
	// or, in a cluster whose versions went back, than the call. It costs a consistent read where
	// the watch is behind, and is tried until it succeeds, it is called anew or Cancel is called.
	CatchUp func(version uint64)
}

// NewObjectWatches returns ObjectWatches. They watch nothing before Run.
func NewObjectWatches(client *Client, access *Access) (*ObjectWatches, error) {
	r, err := client.rest(corev1.SchemeGroupVersion)
	if err != nil {
		return nil, err
	}
	w := &ObjectWatches{
		client: client, access: access, catalog: newCatalog(), rest: r,
		review: make(chan struct{}, reviewers), opening: make(chan struct{}, opening), objects: map[Ref]*watchedObject{},
	}
	client.revisions.OnRestart(w.restart)
	return w, nil
}

// Serves reports whether a resource is watched object by object: those that cloudcore has no right
// to watch as a whole.
func (w *ObjectWatches) Serves(ref Ref) bool {
	return ref.Resource == Secrets || ref.Resource == ConfigMaps
}

// Watch calls changed with what is known of an object, now or soon, and at each change, until
// Cancel is called: one call after another, not after Cancel has returned. changed must be quick
// and must not call ObjectWatches.
func (w *ObjectWatches) Watch(ref Ref, node types.NodeName, changed func(ObjectState)) ObjectWatch {
	m := &member{node: node, changed: changed}
	w.mu.Lock()
	s, ok := w.objects[ref]
	if !ok {
		s = &watchedObject{ref: ref, wake: make(chan struct{}, 1), members: map[*member]struct{}{}}
		w.objects[ref] = s
	}
	s.mu.Lock() // while w.mu is held, so that the object can't end in between
	s.members[m] = struct{}{}
	s.mu.Unlock()
	if w.ctx != nil {
		ctx := w.ctx
		if ok {
			m.asking = true
			w.wg.Go(func() { w.authorise(ctx, s, m) })
		} else {
			w.wg.Go(func() { w.follow(ctx, s) })
		}
	}
	w.mu.Unlock()
	s.signal()
	return ObjectWatch{
		Cancel:  sync.OnceFunc(func() { w.leave(s, m) }),
		CatchUp: func(version uint64) { w.catchUp(s, m, version) },
	}
}

func (w *ObjectWatches) leave(s *watchedObject, m *member) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	m.left = true
	delete(s.members, m)
	if len(s.members) == 0 {
		s.ended = true
		delete(w.objects, s.ref)
	}
	if s.opener == m && s.cancel != nil {
		s.cancel()
	}
	s.signal()
}

// Run watches what is wanted until ctx ends, and asks again from time to time whether each node may
// still have it.
func (w *ObjectWatches) Run(ctx context.Context) error {
	w.mu.Lock()
	if w.ctx != nil {
		w.mu.Unlock()
		return fmt.Errorf("object watches run already")
	}
	w.ctx = ctx
	for _, s := range w.objects {
		w.wg.Go(func() { w.follow(ctx, s) })
	}
	w.mu.Unlock()
	tick := time.NewTicker(recheckRefused / 2)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			w.mu.Lock()
			w.ctx = nil // nothing starts any more; Run may be called again
			w.mu.Unlock()
			w.wg.Wait()
			return nil
		case <-tick.C:
			w.recheck(ctx)
		}
	}
}

// Len is how many objects are watched.
func (w *ObjectWatches) Len() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.objects)
}

// restart opens every watch again.
func (w *ObjectWatches) restart() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.objects {
		s.mu.Lock()
		if s.cancel != nil {
			s.cancel()
		}
		s.mu.Unlock()
	}
}

// catchUp reads the object where the watch hasn't reached version, and notifies the member.
func (w *ObjectWatches) catchUp(s *watchedObject, m *member, version uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ctx == nil {
		return
	}
	ctx := w.ctx
	s.mu.Lock()
	m.asks++
	ask := m.asks
	m.caughtUp = false
	s.mu.Unlock()
	w.wg.Go(func() {
		for tries := 0; ; tries++ {
			s.mu.Lock()
			over, reached := m.left || m.asks != ask, s.known && s.asOf >= version
			s.mu.Unlock()
			if over || ctx.Err() != nil {
				return
			}
			if reached || w.read(ctx, s, m.node) == nil {
				break
			}
			base := min(100*time.Millisecond<<min(tries, 7), 10*time.Second)
			sleep(ctx, base/2+rand.N(base/2), nil)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if m.left || m.asks != ask {
			return
		}
		m.caughtUp = true
		if m.access == granted {
			s.tell(m)
		}
	})
}
