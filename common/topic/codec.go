package topic

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/skerry-io/skerry/beehive/message"
)

// ErrUnknown is returned for a topic that the table does not hold.
var ErrUnknown = errors.New("unknown topic")

// Class orders what waits to be sent on a link: a lower one goes first.
type Class uint8

const (
	// Urgent: heartbeats, and what opens and closes a session.
	Urgent Class = iota
	// Answer: requests that somebody waits for, their answers, and acknowledgements.
	Answer
	// Normal: state and writes.
	Normal
	// Bulk: what may wait for everything else, such as events.
	Bulk
	// Stream: the bytes of streams that people open, which may go on for hours: they give way to all of the above.
	Stream
	// Classes is how many there are.
	Classes = iota
)

func (c Class) String() string {
	names := [Classes]string{"urgent", "answer", "normal", "bulk", "stream"}
	if int(c) < len(names) {
		return names[c]
	}
	return fmt.Sprintf("Class(%d)", uint8(c))
}

// Entry is one line of the table.
type Entry struct {
	Key      message.Key
	Class    Class
	Delivery message.Delivery
	Payload  string // the protobuf name of the payload
	Opaque   bool   // the payload is encrypted: it does not compress

	decode func([]byte) (any, error)
}

// Table is every topic that crosses the link.
type Table struct{ entries map[message.Key]Entry }

func line[T any, PT interface {
	*T
	proto.Message
}](topic message.Topic[PT], class Class) Entry {
	return Entry{
		Key: topic.Key(), Class: class, Delivery: topic.Delivery,
		Payload: string(PT(new(T)).ProtoReflect().Descriptor().FullName()),
		decode: func(b []byte) (any, error) {
			p := PT(new(T))
			if err := proto.Unmarshal(b, p); err != nil {
				return nil, err
			}
			return p, nil
		},
	}
}

func opaque(e Entry) Entry {
	e.Opaque = true
	return e
}

// NewTable returns the table.
func NewTable() *Table {
	t := &Table{entries: map[message.Key]Entry{}}
	for _, e := range []Entry{
		line(Hello, Urgent), line(Welcome, Urgent),
		line(Heartbeat, Urgent), line(HeartbeatAnswer, Urgent),
		line(Interests, Normal), line(InventoryRequest, Normal), line(Inventory, Normal),
		line(State, Normal), line(StateAck, Answer),
		line(EventWrite, Bulk), line(EventResult, Answer),
		line(PodStatusWrite, Normal), line(PodStatusResult, Answer),
		line(NodeStatusWrite, Normal), line(NodeStatusResult, Answer),
		line(PodWrite, Normal), line(PodResult, Answer),
		line(ReportWrite, Normal), line(ReportResult, Answer),
		line(APIRequest, Answer), line(APIResponse, Answer),
		line(StreamOpen, Answer), line(StreamWindow, Answer), opaque(line(StreamData, Stream)), line(StreamClose, Stream),
	} {
		if _, ok := t.entries[e.Key]; ok {
			panic("topic: two lines for " + e.Key.String())
		}
		t.entries[e.Key] = e
	}
	return t
}

// Entries lists the table in the order of its keys.
func (t *Table) Entries() []Entry {
	all := make([]Entry, 0, len(t.entries))
	for _, e := range t.entries {
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b Entry) int { return strings.Compare(a.Key.String(), b.Key.String()) })
	return all
}

// Lookup finds the line of a topic.
func (t *Table) Lookup(key message.Key) (Entry, error) {
	e, ok := t.entries[key]
	if !ok {
		return Entry{}, fmt.Errorf("%s: %w", key, ErrUnknown)
	}
	return e, nil
}

// Encode turns the content of m into the payload of its topic.
func (t *Table) Encode(m message.Message) (Entry, []byte, error) {
	e, err := t.Lookup(m.Key())
	if err != nil {
		return Entry{}, nil, err
	}
	p, ok := m.Content.(proto.Message)
	if !ok || string(p.ProtoReflect().Descriptor().FullName()) != e.Payload {
		return Entry{}, nil, fmt.Errorf("%s: %w: %T, want %s", e.Key, message.ErrWrongContent, m.Content, e.Payload)
	}
	b, err := proto.Marshal(p)
	if err != nil {
		return Entry{}, nil, fmt.Errorf("encoding %s: %w", e.Key, err)
	}
	return e, b, nil
}

// Decode turns the payload of a topic back into content.
func (t *Table) Decode(key message.Key, payload []byte) (any, error) {
	e, err := t.Lookup(key)
	if err != nil {
		return nil, err
	}
	content, err := e.decode(payload)
	if err != nil {
		return nil, fmt.Errorf("decoding %s: %w", key, err)
	}
	return content, nil
}
