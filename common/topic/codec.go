package topic

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/skerry-io/skerry/beehive/message"
)

// ErrUnknown is returned for a topic that the table does not hold.
var ErrUnknown = errors.New("unknown topic")

// Class orders the messages that wait to be sent on a link: a lower one goes first.
type Class uint8

const (
	// Urgent: heartbeats, and messages that open and close a session.
	Urgent Class = iota
	// Answer: requests that a caller waits for, their answers, and acknowledgements.
	Answer
	// Normal: state and writes.
	Normal
	// Bulk: messages that may wait for all others, such as events.
	Bulk
	// Stream: the bytes of streams that people open, which may go on for hours: they give way to
	// all of the above.
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
	// Number is the key's number on the wire. It is a wire contract: never reuse one.
	Number   uint32
	Class    Class
	Delivery message.Delivery
	Payload  string // the protobuf name of the payload
	Opaque   bool   // the payload is encrypted: it does not compress
	Goes     Direction

	content protoreflect.MessageDescriptor
	decode  func([]byte) (any, error)
}

// Direction is which way a topic goes.
type Direction uint8

const (
	Up   Direction = 1 << iota // from an edge
	Down                       // to an edge
)

// Table is every topic that crosses the link.
type Table struct {
	entries  map[message.Key]Entry
	numbers  map[uint32]message.Key
	receives Direction
	bounds   Bounds
}

// Receiving is the table of an end that takes only messages of that direction, within those bounds.
func (t *Table) Receiving(d Direction, bounds Bounds) *Table {
	return &Table{entries: t.entries, numbers: t.numbers, receives: d, bounds: bounds}
}

func line[T any, PT interface {
	*T
	proto.Message
}](number uint32, topic message.Topic[PT], class Class) Entry {
	content := PT(new(T)).ProtoReflect().Descriptor()
	return Entry{
		Key: topic.Key(), Number: number, Class: class, Delivery: topic.Delivery, Payload: string(content.FullName()), content: content, Goes: Up | Down,
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

func up(e Entry) Entry {
	e.Goes = Up
	return e
}

func down(e Entry) Entry {
	e.Goes = Down
	return e
}

// NewTable returns the table of an end that takes messages of either direction; see Receiving.
func NewTable() *Table {
	t := &Table{entries: map[message.Key]Entry{}, numbers: map[uint32]message.Key{}, receives: Up | Down, bounds: DownBounds()}
	for _, e := range []Entry{
		up(line(1, Hello, Urgent)), down(line(2, Welcome, Urgent)),
		up(line(3, Heartbeat, Urgent)), down(line(4, HeartbeatAnswer, Urgent)),
		up(line(5, Interests, Normal)), down(line(6, InventoryRequest, Normal)), up(line(7, Inventory, Normal)),
		down(line(8, State, Normal)), up(line(9, StateAck, Answer)),
		up(line(10, EventWrite, Bulk)), down(line(11, EventResult, Answer)),
		up(line(12, PodStatusWrite, Normal)), down(line(13, PodStatusResult, Answer)),
		up(line(14, NodeStatusWrite, Normal)), down(line(15, NodeStatusResult, Answer)),
		up(line(16, PodWrite, Normal)), down(line(17, PodResult, Answer)),
		up(line(18, ReportWrite, Normal)), down(line(19, ReportResult, Answer)),
		up(line(20, APIRequest, Answer)), down(line(21, APIResponse, Answer)),
		line(22, StreamOpen, Answer), line(23, StreamWindow, Answer), opaque(line(24, StreamData, Stream)), line(25, StreamClose, Stream),
		up(line(26, SiteRequest, Normal)), down(line(27, Site, Normal)),
		up(line(28, NodeMetrics, Stream)), down(line(29, NodeMetricsResult, Stream)),
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

// Numbered finds the line of a number on the wire, among those that this end receives.
func (t *Table) Numbered(number uint32) (Entry, error) {
	key, ok := t.numbers[number]
	if !ok {
		return Entry{}, fmt.Errorf("number %d: %w", number, ErrUnknown)
	}
	e := t.entries[key]
	if e.Goes&t.receives == 0 {
		return Entry{}, fmt.Errorf("%s does not go this way: %w", key, ErrUnknown)
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

// Decode turns the payload of a topic back into content. A payload above the table's bounds is
// refused before memory is allocated for it.
func (t *Table) Decode(key message.Key, payload []byte) (any, error) {
	e, err := t.Lookup(key)
	if err != nil {
		return nil, err
	}
	if err := t.bounds.check(e.content, payload); err != nil {
		return nil, fmt.Errorf("decoding %s: %w", key, err)
	}
	content, err := e.decode(payload)
	if err != nil {
		return nil, fmt.Errorf("decoding %s: %w", key, err)
	}
	return content, nil
}
