package view

import (
	"context"
	"time"

	"github.com/skerry-io/skerry/edge/internal/core/object"
)

// Config configures a View.
type Config struct {
	Node   string
	Limits Limits
	// Want adds an interest of a selection that is not covered yet, by a Batch, and returns when
	// that is on the disk and visible.
	Want func(ctx context.Context, selection object.Selection, pinned bool) error
	// InterestsChanged is called, with the lock held, when there are other interests than before.
	InterestsChanged func()
}

// Limits bound the memory usage.
type Limits struct {
	Interests      int           // sets that can be held. At the bound a new one is refused with 429
	InterestIdle   time.Duration // linked time after which a set without a watch is dropped
	SyncWait       time.Duration // how long a list or watch waits for its set; then 503
	HistoryChanges int           // changes of a resource that a watch can start from
	HistoryBytes   int           // of those
	WatchQueue     int           // events that wait for a slow watcher; then it gets 410
}
