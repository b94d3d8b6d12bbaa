package kube

import (
	"context"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	// initialEvents is how long a fresh watch has to report whether the object exists, before the
	// object is read: a kube-apiserver without support for initial events never reports it.
	initialEvents = 10 * time.Millisecond
	// lateInitialEvents is the same for a kube-apiserver that has sent initial events of another
	// object. Where hundreds of watches are opened at once it is busy with these, and reads would
	// double its work.
	lateInitialEvents = time.Second
)

// objectStream is one watch of one object, opened as a member.
type objectStream struct {
	reader *objectReader
	says   *atomic.Bool // kube-apiserver marks the end of initial events
	s      *watchedObject
	node   types.NodeName

	// The initial state.
	object  *Object
	version uint64
	read    bool // its end came late: the object was read instead
	done    bool // the end has come; from a kube-apiserver that doesn't mark it, it never does
}

// run follows the object until the watch ends.
func (t *objectStream) run(ctx context.Context, m *member) error {
	events, err := t.reader.watch(ctx, t.s.ref, t.node)
	if err != nil {
		return err
	}
	defer events.Stop()
	t.s.opened(m)
	wait := initialEvents
	if t.says.Load() {
		wait = lateInitialEvents
	}
	patience := time.NewTimer(wait)
	defer patience.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-patience.C:
			if err := t.late(ctx); err != nil {
				return err
			}
		case e, ok := <-events.ResultChan():
			if !ok {
				return nil
			}
			if err := t.apply(ctx, e); err != nil {
				return err
			}
		}
	}
}

// late reads the object where the initial events have no end yet.
func (t *objectStream) late(ctx context.Context) error {
	if t.done {
		return nil
	}
	t.read = true
	if err := t.reader.refresh(ctx, t.s, t.node); err != nil {
		return err
	}
	if t.object != nil {
		t.s.observed(t.version, t.object)
	}
	return nil
}

// apply applies one event of the watch.
func (t *objectStream) apply(ctx context.Context, e watch.Event) error {
	switch e.Type {
	case watch.Error:
		return apierrors.FromObject(e.Object)
	case watch.Added, watch.Modified:
		o, err := t.reader.encode(t.s.ref, e.Object)
		if err != nil {
			return err
		}
		t.take(versionOf(e.Object), o)
	case watch.Deleted:
		t.take(versionOf(e.Object), nil)
	case watch.Bookmark:
		o, err := metaOf(e.Object)
		if err != nil {
			return err
		}
		if t.done || o.GetAnnotations()[metav1.InitialEventsAnnotationKey] != "true" {
			t.s.progressed(versionOf(e.Object))
			return nil
		}
		t.done = true
		t.says.Store(true)
		return t.begin(ctx, versionOf(e.Object))
	}
	return nil
}

// take keeps an object until the initial events end, and hands on later ones, or those that came
// late.
func (t *objectStream) take(version uint64, o *Object) {
	if !t.done {
		t.version, t.object = version, o
	}
	if t.done || t.read {
		t.s.observed(version, o)
	}
}

// begin applies the initial state, as of a version.
func (t *objectStream) begin(ctx context.Context, version uint64) error {
	if !t.s.initial(version, t.object) || t.read {
		return nil
	}
	return t.reader.refresh(ctx, t.s, t.node)
}
