package kube

import (
	"context"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"
)

const (
	// initialEvents is how long a fresh watch is given to say whether the object exists, before the
	// object is read: a kube-apiserver that knows no initial events never says so.
	initialEvents = 10 * time.Millisecond
	// lateInitialEvents is that of a kube-apiserver that has said so of another object.
	// Where hundreds of watches are opened at once it is busy with these, and reads would
	// double its work.
	lateInitialEvents = time.Second
	// steady is how long a watch must have lived for the next one to be opened without
	// more back-off.
	steady = 10 * time.Second
)

// open opens the watch of an object as a node. It begins with the object as it is, or with the news
// that there is none.
func (w *ObjectWatches) open(ctx context.Context, ref Ref, node types.NodeName) (watch.Interface, error) {
	select {
	case w.opening <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-w.opening }()
	timeout := int64(1800 + rand.IntN(1800))
	options := &metav1.ListOptions{
		FieldSelector: byName(ref), Watch: true, AllowWatchBookmarks: true, ResourceVersion: "0", TimeoutSeconds: &timeout,
	}
	if !w.plain.Load() {
		options.SendInitialEvents, options.ResourceVersionMatch = new(true), metav1.ResourceVersionMatchNotOlderThan
	}
	events, err := openWatch(ctx, func(ctx context.Context) (watch.Interface, error) {
		return w.request(ref, node).VersionedParams(options, scheme.ParameterCodec).Watch(ctx)
	})
	if apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) {
		w.plain.Store(true)
	}
	w.client.revisions.Failed(err)
	return events, err
}

// stream follows the object as m until the watch ends.
func (w *ObjectWatches) stream(ctx context.Context, s *watchedObject, m *member) error {
	events, err := w.open(ctx, s.ref, m.node)
	if err != nil {
		return err
	}
	defer events.Stop()
	s.mu.Lock()
	s.floor = 0
	if !m.left {
		s.grant(m)
	}
	s.mu.Unlock()
	first := initialState{}
	wait := initialEvents
	if w.says.Load() {
		wait = lateInitialEvents
	}
	patience := time.NewTimer(wait)
	defer patience.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-patience.C:
			if !first.done {
				first.read = true
				if err := w.read(ctx, s, m.node); err != nil {
					return err
				}
				if err := w.put(s, first.object); err != nil {
					return err
				}
			}
		case e, ok := <-events.ResultChan():
			if !ok {
				return nil
			}
			if err := w.apply(ctx, s, m, &first, e); err != nil {
				return err
			}
		}
	}
}

// initialState is what a fresh watch has said so far.
type initialState struct {
	object runtime.Object
	read   bool // the end of the initial events came late: the object was read meanwhile
	done   bool // the end has come; from a kube-apiserver that doesn't know them it never does
}

// apply acts on one event of the watch.
func (w *ObjectWatches) apply(ctx context.Context, s *watchedObject, m *member, first *initialState, e watch.Event) error {
	switch e.Type {
	case watch.Error:
		return apierrors.FromObject(e.Object)
	case watch.Added, watch.Modified:
		if !first.done {
			first.object = e.Object
			if !first.read {
				return nil
			}
		}
		return w.put(s, e.Object)
	case watch.Deleted:
		if !first.done {
			first.object = nil
			if !first.read {
				return nil
			}
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if version := versionOf(e.Object); version > s.floor {
			s.asOf = version
			s.set(nil)
		}
	case watch.Bookmark:
		o, err := metaOf(e.Object)
		if err != nil {
			return err
		}
		if !first.done && o.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true" {
			first.done = true
			w.says.Store(true)
			return w.begin(ctx, s, m, first, versionOf(e.Object))
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.asOf = max(s.asOf, versionOf(e.Object))
	}
	return nil
}

// begin takes the state that a fresh watch began with, as of a version. Behind it is a cache that
// may lag; what it can't know, or knows older than we do, is read.
func (w *ObjectWatches) begin(ctx context.Context, s *watchedObject, m *member, first *initialState, version uint64) error {
	s.mu.Lock()
	absent, older := !s.known && first.object == nil, s.known && version < s.asOf
	s.mu.Unlock()
	switch {
	case older && first.read:
		return nil
	case older || absent:
		return w.read(ctx, s, m.node)
	}
	var encoded *Object
	if first.object != nil {
		var err error
		if encoded, err = w.catalog.encoder(s.ref.Resource).encode(first.object); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asOf = version
	s.set(encoded)
	return nil
}

// put takes an object that the watch has brought, unless something newer was read.
func (w *ObjectWatches) put(s *watchedObject, o runtime.Object) error {
	if o == nil {
		return nil
	}
	version := versionOf(o)
	encoded, err := w.catalog.encoder(s.ref.Resource).encode(o)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if version > s.floor {
		s.asOf = max(s.asOf, version)
		s.set(encoded)
	}
	return nil
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
			w.authoriseOthers(ctx, s)
		}
		s.mu.Unlock()
		if m == nil {
			sleep(ctx, wait, s.wake)
			continue
		}
		began := time.Now()
		err := w.stream(stream, s, m)
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
			log.V(2).Info("Watching an object failed", "node", m.node, "err", err)
		}
		base := min(50*time.Millisecond<<min(failures, 8), 10*time.Second)
		sleep(ctx, base/2+rand.N(base/2), nil)
	}
}

// authoriseOthers has those asked about whom the watch says nothing about: also the first member,
// when another was picked. The object's lock is held.
func (w *ObjectWatches) authoriseOthers(ctx context.Context, s *watchedObject) {
	for m := range s.members {
		if m != s.opener && m.access == checking && !m.asking {
			m.asking = true
			w.wg.Go(func() { w.authorise(ctx, s, m) })
		}
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
		if !s.refuse(m, err, true) && !m.asking { // another node may get the watch meanwhile, so m is asked about
			m.asking = true
			w.wg.Go(func() { w.authorise(ctx, s, m) })
		}
		return true
	}
	return false
}
