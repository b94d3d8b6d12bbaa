package meta

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/edge/internal/meta/reply"
	"github.com/skerry-io/skerry/edge/internal/store"
)

// do has the core work out a change and waits until it is on the disk and shown. The function runs in the core; it either stages all that it wants
// and returns nil, or it stages nothing and returns an error. It may run again when the batch that it was part of failed.
func (m *Manager) do(ctx context.Context, do func(*batch) error) error {
	r := &proposal{do: do, done: make(chan error, 1)}
	m.mu.RLock()
	running := m.running
	m.mu.RUnlock()
	if !running {
		return reply.ErrStopped
	}
	select {
	case m.requests <- r:
	case <-ctx.Done():
		return fmt.Errorf("waiting for metamanager: %w", context.Cause(ctx))
	}
	select {
	case err := <-r.done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("waiting for metamanager: %w", context.Cause(ctx))
	}
}

// core decides every change, one batch after another.
func (m *Manager) core(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			m.refuse()
			return nil
		case r := <-m.requests:
			batch := []*proposal{r}
			for more := true; more && len(batch) < cap(m.requests); {
				select {
				case r := <-m.requests:
					batch = append(batch, r)
				default:
					more = false
				}
			}
			m.process(ctx, batch)
		}
	}
}

// refuse answers what waits after the end. Callers that come later wait for their own contexts; stop has told them already.
func (m *Manager) refuse() {
	m.mu.Lock()
	m.running = false
	m.mu.Unlock()
	for {
		select {
		case r := <-m.requests:
			r.done <- reply.ErrStopped
		default:
			return
		}
	}
}

func (m *Manager) process(ctx context.Context, requests []*proposal) {
	b := m.newBatch()
	taken := requests[:0:0]
	for _, r := range requests {
		if err := r.do(b); err != nil {
			r.done <- err
			continue
		}
		taken = append(taken, r)
	}
	m.at(PointStaged)
	if len(b.writes) > 0 {
		if err := m.config.Store.Update(ctx, b.write); err != nil {
			if len(taken) > 1 && !errors.Is(err, store.ErrDamaged) { // one that is too large for the room left must not take the small ones with it
				for _, r := range taken {
					m.process(ctx, []*proposal{r})
				}
				return
			}
			m.counters.failed.Add(1)
			klog.FromContext(ctx).Error(err, "A change could not be kept")
			for _, r := range taken {
				r.done <- err
			}
			return
		}
	}
	m.at(PointKept)
	m.show(b)
	for _, r := range taken {
		r.done <- nil
	}
	m.pump()
}

// show makes a batch that is on the disk visible.
func (m *Manager) show(b *batch) {
	type delivery struct {
		c        change
		watchers []*watcher
	}
	var deliveries []delivery
	m.mu.Lock()
	m.version = b.version
	for _, resource := range b.touched {
		t := m.table(resource)
		for k, h := range b.objects[resource] {
			m.countUses(t.objects[k], h)
			t.set(k, h)
		}
		for _, c := range b.changes[resource] {
			t.remember(c, m.config.Limits)
			deliveries = append(deliveries, delivery{c, t.watchersOf(c.key)})
		}
	}
	for id, i := range b.interests {
		m.showInterest(id, i)
	}
	if b.retained != nil {
		m.retained = b.retained
	}
	m.outbox.show(b)
	for _, do := range b.afters {
		do()
	}
	m.mu.Unlock()
	for _, d := range deliveries {
		for _, w := range d.watchers {
			w.deliver(d.c)
		}
	}
}

// pump hands to the sender what may go. Called by the core after each batch.
func (m *Manager) pump() {
	if !m.linked {
		return
	}
	m.mu.Lock() // Status looks at the outbox
	defer m.mu.Unlock()
	o, limits := m.outbox, m.config.Limits
	for len(o.inflight) < limits.Window {
		t, e := o.next(o.state)
		if e == nil {
			break
		}
		o.inflight[e.id] = false
		e.sent = true
		m.sender.putWrite(t, e)
	}
	for len(o.inflight) < limits.Window && o.inEvents < limits.EventWindow {
		t, e := o.next(o.event)
		if e == nil {
			break
		}
		o.inflight[e.id] = true
		o.inEvents++
		e.sent = true
		m.sender.putWrite(t, e)
	}
}

// show takes over what the batch staged.
func (o *outbox) show(b *batch) {
	o.last, o.lastInterest, o.events = b.numbered, b.interest, b.events
	for t, q := range b.queues {
		if old := o.queues[t]; old != nil {
			for _, e := range old.entries {
				delete(o.targets, e.id)
				o.readyOf(e).Drop(e.id)
			}
		}
		if len(q.entries) == 0 {
			delete(o.queues, t)
			continue
		}
		o.queues[t] = q
		for _, e := range q.entries {
			o.targets[e.id] = t
		}
		o.noteEvents(q)
		o.offer(q)
	}
	if len(o.eventOrder) > 64 && len(o.eventOrder) > 2*o.events.entries {
		o.eventOrder = slices.DeleteFunc(o.eventOrder, func(id uint64) bool { _, ok := o.targets[id]; return !ok })
	}
}

// showInterest takes over a staged interest, nil for one that is dropped. Called with the lock held.
func (m *Manager) showInterest(id uint64, staged *interest) {
	have := m.interests[id]
	switch {
	case staged == nil:
		if have != nil {
			delete(m.interests, id)
			have.wakeAll()
			m.sender.wantInterests()
		}
	case have == nil:
		m.interests[id] = staged
		m.tablesFor(staged)
		m.sender.wantInterests()
	default: // uses and waits have gone on meanwhile: only what the core decides is taken over
		have.synced, have.refused, have.pinned = staged.synced, staged.refused, staged.pinned
		have.wakeAll()
	}
}
