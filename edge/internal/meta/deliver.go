package meta

import (
	"context"
	"time"

	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// takeIn hands over what has come, until ctx ends.
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
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(delay):
			}
		}
	}
}

// gather waits for more results of events, as long as nothing else waits.
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

// work hands all that waits to the core in one change. It returns false when that failed.
func (m *Manager) work(ctx context.Context) bool {
	in := m.inbox
	in.mu.Lock()
	session, states, results, inventories, before := in.session, in.states, in.results, in.inventories, in.digestMismatches
	in.pressing = false
	in.mu.Unlock()
	if len(states)+len(results)+len(inventories) == 0 {
		return true
	}
	log := klog.FromContext(ctx)
	m.at(PointReceived)
	taken := len(results)
	results = m.putOff.Sift(ctx, results)
	var now digestMismatches
	err := m.do(ctx, func(b *batch) error {
		in.mu.Lock()
		now = before.clone()
		stale := in.session != session // what an ended session sent must not change the state that the new one has reported
		in.mu.Unlock()
		for _, s := range states {
			if !stale {
				m.applyState(b, s.state, now, log)
			}
		}
		for _, r := range results {
			m.applyResult(b, r, log)
		}
		if len(results) > 0 {
			if err := m.reportDropped(b); err != nil {
				log.Error(err, "The number of dropped events could not be reported")
			}
		}
		b.After(func() { // in the core, so that nothing of a newer session comes between
			for _, r := range results {
				m.outbox.Finish(r.Id)
			}
		})
		return nil
	})
	if err != nil {
		return ctx.Err() != nil
	}
	m.at(PointSettled)
	in.mu.Lock()
	in.results = in.results[taken:]
	if in.session != session {
		in.mu.Unlock()
		return true
	}
	in.states = in.states[len(states):]
	in.digestMismatches = now
	in.inventories = in.inventories[len(inventories):]
	if n := len(states); n > 0 {
		for _, s := range states {
			if s.state.Sequence != in.sequence+1 {
				log.Error(nil, "States arrived out of order", "have", in.sequence, "got", s.state.Sequence)
			}
			in.sequence = s.state.Sequence
		}
		ack := states[n-1].message.Answer(&topicpb.StateAck{Sequence: in.sequence})
		ack.Header.ParentID = 0 // its sequence says what it acknowledges, and each byte of it counts
		m.sender.PutAck(ack)
	}
	in.mu.Unlock()
	for resource := range now.reported {
		if !before.reported[resource] {
			msg := topic.Inventory.New(message.Resource{}, m.view.Mismatch(resource))
			msg.Header.Session = states[len(states)-1].message.Header.Session
			m.sender.PutInventory(msg)
		}
	}
	for _, i := range inventories {
		m.sender.PutInventory(i.message.Answer(m.view.Inventory(i.request)))
	}
	return true
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
		klog.FromContext(ctx).V(2).Info("Writes above a quota wait for the next link", "err", err)
	}
}
