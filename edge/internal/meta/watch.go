package meta

import (
	"context"
	"fmt"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/skerry-io/skerry/edge/internal/meta/reply"
	"github.com/skerry-io/skerry/edge/internal/object"
)

// WatchOptions says from where to watch.
type WatchOptions struct {
	// From is the version after which changes are wanted. 0: any; the watch begins with all that is held, each as Added.
	From uint64
	// InitialEvents begins with all that is held, whatever From says, and says with a bookmark (Event.InitialEnd) where that ends.
	InitialEvents bool
	// Held: see ListOptions.
	Held   bool
	Caller Caller
}

// Event is one thing that a watch sees.
type Event struct {
	Type watch.EventType
	// Object is as it is after the change; of Deleted: as it was, with the version of its deletion. Its bytes are shared: don't change them.
	Object     object.Object
	Version    uint64         // of the change; of a Bookmark: of what has been seen
	InitialEnd bool           // the Bookmark that ends the initial events
	Status     *metav1.Status // of Error; nothing comes after it
}

// Watch is a watch that was opened. The channel is closed when it has ended.
type Watch interface {
	Events() <-chan Event
	Stop()
}

// Watch opens a watch, waiting until what it selects is held. It ends with ctx, with Stop, with the Manager, or with an Error event: 410 for
// a watcher that is too slow. A version that is too old, or none of ours, is a 410 at once.
func (m *Manager) Watch(ctx context.Context, s object.Selection, options WatchOptions) (Watch, error) {
	w := &watcher{m: m, selection: s, bound: m.config.Limits.WatchQueue, ch: make(chan Event, 4), done: make(chan struct{})}
	var initial []*held
	var missed []change
	open := func(i *interest) error {
		t := m.tables[s.Resource]
		if t == nil {
			return reply.From(reply.ErrStopped)
		}
		if options.From > 0 && !options.InitialEvents {
			if options.From < t.floor || options.From > m.version {
				return apierrors.NewResourceExpired(fmt.Sprintf("too old or unknown resource version: %d (%d to %d are known here)",
					options.From, t.floor, m.version))
			}
			from, _ := slices.BinarySearchFunc(t.history, options.From+1, func(c change, v uint64) int {
				switch {
				case c.version < v:
					return -1
				case c.version > v:
					return 1
				}
				return 0
			})
			missed = slices.Clone(t.history[from:])
		} else {
			initial = m.snapshot(s)
		}
		w.from, w.interest = m.version, i
		if i != nil {
			i.watchers++
		}
		t.watch(w)
		return nil
	}
	var err error
	if options.Held {
		err = m.takeHeld(s, open)
	} else {
		err = m.hold(ctx, s, options.Caller, open)
	}
	if err != nil {
		return nil, err
	}
	if err := w.begin(initial, missed, options); err != nil {
		w.Stop()
		return nil, selectorError(err)
	}
	context.AfterFunc(ctx, w.Stop)
	return w, nil
}

func (t *table) watch(w *watcher) {
	name := w.selection.Name()
	if name == "" {
		t.wide[w] = struct{}{}
		return
	}
	if t.named[name] == nil {
		t.named[name] = map[*watcher]struct{}{}
	}
	t.named[name][w] = struct{}{}
}

func (t *table) unwatch(w *watcher) {
	delete(t.wide, w)
	if name := w.selection.Name(); name != "" {
		delete(t.named[name], w)
		if len(t.named[name]) == 0 {
			delete(t.named, name)
		}
	}
}

// watchersOf lists who may want to hear of an object.
func (t *table) watchersOf(k key) []*watcher {
	if len(t.wide) == 0 && len(t.named[k.name]) == 0 {
		return nil
	}
	ws := make([]*watcher, 0, len(t.wide)+len(t.named[k.name]))
	for w := range t.wide {
		ws = append(ws, w)
	}
	for w := range t.named[k.name] {
		ws = append(ws, w)
	}
	return ws
}

// watcher is one watch. It has a goroutine only while its reader is behind.
type watcher struct {
	// Set before anybody else knows it, never changed.
	m         *Manager
	selection object.Selection
	interest  *interest
	from      uint64 // changes up to this one came with the beginning
	bound     int
	ch        chan Event
	done      chan struct{} // closed by Stop

	mu      sync.Mutex // guards what follows
	begun   bool
	early   []change // that came before the beginning was worked out
	queue   []Event
	slack   int // how much of the queue is the beginning's and does not count against the bound
	pumping bool
	ended   bool // nothing more is taken
	stopped bool
}

func (w *watcher) Events() <-chan Event { return w.ch }

// begin puts the beginning into the queue, and behind it what came meanwhile.
func (w *watcher) begin(initial []*held, missed []change, options WatchOptions) error {
	var events []Event
	slices.SortFunc(initial, func(a, b *held) int {
		return key{a.shown.Namespace, a.shown.Name}.compare(key{b.shown.Namespace, b.shown.Name})
	})
	for _, h := range initial {
		ok, err := w.selection.Matches(h.shown)
		if err != nil {
			return err
		}
		if ok {
			events = append(events, Event{Type: watch.Added, Object: h.shown, Version: h.shown.Version})
		}
	}
	for _, c := range missed {
		if e, ok := w.eventOf(c); ok {
			events = append(events, e)
		}
	}
	if options.InitialEvents {
		events = append(events, Event{Type: watch.Bookmark, Version: w.from, InitialEnd: true})
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

// deliver is called by the core for each change, in order.
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

// eventOf is what this watch sees of a change: an object that stops matching is deleted for it, one that begins to is added.
func (w *watcher) eventOf(c change) (Event, bool) {
	before, after := w.matches(c.before), w.matches(c.after)
	switch {
	case after && before:
		return Event{Type: watch.Modified, Object: c.after.shown, Version: c.version}, true
	case after:
		return Event{Type: watch.Added, Object: c.after.shown, Version: c.version}, true
	case before:
		gone := c.before.shown
		gone.Version = c.version
		return Event{Type: watch.Deleted, Object: gone, Version: c.version}, true
	}
	return Event{}, false
}

func (w *watcher) matches(h *held) bool {
	if h == nil {
		return false
	}
	ok, err := w.selection.Matches(h.shown)
	return ok && err == nil
}

// push queues events. Called with w.mu held.
func (w *watcher) push(events ...Event) {
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
			w.queue = []Event{{Type: watch.Error, Status: &expired}}
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
		w.push(Event{Type: watch.Error, Status: &st})
		w.ended = true
		if !w.pumping {
			close(w.ch)
		}
	}
	w.mu.Unlock()
	w.forget()
}

// Stop ends the watch. What it has not delivered is dropped.
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

func (w *watcher) forget() {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	if t := w.m.tables[w.selection.Resource]; t != nil {
		t.unwatch(w)
	}
	if w.interest != nil {
		w.interest.watchers--
		w.interest = nil
	}
}
