package metamanager

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/edge/internal/core/metamanager/reply"
	"github.com/skerry-io/skerry/edge/internal/core/store"
)

// do has the core work out a change and waits until it is on the disk and shown. The function runs
// in the core; it either stages all of its changes and returns nil, or stages no change and returns
// an error. It may run again when the batch that it was part of failed.
func (m *Manager) do(ctx context.Context, do func(*batch) error) error {
	r := &proposal{do: do, done: make(chan error, 1)}
	if !m.view.Running() {
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

// refuse fails the queued calls after shutdown. Later callers wait for their own contexts; the view
// has already refused them.
func (m *Manager) refuse() {
	m.view.Close()
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
	b := &batch{view: m.view.Stage(), outbox: m.outbox.Stage(), tokens: m.tokens, show: m.showing()}
	taken := requests[:0:0]
	for _, r := range requests {
		if err := r.do(b); err != nil {
			r.done <- err
			continue
		}
		taken = append(taken, r)
	}
	m.at(PointStaged)
	if b.toWrite() {
		if err := m.config.Store.Update(ctx, b.write); err != nil {
			if len(taken) > 1 && !errors.Is(err, store.ErrDamaged) { // one that is too large for the room left must not take the small ones with it
				for _, r := range taken {
					m.process(ctx, []*proposal{r})
				}
				return
			}
			m.counters.failed.Add(1)
			klog.FromContext(ctx).Error(err, "Failed to persist a change, refusing it: look at the disk (edgecore status)")
			for _, r := range taken {
				r.done <- err
			}
			return
		}
	}
	m.at(PointKept)
	m.view.Show(b.view, func() {
		m.outbox.Show(b.outbox)
		for _, do := range b.afters {
			do()
		}
	})
	for _, r := range taken {
		r.done <- nil
	}
	if m.Linked() {
		m.outbox.Send(m.sender.PutWrite)
	}
}
