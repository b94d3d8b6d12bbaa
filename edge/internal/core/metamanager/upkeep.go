package metamanager

import (
	"context"
	"errors"
	"time"

	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/edge/internal/core/store"
)

// dropIdle drops interests that no client has watched or read for a while.
func (m *Manager) dropIdle(ctx context.Context, passed time.Duration) {
	idle := m.view.Idle(passed)
	if len(idle) == 0 {
		return
	}
	if err := m.do(ctx, func(b *batch) error {
		for _, ref := range b.view.Drop(idle) {
			b.forget(ref)
		}
		return nil
	}); err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Failed to drop unused sets of objects, retrying")
	}
}

// upkeep drops interests that no client uses, and writes events down: an idle device does neither.
func (m *Manager) upkeep(ctx context.Context) error {
	const period = time.Minute
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			// The last events: ctx has ended, the store has not.
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer cancel()
			if err := m.events.Flush(last, m.config.Store); err != nil && !errors.Is(err, store.ErrClosed) {
				klog.FromContext(ctx).Error(err, "Failed to store the newest events, which are lost")
			}
			return nil
		case <-tick.C:
			if err := m.events.Flush(ctx, m.config.Store); err != nil {
				klog.FromContext(ctx).Error(err, "Failed to store events, retrying")
			}
			m.dropIdle(ctx, period)
		}
	}
}
