package outbox

import (
	"sync"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/edge/internal/core/store"
	"github.com/skerry-io/skerry/edge/internal/core/store/storepb"
)

// Sender queues the messages to send next. It is bounded: one acknowledgement, one set of
// interests, as many inventories as the cloud has asked for, and the window of writes. Messages
// lost with a link are sent again on the next. It may be used by many goroutines at once.
type Sender struct {
	wake chan struct{}

	mu          sync.Mutex // guards the fields below
	ack         *message.Message
	interests   bool
	inventories []message.Message
	writes      []Outgoing
}

// Outgoing is a write on its way.
type Outgoing struct {
	Ref   object.Ref
	Entry *Entry
}

// Next is the next item to send: a message, the current interests, or a write.
type Next struct {
	Message   *message.Message
	Interests bool
	Write     *Outgoing
}

// NewSender returns an empty Sender.
func NewSender() *Sender { return &Sender{wake: make(chan struct{}, 1)} }

func (s *Sender) put(do func()) {
	s.mu.Lock()
	do()
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// PutAck sends an acknowledgement, in the place of an earlier one.
func (s *Sender) PutAck(m message.Message) { s.put(func() { s.ack = &m }) }

// WantInterests queues the device's interests.
func (s *Sender) WantInterests() { s.put(func() { s.interests = true }) }

// PutInventory queues the inventory of a resource.
func (s *Sender) PutInventory(m message.Message) {
	s.put(func() { s.inventories = append(s.inventories, m) })
}

// PutWrite sends a write.
func (s *Sender) PutWrite(ref object.Ref, e *Entry) {
	s.put(func() { s.writes = append(s.writes, Outgoing{ref, e}) })
}

// Reset drops the messages for a link that has ended.
func (s *Sender) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ack, s.interests, s.inventories, s.writes = nil, false, nil, nil
}

// Wake has a value if an item was added since the last one was taken.
func (s *Sender) Wake() <-chan struct{} { return s.wake }

// Take returns the next message: acknowledgements keep deliveries flowing, interests define them.
// false: the queue is empty.
func (s *Sender) Take() (Next, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ack != nil:
		ack := s.ack
		s.ack = nil
		return Next{Message: ack}, true
	case s.interests:
		s.interests = false
		return Next{Interests: true}, true
	case len(s.inventories) > 0:
		first := s.inventories[0]
		s.inventories = s.inventories[1:]
		return Next{Message: &first}, true
	case len(s.writes) > 0:
		first := s.writes[0]
		s.writes = s.writes[1:]
		return Next{Write: &first}, true
	}
	return Next{}, false
}

// Message makes the message of a write; the body of an event is read from the store. over is
// kube-apiserver's version that the write requires. false: the event no longer exists.
func (w *Outgoing) Message(s *store.Store, over string) (msg message.Message, ok bool, err error) {
	e := w.Entry
	write := &topicpb.Write{
		Id: e.ID, Verb: e.Verb, Namespace: w.Ref.Namespace, Name: w.Ref.Name, Subresource: e.Subresource,
		Resource:  &topicpb.Resource{Group: w.Ref.Resource.Group, Version: w.Ref.Resource.Version, Resource: w.Ref.Resource.Resource},
		PatchType: string(e.PatchType), Body: e.Body, Uid: string(e.UID), UnixMillis: e.At, ResourceVersion: over,
	}
	if e.event() {
		err = s.View(func(tx *store.Tx) error {
			r, err := tx.Entry(e.ID)
			if r != nil {
				write.Body, write.Verb = r.Body, topicpb.Verb(r.Verb)
			}
			return err
		})
		if write.Body == nil { // its result, of the previous link, has arrived since
			return message.Message{}, false, err
		}
	}
	return topicOf(e.Class).New(message.Resource{Namespace: w.Ref.Namespace, Name: w.Ref.Name}, write), true, err
}

func topicOf(c storepb.Class) message.Topic[*topicpb.Write] {
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
