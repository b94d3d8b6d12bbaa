package metamanager

import (
	"context"
	"errors"
	"time"

	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/store"
)

// takeIn passes received messages to the core until ctx ends.
func (m *Manager) takeIn(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.putOff.Due():
			m.sendAgain(ctx)
			continue
		case <-m.inbox.wake:
		}
		m.inbox.gather(ctx)
		for delay := 250 * time.Millisecond; !m.work(ctx); delay = min(2*delay, 5*time.Second) {
			m.pause(ctx, delay)
		}
	}
}

// pause waits before a delivery that found no space is retried. Other work continues: otherwise a
// full disk would block the window of writes, and no pod status would reach the cloud although
// there is a link.
func (m *Manager) pause(ctx context.Context, delay time.Duration) {
	timer := time.NewTimer(delay)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			return
		case <-m.putOff.Due():
			m.sendAgain(ctx)
		case <-m.inbox.wake:
			m.inbox.gather(ctx)
			m.deliverResults(ctx)
		}
	}
}

// gather waits for more results of events, as long as no other message is queued.
func (in *inbox) gather(ctx context.Context) {
	if !in.patient() {
		return
	}
	timer := time.NewTimer(gatherFor)
	defer timer.Stop()
	for in.patient() {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			return
		case <-in.wake:
		}
	}
}

// work passes the whole queue to the core in one change; if the disk is full, part after part. It
// returns false if messages were left.
func (m *Manager) work(ctx context.Context) bool {
	d := m.inbox.waiting()
	if len(d.states)+len(d.results)+len(d.inventories) == 0 {
		return true
	}
	m.at(PointReceived)
	err := m.deliver(ctx, d)
	if err == nil || ctx.Err() != nil {
		return true
	}
	if len(d.states)+len(d.results) > 1 && !errors.Is(err, store.ErrDamaged) {
		m.deliverResults(ctx)
		m.deliverStates(ctx)
	}
	return false
}

// deliverResults passes the results to the core without the states. Each removes an outbox entry,
// and must not wait for a state that finds no disk space. If they don't fit together either, each
// is tried alone, up to the first that fails.
func (m *Manager) deliverResults(ctx context.Context) {
	d := m.inbox.waiting()
	d = d.only(0, len(d.results))
	if len(d.results) == 0 || m.deliver(ctx, d) == nil || len(d.results) == 1 {
		return
	}
	for range d.results {
		if m.deliver(ctx, m.inbox.waiting().only(0, 1)) != nil {
			m.inbox.turn()
			return
		}
	}
}

// deliverStates hands the states to the core one by one, up to the first that finds no room: those
// behind it build on it.
func (m *Manager) deliverStates(ctx context.Context) {
	for {
		d := m.inbox.waiting().only(1, 0)
		if len(d.states) == 0 || m.deliver(ctx, d) != nil {
			return
		}
	}
}

// deliver passes one delivery to the core in one change, takes it out of the inbox and answers the
// cloud.
func (m *Manager) deliver(ctx context.Context, d delivery) error {
	in := m.inbox
	log := klog.FromContext(ctx)
	var now digestMismatches
	err := m.do(ctx, func(b *batch) error {
		in.mu.Lock()
		now = d.before.clone()
		stale := in.session != d.session // messages of an ended session must not change the state that the new session has reported
		in.mu.Unlock()
		for _, s := range d.states {
			if !stale {
				m.applyState(b, s.state, now, log)
			}
		}
		for _, r := range d.results {
			m.applyResult(b, r, log)
		}
		if len(d.results) > 0 && !d.part {
			if err := m.reportDropped(b); err != nil {
				log.Error(err, "Failed to report the number of dropped events")
			}
		}
		b.After(func() { // in the core, so that a newer session's messages can't interleave
			for _, r := range d.results {
				m.outbox.Finish(r.Id)
			}
		})
		return nil
	})
	if err != nil {
		return err
	}
	m.at(PointSettled)
	in.mu.Lock()
	in.results = in.results[len(d.results):]
	if in.session != d.session {
		in.mu.Unlock()
		return nil
	}
	in.states = in.states[len(d.states):]
	in.digestMismatches = now
	in.inventories = in.inventories[len(d.inventories):]
	if n := len(d.states); n > 0 {
		for _, s := range d.states {
			if s.state.Sequence != in.sequence+1 {
				log.Error(nil, "Received states out of order", "have", in.sequence, "got", s.state.Sequence)
			}
			in.sequence = s.state.Sequence
		}
		ack := d.states[n-1].message.Answer(&topicpb.StateAck{Sequence: in.sequence})
		ack.Header.ParentID = 0 // its sequence identifies the acknowledged message, and each byte of it counts
		m.sender.PutAck(ack)
	}
	in.mu.Unlock()
	for resource := range now.reported {
		if !d.before.reported[resource] {
			msg := topic.Inventory.New(message.Resource{}, m.view.Mismatch(resource))
			msg.Header.Session = d.states[len(d.states)-1].message.Header.Session
			m.sender.PutInventory(msg)
		}
	}
	for _, i := range d.inventories {
		m.sender.PutInventory(i.message.Answer(m.view.Inventory(i.request)))
	}
	return nil
}

// sendAgain queues the writes again that were above a quota.
func (m *Manager) sendAgain(ctx context.Context) {
	ids := m.putOff.Take()
	err := m.do(ctx, func(b *batch) error {
		b.After(func() {
			for _, id := range ids {
				m.outbox.Finish(id)
			}
		})
		return nil
	})
	if err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).V(2).Info("Deferring writes above a quota to the next link", "err", err)
	}
}
