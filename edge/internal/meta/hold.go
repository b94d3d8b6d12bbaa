package meta

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/skerry-io/skerry/edge/internal/meta/reply"
	"github.com/skerry-io/skerry/edge/internal/object"
)

// want makes an interest of a selection that no interest covers yet.
func (m *Manager) want(ctx context.Context, s object.Selection, pinned bool) error {
	return m.do(ctx, func(b *batch) error {
		if have := m.covering(s); have != nil {
			if pinned && !have.pinned && !have.deps {
				i := b.stageInterest(have.id)
				i.pinned = true
				b.saveInterest(i)
			}
			return nil
		}
		for _, i := range b.interests { // one that the same batch makes
			if i != nil && i.covers(s) {
				return nil
			}
		}
		if len(m.interests)+len(b.interests) >= m.config.Limits.Interests {
			return reply.TooMany("this node holds as many sets of objects as it may")
		}
		b.interest++
		i := &interest{
			id: b.interest, resource: s.Resource, namespace: s.Namespace, labels: s.LabelString(), fields: s.FieldString(), pinned: pinned,
			wake: make(chan struct{}),
		}
		b.interests[i.id] = i
		b.saveInterest(i)
		return nil
	})
}

// pins reports whether a set is to be kept even if nobody watches it: what the kubelet watches of the whole node it needs after a reboot without a
// link, also when it did not run for a while before.
func (m *Manager) pins(s object.Selection, caller Caller) bool {
	name := s.Name()
	return caller.Kubelet && (name == "" || name == m.config.NodeName)
}

// hold makes sure that the selection is wanted and waits until it can be answered. use, where it can, is called with the lock held: for writing, so
// that it may register what it takes from the view.
func (m *Manager) hold(ctx context.Context, s object.Selection, caller Caller, use func(*interest) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, m.config.Limits.SyncWait, errNotSynced)
	defer cancel()
	for {
		m.mu.Lock()
		if !m.running {
			m.mu.Unlock()
			return reply.From(reply.ErrStopped)
		}
		if m.answerable(s) {
			i := m.covering(s)
			if i != nil {
				i.idle = 0
			}
			err := use(i)
			m.mu.Unlock()
			return err
		}
		i := m.covering(s)
		if i != nil && i.refused != nil {
			refused := *i.refused
			i.idle = 0
			m.mu.Unlock()
			return &apierrors.StatusError{ErrStatus: refused}
		}
		var wake chan struct{}
		if i != nil {
			wake, i.idle = i.wake, 0
		}
		linked := m.linked
		m.mu.Unlock()
		if i == nil {
			if err := m.want(ctx, s, m.pins(s, caller)); err != nil {
				return m.notYet(s, linked, err)
			}
			continue
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return m.notYet(s, linked, context.Cause(ctx))
		}
	}
}

var errNotSynced = errors.New("the set has not arrived yet")

func (m *Manager) notYet(s object.Selection, linked bool, err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errNotSynced) {
		if !linked {
			return reply.Offline("this node has never held " + s.String())
		}
		return reply.Unavailable("this node does not hold "+s.String()+" yet", 1)
	}
	return reply.From(err)
}
