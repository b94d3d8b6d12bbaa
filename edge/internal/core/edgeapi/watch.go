package edgeapi

import (
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
	"github.com/skerry-io/skerry/edge/internal/core/object"
)

const (
	// watchTimeout bounds a watch that names no bound; the handler takes up to twice of it, as
	// kube-apiserver does with --min-request-timeout (1800 s).
	watchTimeout = 30 * time.Minute
	// watchAhead is how many decoded events wait for the writer of a stream. The bound for slow
	// readers is the Backend's.
	watchAhead = 8
	// bookmarkInterval is about kube-apiserver's own. A quiet watch resumes from its last bookmark,
	// even when the history no longer reaches back to its last event.
	bookmarkInterval = time.Minute
)

// watcher decodes a Backend's watch for the handler that streams it.
type watcher struct {
	source    metamanager.Watch
	version   func() uint64 // newest of the store
	kind      schema.GroupVersionKind
	bookmarks bool
	adapt     func(runtime.Object) error // changes an object for the watching client
	result    chan watch.Event
	done      chan struct{}
	stop      sync.Once

	settled uint64 // owned by run: the newest version of one bookmarkInterval ago
}

func newWatcher(source metamanager.Watch, version func() uint64, kind schema.GroupVersionKind, bookmarks bool, adapt func(runtime.Object) error) *watcher {
	w := &watcher{
		source: source, version: version, kind: kind, bookmarks: bookmarks, adapt: adapt,
		result: make(chan watch.Event, watchAhead), done: make(chan struct{}), settled: version(),
	}
	go w.run() // ends with Stop, which the handler always calls
	return w
}

// ResultChan implements watch.Interface.
func (w *watcher) ResultChan() <-chan watch.Event { return w.result }

// Stop implements watch.Interface.
func (w *watcher) Stop() {
	w.stop.Do(func() {
		close(w.done)
		w.source.Stop()
	})
}

func (w *watcher) run() {
	defer close(w.result)
	var tick <-chan time.Time
	if w.bookmarks {
		ticker := time.NewTicker(bookmarkInterval)
		defer ticker.Stop()
		tick = ticker.C
	}
	var sent uint64 // the last version that the client has
	for {
		var e metamanager.Event
		var ok bool
		select {
		case <-w.done:
			return
		case e, ok = <-w.source.Events():
			if !ok {
				return
			}
		case <-tick:
			// The version that was the newest an interval ago is in the channel by now, if it
			// concerns this watch at all; the newest one now might not be.
			v := w.settled
			w.settled = w.version()
			select {
			case e, ok = <-w.source.Events():
				if !ok {
					return
				}
			default:
				if v <= sent {
					continue
				}
				e = metamanager.Event{Type: watch.Bookmark, Version: v}
			}
		}
		sent = max(sent, e.Version)
		if e.Type == watch.Bookmark && !w.bookmarks {
			continue
		}
		out := w.convert(e)
		select {
		case w.result <- out:
		case <-w.done:
			return
		}
		if out.Type == watch.Error {
			return
		}
	}
}

// convert makes an event of the API.
func (w *watcher) convert(e metamanager.Event) watch.Event {
	switch {
	case e.Type == watch.Error && e.Status != nil:
		return watch.Event{Type: watch.Error, Object: e.Status}
	case e.Type == watch.Bookmark:
		o, err := bookmark(w.kind, e.Version, e.InitialEnd)
		if err != nil {
			return errorEvent(err)
		}
		return watch.Event{Type: watch.Bookmark, Object: o}
	}
	o, err := object.Decode(e.Object)
	if err == nil {
		err = w.adapt(o)
	}
	if err != nil {
		return errorEvent(err)
	}
	return watch.Event{Type: e.Type, Object: o}
}

func errorEvent(err error) watch.Event {
	var status apierrors.APIStatus
	if !errors.As(statusOf(err), &status) {
		status = apierrors.NewInternalError(err)
	}
	s := status.Status()
	return watch.Event{Type: watch.Error, Object: &s}
}

// bookmark is an object with only a version: the client has seen everything up to it (KEP-956). The
// annotation ends the first set (KEP-3157).
func bookmark(kind schema.GroupVersionKind, version uint64, initialEnd bool) (runtime.Object, error) {
	o := newObject(kind)
	m, err := apimeta.Accessor(o)
	if err != nil {
		return nil, fmt.Errorf("making a bookmark: %w", err)
	}
	m.SetResourceVersion(strconv.FormatUint(version, 10))
	if initialEnd {
		m.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	}
	return o, nil
}
