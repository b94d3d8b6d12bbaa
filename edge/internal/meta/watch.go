package meta

import (
	"context"
	"fmt"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/skerry-io/skerry/edge/internal/meta/reply"
	"github.com/skerry-io/skerry/edge/internal/object"
)

// Watch opens a watch, waiting until what it selects is held. It ends with ctx, with Stop, with the Manager, or with an Error event: 410 for
// a watcher that is too slow. A version that is too old, or none of ours, is a 410 at once.
func (m *Manager) Watch(ctx context.Context, s object.Selection, options WatchOptions) (Watch, error) {
	w := &watcher{selection: s, bound: m.config.Limits.WatchQueue, ch: make(chan Event, 4), done: make(chan struct{})}
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
		w.from, w.forget = m.version, sync.OnceFunc(func() { m.unwatch(w, i) })
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

// unwatch ends what opening a watch has begun.
func (m *Manager) unwatch(w *watcher, i *interest) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if t := m.tables[w.selection.Resource]; t != nil {
		t.unwatch(w)
	}
	if i != nil {
		i.watchers--
	}
}
