package kube

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

const (
	// reviewers bounds the reviews in flight, opening the watches that are being opened. Those
	// above the bounds wait.
	reviewers = 64
	opening   = 64
	// steady is how long a watch must have lived for the next one to be opened without
	// more back-off.
	steady = 10 * time.Second
)

// ObjectWatches watch single objects, each with one watch for all the nodes that need it, opened as
// one of them: cloudcore itself has no right to read a Secret or a ConfigMap. Every other node that
// shares the watch is reviewed on its own. A watch begins with the whole state of its object, so
// one that was opened again after a break needs no history, and a cluster that was restored from a
// backup is noticed.
//
// Of its parts objectReader sends the requests, objectStream turns one watch into states of a
// watchedObject, and that has the members and the state last sent to each.
type ObjectWatches struct {
	reader *objectReader
	access objectAccess
	says   atomic.Bool // a watch has marked the end of its initial events

	mu      sync.Mutex
	ctx     context.Context // of Run; nil while it doesn't run
	wg      sync.WaitGroup  // of all but the reviews
	objects map[Ref]*watchedObject
}

// ObjectWatch is a node's part in the watch of an object.
type ObjectWatch struct {
	Cancel func()
	// CatchUp has changed called with a state that is no older than version (a resourceVersion),
	// or, in a cluster whose versions went back, than the call. It costs a consistent read where
	// the watch is behind, and is tried until it succeeds, it is called anew or Cancel is called.
	CatchUp func(version uint64)
}

// NewObjectWatches returns ObjectWatches. They start no watch before Run.
func NewObjectWatches(client *Client, access *Access) (*ObjectWatches, error) {
	r, err := client.rest(corev1.SchemeGroupVersion)
	if err != nil {
		return nil, err
	}
	reader := &objectReader{client: client, catalog: newCatalog(), rest: r, opening: make(chan struct{}, opening)}
	w := &ObjectWatches{
		reader: reader, access: objectAccess{reader: reader, access: access, review: make(chan struct{}, reviewers)}, objects: map[Ref]*watchedObject{},
	}
	client.revisions.OnRestart(w.restart)
	return w, nil
}

// Serves reports whether a resource is watched object by object: those that cloudcore has no right
// to watch as a whole.
func (w *ObjectWatches) Serves(ref Ref) bool {
	return ref.Resource == Secrets || ref.Resource == ConfigMaps
}

// Watch calls changed with the known state of an object, now or soon, and at each change, until
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
	if ctx := w.ctx; ctx != nil && ok {
		w.access.begin(ctx, s, m)
	} else if ctx != nil {
		w.wg.Go(func() { w.follow(ctx, s) })
	}
	s.mu.Unlock()
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

// Run watches the requested objects until ctx ends, and asks again from time to time whether each
// node may still have them.
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
			w.ctx = nil // no more starts; Run may be called again
			w.mu.Unlock()
			w.wg.Wait()
			w.access.wg.Wait()
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
			over, reached := m.left || m.asks != ask, s.reached(version)
			s.mu.Unlock()
			if over || ctx.Err() != nil {
				return
			}
			if reached || w.reader.refresh(ctx, s, m.node) == nil {
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

// recheck repeats the reviews of older decisions.
func (w *ObjectWatches) recheck(ctx context.Context) {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ctx == nil {
		return
	}
	for _, s := range w.objects {
		s.mu.Lock()
		for m := range s.members {
			age := now.Sub(m.checked)
			due := m.access == granted && age >= recheckGranted || m.access == refused && age >= recheckRefused
			if due {
				w.access.begin(ctx, s, m)
			}
		}
		s.mu.Unlock()
	}
}

// follow keeps an object watched, as one node or another, until it has no members.
func (w *ObjectWatches) follow(ctx context.Context, s *watchedObject) {
	log := klog.FromContext(ctx).WithValues("resource", s.ref.Resource.Resource, "object", s.ref.Key)
	failures := 0
	for ctx.Err() == nil {
		s.mu.Lock()
		if s.ended {
			s.mu.Unlock()
			return
		}
		m, wait := s.pick()
		var stream context.Context
		if m != nil {
			s.opener = m
			stream, s.cancel = context.WithCancel(ctx)
			w.access.beginOthers(ctx, s)
		}
		s.mu.Unlock()
		if m == nil {
			sleep(ctx, wait, s.wake)
			continue
		}
		began := time.Now()
		err := (&objectStream{reader: w.reader, says: &w.says, s: s, node: m.node}).run(stream, m)
		if time.Since(began) >= steady {
			failures = 0
			s.mu.Lock()
			m.thrown = 0
			s.mu.Unlock()
		}
		if w.ended(ctx, s, m, err) {
			continue // with another node, or not at all
		}
		failures++
		if err != nil {
			log.V(2).Info("Failed to watch an object, retrying", "node", m.node, "err", err)
		}
		base := min(50*time.Millisecond<<min(failures, 8), 10*time.Second)
		sleep(ctx, base/2+rand.N(base/2), nil)
	}
}

// ended notes that the watch that was opened as m has ended. It reports whether that is m's matter:
// the next watch is opened without waiting.
func (w *ObjectWatches) ended(ctx context.Context, s *watchedObject, m *member, err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cancel()
	s.opener, s.cancel = nil, nil
	switch {
	case m.left || ctx.Err() != nil:
		return true
	case apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err):
		m.hold()
		if m.access == granted { // the right was taken away, or the graph is being built again
			m.access = checking
		}
		if !s.refuse(m, err, true) {
			w.access.begin(ctx, s, m) // another node may get the watch in the meantime
		}
		return true
	}
	return false
}
