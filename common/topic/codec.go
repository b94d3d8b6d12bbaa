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
	Key message.Key
	// Number stands for the key on the wire. It is a wire contract: never reuse one.
	Number   uint32
	Class    Class
	Delivery message.Delivery
	Payload  string // the protobuf name of the payload
	Opaque   bool   // the payload is encrypted: it does not compress

	decode func([]byte) (any, error)
}

// Table is every topic that crosses the link.
type Table struct {
	entries map[message.Key]Entry
	numbers map[uint32]message.Key
}

func line[T any, PT interface {
	*T
	proto.Message
}](number uint32, topic message.Topic[PT], class Class) Entry {
	return Entry{
		Key: topic.Key(), Number: number, Class: class, Delivery: topic.Delivery,
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
	t := &Table{entries: map[message.Key]Entry{}, numbers: map[uint32]message.Key{}}
	for _, e := range []Entry{
		line(1, Hello, Urgent), line(2, Welcome, Urgent),
		line(3, Heartbeat, Urgent), line(4, HeartbeatAnswer, Urgent),
		line(5, Interests, Normal), line(6, InventoryRequest, Normal), line(7, Inventory, Normal),
		line(8, State, Normal), line(9, StateAck, Answer),
		line(10, EventWrite, Bulk), line(11, EventResult, Answer),
		line(12, PodStatusWrite, Normal), line(13, PodStatusResult, Answer),
		line(14, NodeStatusWrite, Normal), line(15, NodeStatusResult, Answer),
		line(16, PodWrite, Normal), line(17, PodResult, Answer),
		line(18, ReportWrite, Normal), line(19, ReportResult, Answer),
		line(20, APIRequest, Answer), line(21, APIResponse, Answer),
		line(22, StreamOpen, Answer), line(23, StreamWindow, Answer), opaque(line(24, StreamData, Stream)), line(25, StreamClose, Stream),
	} {
		if _, ok := t.entries[e.Key]; ok {
			panic("topic: two lines for " + e.Key.String())
		}
		if other, ok := t.numbers[e.Number]; ok || e.Number == 0 {
			panic(fmt.Sprintf("topic: number %d of %s is taken by %q", e.Number, e.Key, other))
		}
		t.entries[e.Key], t.numbers[e.Number] = e, e.Key
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

// Numbered finds the line that a number on the wire stands for.
func (t *Table) Numbered(number uint32) (Entry, error) {
	key, ok := t.numbers[number]
	if !ok {
		return Entry{}, fmt.Errorf("number %d: %w", number, ErrUnknown)
	}
	return t.entries[key], nil
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
