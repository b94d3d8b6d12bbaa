package meta

import (
	"context"
	"errors"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/edge/internal/object"
	"github.com/skerry-io/skerry/edge/internal/store"
)

// dropIdle drops what nobody has watched or read for a while. Time without a link does not count: what an island holds it keeps.
func (m *Manager) dropIdle(ctx context.Context, passed time.Duration) {
	var idle []uint64
	m.mu.Lock()
	if m.linked {
		for _, i := range m.interests {
			if i.deps || i.pinned || i.watchers > 0 {
				i.idle = 0
				continue
			}
			if i.idle += passed; i.idle > m.config.Limits.InterestIdle {
				idle = append(idle, i.id)
			}
		}
	}
	m.mu.Unlock()
	if len(idle) == 0 {
		return
	}
	slices.Sort(idle)
	if err := m.do(ctx, func(b *batch) error { m.drop(b, idle); return nil }); err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Sets that nobody uses could not be dropped; they are tried again")
	}
}

// drop stages the end of interests, and of the objects of resources of which none is left. What else no interest matches the cloud takes back.
func (m *Manager) drop(b *batch, ids []uint64) {
	m.mu.RLock() // uses go on beside the core
	defer m.mu.RUnlock()
	touched := map[schema.GroupVersionResource]bool{}
	for _, id := range ids {
		i := m.interests[id]
		if i == nil || i.watchers > 0 || i.idle <= m.config.Limits.InterestIdle {
			continue // used again meanwhile
		}
		b.interests[id] = nil
		b.save(func(tx *store.Tx) error { return tx.DeleteInterest(id) })
		touched[i.resource] = true
	}
	for _, i := range m.interests {
		if staged, ok := b.interests[i.id]; !ok || staged != nil {
			delete(touched, i.resource)
		}
	}
	for r := range touched {
		if object.Travels(r) || m.tables[r] == nil {
			continue
		}
		for _, k := range m.tables[r].keys() {
			b.forgetHeld(object.Ref{Resource: r, Namespace: k.namespace, Name: k.name}, m.tables[r].objects[k])
		}
	}
}

// upkeep does what time asks for: it drops interests that nobody uses and writes the ring down. An idle device has nothing to write.
func (m *Manager) upkeep(ctx context.Context) error {
	const period = time.Minute
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			// The ring's last events: ctx has ended, the store has not.
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer cancel()
			if err := m.ring.flush(last, m.config.Store); err != nil && !errors.Is(err, store.ErrClosed) {
				klog.FromContext(ctx).Error(err, "The newest events were not kept")
			}
			return nil
		case <-tick.C:
			if err := m.ring.flush(ctx, m.config.Store); err != nil {
				klog.FromContext(ctx).Error(err, "Events were not kept; they are tried again")
			}
			m.dropIdle(ctx, period)
		}
	}
}
