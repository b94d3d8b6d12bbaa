package view

import (
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/skerry-io/skerry/edge/internal/core/metamanager/request"
	"github.com/skerry-io/skerry/edge/internal/core/object"
)

// watcher is one watch. It has a goroutine only while its reader is behind.
type watcher struct {
	// Set before the watcher is shared, never changed.
	selection object.Selection
	kubelet   bool   // does not see objects withheld from the kubelet
	forget    func() // removes it from the watchers
	from      uint64 // the initial objects include changes up to this one
	bound     int
	ch        chan request.Event
	done      chan struct{} // closed by Stop

	mu      sync.Mutex // guards the fields below
	begun   bool
	early   []change // changes before the initial objects were computed
	queue   []request.Event
	slack   int // how much of the queue is the beginning's and does not count against the bound
	pumping bool
	ended   bool // takes no more events
	stopped bool
}

func (w *watcher) Events() <-chan request.Event { return w.ch }

// begin queues the initial objects, followed by the changes since.
func (w *watcher) begin(initial []*Held, missed []change, options request.WatchOptions) error {
	var events []request.Event
	slices.SortFunc(initial, func(a, b *Held) int {
		return compareKeys(keyOf(a.Shown.Ref), keyOf(b.Shown.Ref))
	})
	for _, h := range initial {
		ok, err := w.selection.Matches(h.Shown)
		if err != nil {
			return err
		}
		if ok && h.shownTo(w.kubelet) {
			events = append(events, request.Event{Type: watch.Added, Object: h.Shown, Version: h.Shown.Version})
		}
	}
	for _, c := range missed {
		if e, ok := w.eventOf(c); ok {
			events = append(events, e)
		}
	}
	if options.InitialEvents {
		events = append(events, request.Event{Type: watch.Bookmark, Version: w.from, InitialEnd: true})
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.begun, w.slack = true, len(events)
	w.push(events...)
	early := w.early
	w.early = nil
	for _, c := range early {
		if e, ok := w.eventOf(c); ok {
			w.push(e)
		}
	}
	return nil
}

// deliver is called by the goroutine that shows, for each change, in order.
func (w *watcher) deliver(c change) {
	if c.version <= w.from {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return
	}
	if !w.begun {
		w.early = append(w.early, c)
		return
	}
	if e, ok := w.eventOf(c); ok {
		w.push(e)
	}
}

// eventOf returns the event of a change for this watch: an object that stops matching is deleted
// for it, one that begins to is added.
func (w *watcher) eventOf(c change) (request.Event, bool) {
	before, after := w.matches(c.before), w.matches(c.after)
	switch {
	case after && before:
		return request.Event{Type: watch.Modified, Object: c.after.Shown, Version: c.version}, true
	case after:
		return request.Event{Type: watch.Added, Object: c.after.Shown, Version: c.version}, true
	case before:
		gone := c.before.Shown
		gone.Version = c.version
		return request.Event{Type: watch.Deleted, Object: gone, Version: c.version}, true
	}
	return request.Event{}, false
}

func (w *watcher) matches(h *Held) bool {
	if h == nil || !h.shownTo(w.kubelet) {
		return false
	}
	ok, err := w.selection.Matches(h.Shown)
	return ok && err == nil
}

// push queues events. Called with w.mu held.
func (w *watcher) push(events ...request.Event) {
	for _, e := range events {
		if w.ended {
			return
		}
		if !w.pumping && len(w.queue) == 0 {
			select {
			case w.ch <- e:
				w.slack = max(0, w.slack-1)
				continue
			default:
			}
		}
		if len(w.queue) >= w.bound+w.slack {
			expired := apierrors.NewResourceExpired("the watch was too slow; list again").ErrStatus
			w.queue = []request.Event{{Type: watch.Error, Status: &expired}}
			w.ended = true
		} else {
			w.queue = append(w.queue, e)
		}
		if !w.pumping {
			w.pumping = true
			go w.pump()
		}
	}
}

// pump empties the queue and ends.
func (w *watcher) pump() {
	for {
		w.mu.Lock()
		if len(w.queue) == 0 || w.stopped {
			w.pumping = false
			if w.ended {
				close(w.ch)
			}
			w.mu.Unlock()
			return
		}
		e := w.queue[0]
		w.queue = w.queue[1:]
		w.slack = max(0, w.slack-1)
		if len(w.queue) == 0 {
			w.queue = nil
		}
		w.mu.Unlock()
		select {
		case w.ch <- e:
		case <-w.done:
		}
	}
}

// end ends the watch with an error.
func (w *watcher) end(err *apierrors.StatusError) {
	w.mu.Lock()
	if !w.ended {
		st := err.ErrStatus
		w.begun = true
		w.push(request.Event{Type: watch.Error, Status: &st})
		w.ended = true
		if !w.pumping {
			close(w.ch)
		}
	}
	w.mu.Unlock()
	w.forget()
}

// Stop ends the watch. Undelivered events are dropped.
func (w *watcher) Stop() {
	w.mu.Lock()
	first := !w.stopped
	w.stopped = true
	if first {
		close(w.done)
	}
	if !w.ended {
		w.ended = true
		if !w.pumping {
			close(w.ch)
		}
	}
	w.mu.Unlock()
	if first {
		w.forget()
	}
}
