package view

import (
	"context"
	"fmt"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/skerry-io/skerry/edge/internal/core/metamanager/reply"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/request"
	"github.com/skerry-io/skerry/edge/internal/core/object"
)

// Watch opens a watch, waiting until its selection is cached. It ends with ctx, with Stop, with the
// View, or with an Error event: 410 for a watcher that is too slow. A version that is too old or
// was not issued here is a 410 at once.
func (v *View) Watch(ctx context.Context, s object.Selection, options request.WatchOptions) (request.Watch, error) {
	w := &watcher{selection: s, kubelet: options.Caller.Kubelet, bound: v.config.Limits.WatchQueue, ch: make(chan request.Event, 4), done: make(chan struct{})}
	var initial []*Held
	var missed []change
	open := func(i *Interest) error {
		t := v.tables[s.Resource]
		if t == nil {
			return reply.From(reply.ErrStopped)
		}
		if options.From > 0 && !options.InitialEvents {
			if options.From < t.floor || options.From > v.version {
				return apierrors.NewResourceExpired(fmt.Sprintf("too old or unknown resource version: %d (%d to %d are known here)",
					options.From, t.floor, v.version))
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
			initial = v.snapshot(s)
		}
		w.from, w.forget = v.version, sync.OnceFunc(func() { v.unwatch(w, i) })
		if i != nil {
			i.watchers++
		}
		t.watch(w)
		return nil
	}
	var err error
	if options.Held {
		err = v.takeHeld(s, open)
	} else {
		err = v.hold(ctx, s, options.Caller, open)
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

// unwatch undoes the beginning of a watch.
func (v *View) unwatch(w *watcher, i *Interest) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if t := v.tables[w.selection.Resource]; t != nil {
		t.unwatch(w)
	}
	if i != nil {
		i.watchers--
	}
}
