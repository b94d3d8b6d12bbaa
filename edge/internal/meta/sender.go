package meta

import (
	"context"
	"strconv"
	"sync"

	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/store"
	"github.com/skerry-io/skerry/edge/internal/store/storepb"
)

// sender says to the hub what goes up. What waits here is bounded: one acknowledgement, one set of interests, as many inventories as the cloud has
// asked for, and the window of writes. What is lost with a link is sent again on the next.
type sender struct {
	m    *Manager
	wake chan struct{}

	mu          sync.Mutex // guards what follows
	ack         *message.Message
	interests   bool
	inventories []message.Message
	writes      []outgoing
}

type outgoing struct {
	target target
	entry  *entry
}

func (s *sender) put(do func()) {
	s.mu.Lock()
	do()
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *sender) putAck(m message.Message) { s.put(func() { s.ack = &m }) }
func (s *sender) wantInterests()           { s.put(func() { s.interests = true }) }
func (s *sender) putInventory(m message.Message) {
	s.put(func() { s.inventories = append(s.inventories, m) })
}

func (s *sender) putWrite(t target, e *entry) {
	s.put(func() { s.writes = append(s.writes, outgoing{t, e}) })
}

// reset forgets what was for a link that has ended.
func (s *sender) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ack, s.interests, s.inventories, s.writes = nil, false, nil, nil
}

func (s *sender) run(ctx context.Context, p port) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
		}
		for {
			m, ok := s.next(ctx)
			if !ok {
				break
			}
			if err := p.Send(ctx, s.m.config.Hub, m); err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).V(2).Info("A message did not reach the hub; it goes again with the next link", "topic", m.Key(), "err", err)
			}
			s.m.at(PointSent)
		}
	}
}

// next takes what goes first: acknowledgements keep the way down open, interests say what it is for.
func (s *sender) next(ctx context.Context) (message.Message, bool) {
	if !s.m.Linked() {
		return message.Message{}, false
	}
	for {
		make := s.take()
		if make == nil {
			return message.Message{}, false
		}
		if m, ok := make(ctx); ok {
			return m, true
		}
	}
}

// take takes one out of what waits and returns what makes its message, without our lock: the Manager's lock comes before it, and the disk is slow.
func (s *sender) take() func(context.Context) (message.Message, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ready := func(m message.Message) func(context.Context) (message.Message, bool) {
		return func(context.Context) (message.Message, bool) { return m, true }
	}
	switch {
	case s.ack != nil:
		m := *s.ack
		s.ack = nil
		return ready(m)
	case s.interests:
		s.interests = false
		return func(context.Context) (message.Message, bool) {
			s.m.mu.RLock()
			defer s.m.mu.RUnlock()
			m := topic.Interests.New(message.Resource{}, s.m.interestsMessage())
			m.Header.Session = s.m.link.Epoch // its digests are for this session, not for a later one
			return m, true
		}
	case len(s.inventories) > 0:
		m := s.inventories[0]
		s.inventories = s.inventories[1:]
		return ready(m)
	case len(s.writes) > 0:
		w := s.writes[0]
		s.writes = s.writes[1:]
		return func(ctx context.Context) (message.Message, bool) { return s.m.writeMessage(ctx, w) }
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
	newest := ""
	known := func(version string) {
		if _, err := strconv.ParseUint(version, 10, 64); err == nil && (newest == "" || older(newest, version)) {
			newest = version
		}
	}
	if t := m.tables[w.target.resource]; t != nil {
		if h := t.objects[w.target.key]; h != nil {
			known(h.shown.CloudVersion)
		}
	}
	if q := m.outbox.queues[w.target]; q != nil {
		for _, e := range q.entries {
			known(e.acceptedVersion)
		}
	}
	return newest
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
