package metamanager

import (
	"context"
	"strconv"

	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/outbox"
	"github.com/skerry-io/skerry/edge/internal/core/object"
)

// send passes the pending messages to the hub, one after another, until ctx ends.
func (m *Manager) send(ctx context.Context, p port) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.sender.Wake():
		}
		for {
			msg, ok := m.nextMessage(ctx)
			if !ok {
				break
			}
			if err := p.Send(ctx, m.config.Hub, msg); err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).V(2).Info("Failed to pass a message to the hub, sending it again with the next link", "topic", msg.Key(), "err", err)
			}
			m.at(PointSent)
		}
	}
}

// nextMessage builds the next message.
func (m *Manager) nextMessage(ctx context.Context) (message.Message, bool) {
	if !m.Linked() {
		return message.Message{}, false
	}
	for {
		next, ok := m.sender.Take()
		switch {
		case !ok:
			return message.Message{}, false
		case next.Message != nil:
			return *next.Message, true
		case next.Interests:
			interests, epoch := m.view.Interests(m.outbox.Written)
			msg := topic.Interests.New(message.Resource{}, interests)
			msg.Header.Session = epoch // its digests are for this session, not for a later one
			return msg, true
		}
		msg, ok, err := next.Write.Message(m.config.Store, m.writtenOver(next.Write))
		if err != nil {
			klog.FromContext(ctx).Error(err, "Failed to decode a pending event, retrying with the next link", "entry", next.Write.Entry.ID)
		}
		if ok {
			return msg, true
		}
	}
}

// writtenOver returns the newest of kube-apiserver's versions of a write's object known to this
// edge, or "". The cloud applies the write only to that version, so that a write delayed in an
// earlier session's replica can't overwrite a later session's.
func (m *Manager) writtenOver(w *outbox.Outgoing) string {
	if !w.Entry.Laid() {
		return ""
	}
	newest := m.outbox.Newest(w.Ref) // before the view: entries that leave the outbox are in it by then
	if h := m.view.Lookup(w.Ref); h != nil {
		newest = max(newest, object.Number(h.Shown.CloudVersion))
		m.outbox.Sending(w.Entry.ID, h.Shown.CloudVersion)
	}
	if newest == 0 {
		return ""
	}
	return strconv.FormatUint(newest, 10)
}
