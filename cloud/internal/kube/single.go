package kube

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

const (
	// graceForbidden is how long a refusal is not believed: right after a pod is bound, or an apiserver has started, the Node authorizer's graph
	// lags behind.
	graceForbidden = 30 * time.Second
	// firstEvent is how long a fresh watch is given to tell that the object exists, before it is asked for.
	firstEvent     = 10 * time.Millisecond
	recheckGranted = 5 * time.Minute
	recheckRefused = time.Minute
	reviewers      = 64
)

// Single is what is known of one object, for one node.
type Single struct {
	Known  bool    // Object, or its absence, is what kube-apiserver has
	Object *Object // nil: there is none
	Err    error   // the node may not have it
}

// Singles watch single objects, each with one watch for all the nodes that need it, opened as one of them: cloudcore itself has no right to read
// a Secret or a ConfigMap. Every other node that shares the watch is reviewed on its own.
type Singles struct {
	client  *Client
	access  *Access
	catalog *catalog
	rest    *rest.RESTClient
	review  chan struct{} // bounds the reviews in flight; who finds no room waits

	mu      sync.Mutex
	ctx     context.Context // of Run; nil while it doesn't run
	wg      sync.WaitGroup
	objects map[Ref]*single
}

// NewSingles returns Singles. They watch nothing before Run.
func NewSingles(client *Client, access *Access) (*Singles, error) {
	r, err := client.rest(corev1.SchemeGroupVersion)
	if err != nil {
		return nil, err
	}
	return &Singles{
		client: client, access: access, catalog: newCatalog(), rest: r, review: make(chan struct{}, reviewers), objects: map[Ref]*single{},
	}, nil
}

// Serves reports whether a resource is served by Singles: those that cloudcore has no right to watch as a whole.
func (w *Singles) Serves(ref Ref) bool { return ref.Resource == Secrets || ref.Resource == ConfigMaps }

type single struct {
	ref  Ref
	wake chan struct{} // one slot: the members have changed

	mu      sync.Mutex
	members map[*member]struct{}
	opener  *member
	cancel  context.CancelFunc // ends the stream of opener
	known   bool
	object  *Object
	version string // to go on from
	ended   bool   // nobody wants it any more
}

type access int

const (
	checking access = iota
	granted
	refused
)

type member struct {
	node    types.NodeName
	changed func(Single)

	// Under the lock of its single.
	access  access
	since   time.Time // of checking
	checked time.Time
	tries   int
	next    time.Time
	busy    bool // a review is in flight
	asking  bool // authorise is at it
	err     error
	left    bool
}

// Watch calls changed with what is known of an object, now or soon, and at each change, until cancel is called: one call after another, not
// after cancel has returned. changed must be quick and must not call Singles.
func (w *Singles) Watch(ref Ref, node types.NodeName, changed func(Single)) (cancel func()) {
	m := &member{node: node, changed: changed, since: time.Now()}
	w.mu.Lock()
	s, ok := w.objects[ref]
	if !ok {
		s = &single{ref: ref, wake: make(chan struct{}, 1), members: map[*member]struct{}{}}
		w.objects[ref] = s
	}
	s.mu.Lock() // while w.mu is held, so that the single can't end in between
	s.members[m] = struct{}{}
	s.mu.Unlock()
	running := w.ctx != nil
	if !ok && running {
		ctx := w.ctx
		w.wg.Go(func() { w.follow(ctx, s) })
	}
	if ok && running {
		ctx := w.ctx
		m.asking = true
		w.wg.Go(func() { w.authorise(ctx, s, m) })
	}
	w.mu.Unlock()
	s.signal()
	return sync.OnceFunc(func() { w.leave(s, m) })
}

func (w *Singles) leave(s *single, m *member) {
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

func (s *single) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Run watches what is wanted until ctx ends, and asks again from time to time whether each node may still have it.
func (w *Singles) Run(ctx context.Context) error {
	w.mu.Lock()
	if w.ctx != nil {
		w.mu.Unlock()
		return fmt.Errorf("singles run already")
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
func (w *Singles) Len() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.objects)
}

func (w *Singles) recheck(ctx context.Context) {
	type due struct {
		s *single
		m *member
	}
	var all []due
	now := time.Now()
	w.mu.Lock()
	for _, s := range w.objects {
		s.mu.Lock()
		for m := range s.members {
			age := now.Sub(m.checked)
			if m.access == granted && age >= recheckGranted || m.access == refused && age >= recheckRefused {
				all = append(all, due{s, m})
			}
		}
		s.mu.Unlock()
	}
	w.mu.Unlock()
	for _, d := range all {
		w.reviewOnce(ctx, d.s, d.m)
	}
}

// authorise asks about a member that shares a watch, until the answer is final.
func (w *Singles) authorise(ctx context.Context, s *single, m *member) {
	defer func() {
		s.mu.Lock()
		m.asking = false
		s.mu.Unlock()
	}()
	for {
		if w.reviewOnce(ctx, s, m) {
			return
		}
		s.mu.Lock()
		wait := time.Until(m.next)
		s.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// reviewOnce reports whether the matter is settled for now.
func (w *Singles) reviewOnce(ctx context.Context, s *single, m *member) bool {
	s.mu.Lock()
	if m.left || m.busy {
		s.mu.Unlock()
		return true
	}
	if s.opener == m && m.access == checking { // the watch itself will tell
		m.next = time.Now().Add(50 * time.Millisecond)
		s.mu.Unlock()
		return false
	}
	first := m.access == checking
	asked := time.Now()
	m.busy = true
	s.mu.Unlock()
	select {
	case w.review <- struct{}{}:
	case <-ctx.Done():
		return true
	}
	at := Attributes{Verb: "watch", Resource: s.ref.Resource, Namespace: s.ref.Namespace, Name: s.ref.Name}
	ask := w.access.Review
	if first {
		ask = w.access.Allowed
	}
	d, err := ask(ctx, m.node, at)
	<-w.review

	s.mu.Lock()
	defer s.mu.Unlock()
	m.busy = false
	if m.left {
		return true
	}
	switch {
	case err != nil: // no answer: what held goes on to hold
		m.delay()
		return m.access != checking
	case d.Allowed:
		s.grant(m)
		return true
	case m.access == granted && !m.checked.Before(asked):
		// Meanwhile the watch was opened as this node: kube-apiserver has let it in after it was asked here, so this answer is of a graph that lagged.
		return true
	default:
		return s.refuse(m, apierrors.NewForbidden(s.ref.Resource.GroupResource(), s.ref.Name, fmt.Errorf("node %s: %s", m.node, d.Reason)))
	}
}

// The lock is held for these.

func (m *member) delay() {
	base := min(20*time.Millisecond<<min(m.tries, 10), 5*time.Second)
	m.tries++
	m.next = time.Now().Add(base/2 + rand.N(base/2))
}

func (s *single) grant(m *member) {
	m.checked, m.tries = time.Now(), 0
	if m.access == granted {
		return
	}
	m.access, m.err = granted, nil
	s.signal()
	if s.known {
		m.changed(Single{Known: true, Object: s.object})
	}
}

// refuse reports whether the refusal is believed.
func (s *single) refuse(m *member, err error) bool {
	now := time.Now()
	if m.access == checking && now.Sub(m.since) < graceForbidden {
		m.delay()
		return false
	}
	m.checked = now
	m.delay()
	if m.access != refused {
		m.access, m.err = refused, err
		m.changed(Single{Err: err})
	}
	if s.opener == m && s.cancel != nil {
		s.cancel()
	}
	return true
}

func (s *single) set(o *Object) {
	if s.known && s.object == nil && o == nil {
		return
	}
	if s.known && s.object != nil && o != nil && s.object.Sum == o.Sum {
		return
	}
	s.known, s.object = true, o
	for m := range s.members {
		if m.access == granted {
			m.changed(Single{Known: true, Object: o})
		}
	}
}

// pick chooses whom the watch is opened as: whoever is granted already, else somebody who can be tried now. wait is when to look again.
func (s *single) pick() (m *member, wait time.Duration) {
	now := time.Now()
	wait = time.Hour
	for c := range s.members {
		switch {
		case c.access == granted && (m == nil || m.access != granted):
			m = c
		case c.access == checking && !c.next.After(now):
			if m == nil {
				m = c
			}
		case c.access == checking:
			wait = min(wait, c.next.Sub(now))
		}
	}
	return m, wait
}

func (w *Singles) follow(ctx context.Context, s *single) {
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
		}
		s.mu.Unlock()
		if m == nil {
			sleep(ctx, wait, s.wake)
			continue
		}
		err := w.stream(stream, s, m)
		s.mu.Lock()
		s.cancel()
		s.opener, s.cancel = nil, nil
		switch {
		case err == nil || m.left || ctx.Err() != nil:
			failures = 0
			s.mu.Unlock()
		case apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err):
			if m.access == granted { // the right was taken away, or the graph is being built again
				m.access, m.since, m.tries = checking, time.Now(), 0
			}
			if !s.refuse(m, err) && !m.asking { // somebody else may get the watch meanwhile, and nobody would ask for m again
				m.asking = true
				w.wg.Go(func() { w.authorise(ctx, s, m) })
			}
			s.mu.Unlock()
		default:
			s.mu.Unlock()
			failures++
			log.V(2).Info("Watching an object failed", "node", m.node, "err", err)
			base := min(100*time.Millisecond<<min(failures, 8), 10*time.Second)
			sleep(ctx, base/2+rand.N(base/2), nil)
		}
	}
}

func sleep(ctx context.Context, d time.Duration, wake <-chan struct{}) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-wake:
	case <-t.C:
	}
}
