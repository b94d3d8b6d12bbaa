package view

import (
	"maps"
	"slices"
	"time"
)

// Show makes a batch that is on the disk visible. with is called under the same lock: its changes
// become visible together with the batch.
func (v *View) Show(b *Batch, with func()) {
	type delivery struct {
		c        change
		watchers []*watcher
	}
	var deliveries []delivery
	v.mu.Lock()
	v.version, v.lastInterest = b.version, b.interest
	for _, resource := range b.touched {
		t := v.table(resource)
		for k, h := range b.objects[resource] {
			v.countUses(t.objects[k], h)
			t.set(k, h)
		}
		for _, c := range b.changes[resource] {
			t.remember(c, v.config.Limits)
			deliveries = append(deliveries, delivery{c, t.watchersOf(c.key)})
		}
	}
	for id, i := range b.interests {
		v.showInterest(id, i)
	}
	maps.Copy(v.gone, b.gone)
	if b.retained != nil {
		v.retained = b.retained
	}
	if b.link != nil {
		v.link, v.linked = b.link.link, b.link.up
	}
	with()
	v.mu.Unlock()
	for _, d := range deliveries {
		for _, w := range d.watchers {
			w.deliver(d.c)
		}
	}
}

// showInterest takes over a staged interest, nil for one that is dropped. Called with the
// lock held.
func (v *View) showInterest(id uint64, staged *Interest) {
	have := v.interests[id]
	switch {
	case staged == nil:
		if have != nil {
			delete(v.interests, id)
			have.wakeAll()
			v.config.InterestsChanged()
		}
	case have == nil:
		v.interests[id] = staged
		v.tablesFor(staged)
		v.config.InterestsChanged()
	default: // uses and waits have changed since: only the staged fields are taken over
		have.synced, have.refused, have.pinned = staged.synced, staged.refused, staged.pinned
		have.wakeAll()
	}
}

// Idle lists the interests that no client has watched or read for a while, of which passed is new.
// Time without a link does not count: a disconnected node keeps its objects.
func (v *View) Idle(passed time.Duration) (idle []uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.linked {
		return nil
	}
	for _, i := range v.interests {
		if i.deps || i.pinned || i.watchers > 0 {
			i.idle = 0
			continue
		}
		if i.idle += passed; i.idle > v.config.Limits.InterestIdle {
			idle = append(idle, i.id)
		}
	}
	slices.Sort(idle)
	return idle
}
