package meta

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/object"
	"github.com/skerry-io/skerry/edge/internal/store"
	"github.com/skerry-io/skerry/edge/internal/store/storepb"
)

// send says to the hub what waits, one after another, until ctx ends.
func (m *Manager) send(ctx context.Context, p port) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.sender.wake:
		}
		for {
			msg, ok := m.nextMessage(ctx)
			if !ok {
				break
			}
			if err := p.Send(ctx, m.config.Hub, msg); err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).V(2).Info("A message did not reach the hub; it goes again with the next link", "topic", msg.Key(), "err", err)
			}
			m.at(PointSent)
		}
	}
}

// nextMessage takes what goes first: acknowledgements keep the way down open, interests say what it is for.
func (m *Manager) nextMessage(ctx context.Context) (message.Message, bool) {
	if !m.Linked() {
		return message.Message{}, false
	}
	for {
		make := m.takeMessage()
		if make == nil {
			return message.Message{}, false
		}
		if msg, ok := make(ctx); ok {
			return msg, true
		}
	}
}

// takeMessage takes one out of what waits and returns what makes its message, without our lock: the Manager's lock comes before it, and the disk is slow.
func (m *Manager) takeMessage() func(context.Context) (message.Message, bool) {
	s := m.sender
	s.mu.Lock()
	defer s.mu.Unlock()
	ready := func(m message.Message) func(context.Context) (message.Message, bool) {
		return func(context.Context) (message.Message, bool) { return m, true }
	}
	switch {
	case s.ack != nil:
		ack := *s.ack
		s.ack = nil
		return ready(ack)
	case s.interests:
		s.interests = false
		return func(context.Context) (message.Message, bool) {
			m.mu.RLock()
			defer m.mu.RUnlock()
			msg := topic.Interests.New(message.Resource{}, m.interestsMessage())
			msg.Header.Session = m.link.Epoch // its digests are for this session, not for a later one
			return msg, true
		}
	case len(s.inventories) > 0:
		first := s.inventories[0]
		s.inventories = s.inventories[1:]
		return ready(first)
	case len(s.writes) > 0:
		w := s.writes[0]
		s.writes = s.writes[1:]
		return func(ctx context.Context) (message.Message, bool) { return m.writeMessage(ctx, w) }
	}
	return nil
}

// writeMessage makes the message of an entry; the body of an event comes from the store.
func (m *Manager) writeMessage(ctx context.Context, w outgoing) (message.Message, bool) {
	e := w.entry
	write := &topicpb.Write{
		Id: e.id, Verb: e.verb, Resource: wireResource(w.target.resource), Namespace: w.target.namespace, Name: w.target.name,
		Subresource: e.subresource, PatchType: string(e.patchType), Body: e.body, Uid: string(e.uid), UnixMillis: e.at,
		ResourceVersion: m.writtenOver(w),
	}
	if e.event() {
		err := m.config.Store.View(func(tx *store.Tx) error {
			r, err := tx.Entry(e.id)
			if r != nil {
				write.Body, write.Verb = r.Body, topicpb.Verb(r.Verb)
			}
			return err
		})
		if err != nil {
			klog.FromContext(ctx).Error(err, "An event that waits can't be read; it is tried again with the next link", "entry", e.id)
		}
		if write.Body == nil { // its result, from the link before, came meanwhile
			return message.Message{}, false
		}
	}
	return writeTopic(e.class).New(message.Resource{Namespace: w.target.namespace, Name: w.target.name}, write), true
}

// writtenOver is the newest of kube-apiserver's versions of a write's object that this edge knows, or "". The cloud makes the write on top of that version alone, so
// that one that was held up in an earlier session's replica can't land on top of what goes through a later session.
func (m *Manager) writtenOver(w outgoing) string {
	if !w.entry.laid() {
		return ""
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	var newest uint64
	if t := m.tables[w.target.resource]; t != nil {
		if h := t.objects[w.target.key]; h != nil {
			newest = object.Number(h.shown.CloudVersion)
		}
	}
	if q := m.outbox.queues[w.target]; q != nil {
		for _, e := range q.entries {
			newest = max(newest, object.Number(e.acceptedVersion))
		}
	}
	if newest == 0 {
		return ""
	}
	return strconv.FormatUint(newest, 10)
}

func writeTopic(c storepb.Class) message.Topic[*topicpb.Write] {
	switch c {
	case storepb.Class_POD_STATUS:
		return topic.PodStatusWrite
	case storepb.Class_NODE_STATUS:
		return topic.NodeStatusWrite
	case storepb.Class_POD:
		return topic.PodWrite
	case storepb.Class_REPORT:
		return topic.ReportWrite
	}
	return topic.EventWrite
}

// interestsMessage tells the cloud what this device wants and has. Called with the lock held for reading.
func (m *Manager) interestsMessage() *topicpb.Interests {
	msg := &topicpb.Interests{}
	for _, id := range slices.Sorted(maps.Keys(m.interests)) {
		msg.Interests = append(msg.Interests, m.interests[id].wire())
	}
	resources := slices.SortedFunc(maps.Keys(m.tables), func(a, b schema.GroupVersionResource) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Version, b.Version), cmp.Compare(a.Resource, b.Resource))
	})
	written := m.outbox.written()
	for _, r := range resources {
		if t := m.tables[r]; !t.local && t.digest.count > 0 {
			d := t.digest.wire(r)
			d.Newest, d.Written = t.newest(), written[r]
			msg.Digests = append(msg.Digests, d)
		}
	}
	return msg
}
