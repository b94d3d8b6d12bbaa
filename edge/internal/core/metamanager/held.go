package metamanager

import (
	"context"
	"iter"
	"time"

	"github.com/skerry-io/skerry/common/rerun"
	"github.com/skerry-io/skerry/edge/internal/core/object"
)

const (
	// unheld is how long to wait for the kubelet, or another client with an interest, to open its
	// own watch.
	unheld = 5 * time.Second
	// heldEnded is how long to wait after a watch has ended, so that one that ends at once is no
	// busy loop.
	heldEnded = time.Second
)

// Watcher opens watches; a *Manager.
type Watcher interface {
	Watch(ctx context.Context, s object.Selection, options WatchOptions) (Watch, error)
}

// HeldWatches returns watches of the cached objects of a selection without creating an interest,
// one after another until ctx ends or the caller breaks off: the next one when the events of the
// previous one have ended, and no watch while no object is cached. Each is stopped when its turn is
// over.
func HeldWatches(ctx context.Context, from Watcher, s object.Selection) iter.Seq[Watch] {
	return func(yield func(Watch) bool) {
		for ctx.Err() == nil {
			w, err := from.Watch(ctx, s, WatchOptions{Held: true})
			if err != nil {
				_ = rerun.Pause(ctx, unheld)
				continue
			}
			goOn := yield(w)
			w.Stop()
			if !goOn {
				return
			}
			_ = rerun.Pause(ctx, heldEnded)
		}
	}
}
