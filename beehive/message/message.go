// Package message defines the messages between modules of a process, and between the two ends of a
// link: a header, a route and content.
//
// It owns the shape of a message and the typed topics that give content a Go type. It is
// independent of transports, encodings and Kubernetes; it imports the standard library only. Values
// are immutable by convention: a sender never changes a message, or its content, once it is sent.
// Mux is filled before it is used and may then be used by many goroutines at once; everything else
// is a plain value.
package message

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// Name is the address of a module in its process.
type Name string

// Group names a set of modules that a message can be sent to at once.
type Group string

// Kind is the subject of a message: "event", "heartbeat", "state".
type Kind string

// Operation is the verb on the Kind.
type Operation string

// The operations, as this ecosystem names them.
const (
	Insert   Operation = "insert"
	Update   Operation = "update"
	Delete   Operation = "delete"
	Query    Operation = "query"
	Response Operation = "response" // an answer to a request; Header.ParentID names the request
)

// ID identifies a message within its process. 0 is no message.
type ID uint64

var lastID atomic.Uint64 // IDs need only be unique in the process: one counter, and no state that a test could trip over

// NextID returns an ID that this process has not used before.
func NextID() ID { return ID(lastID.Add(1)) }

// Header identifies a message and ties an answer to its request.
type Header struct {
	ID       ID
	ParentID ID // of an answer: the ID of its request
	Time     time.Time
	Sync     bool // the sender waits for an answer
	Awaited  bool // set by the bus: that sender waits in this process, and the answer goes to it alone; never crosses a link
	Delivery Delivery

	// Session ties a message to one session of the link, where it would be wrong in another:
	// edgehub sets it on messages from the link, Answer hands it on, and edgehub drops messages
	// that belongs to a session that has ended. 0: any session will do. It does not cross the link.
	Session uint64
}

// Resource is the object of the message. Any part may be empty.
type Resource struct {
	Namespace string
	Name      string
}

func (r Resource) String() string {
	if r.Namespace == "" {
		return r.Name
	}
	return r.Namespace + "/" + r.Name
}

// Route is a message's source and subject.
type Route struct {
	Source    Name
	Group     Group // set when the message was sent to a group
	Kind      Kind
	Operation Operation
	Resource  Resource
}

// Message is one message. Content is a Go value; for a message of a Topic[T] it is a T. A
// refusal carries an error as its content.
type Message struct {
	Header  Header
	Route   Route
	Content any
}

// Key is the topic of the message.
func (m Message) Key() Key { return Key{m.Route.Kind, m.Route.Operation} }

// Err is the refusal that the message carries as its content, or nil.
func (m Message) Err() error {
	err, _ := m.Content.(error)
	return err
}

// Answer makes the answer to m: a Response of the same kind and resource, tied to m by its
// ParentID. An error as content is a refusal. No answer is ever replaced by another: its
// Delivery is Every.
func (m Message) Answer(content any) Message {
	return Message{
		Header:  Header{ID: NextID(), ParentID: m.Header.ID, Time: time.Now(), Session: m.Header.Session},
		Route:   Route{Kind: m.Route.Kind, Operation: Response, Resource: m.Route.Resource},
		Content: content,
	}
}

// Delivery is the policy for a full or slow receiver.
type Delivery int

const (
	// Every: no message is lost; a full mailbox holds its sender back.
	Every Delivery = iota
	// Latest: in a mailbox a newer message replaces an older one of the same topic and resource,
	// where that is the last that its sender sent.
	Latest
)

func (d Delivery) String() string {
	switch d {
	case Every:
		return "every"
	case Latest:
		return "latest"
	}
	return fmt.Sprintf("Delivery(%d)", int(d))
}

// Key identifies a topic.
type Key struct {
	Kind      Kind
	Operation Operation
}

func (k Key) String() string { return string(k.Kind) + "." + string(k.Operation) }

// ErrWrongContent is returned when a message's content is not of its topic's type.
var ErrWrongContent = errors.New("content is not of the topic's type")

// Topic binds a kind and an operation to the Go type of their content.
type Topic[T any] struct {
	Kind      Kind
	Operation Operation
	Delivery  Delivery
}

// NewTopic returns the topic.
func NewTopic[T any](kind Kind, operation Operation, delivery Delivery) Topic[T] {
	return Topic[T]{Kind: kind, Operation: operation, Delivery: delivery}
}

// Key identifies the topic.
func (t Topic[T]) Key() Key { return Key{t.Kind, t.Operation} }

// New makes a message of this topic.
func (t Topic[T]) New(resource Resource, content T) Message {
	return Message{
		Header:  Header{ID: NextID(), Time: time.Now(), Delivery: t.Delivery},
		Route:   Route{Kind: t.Kind, Operation: t.Operation, Resource: resource},
		Content: content,
	}
}

// Content returns the content of m, which may be of this topic or an answer to it with the same
// type. A refusal is returned as the error.
func (t Topic[T]) Content(m Message) (T, error) {
	if c, ok := m.Content.(T); ok {
		return c, nil
	}
	var zero T
	if err := m.Err(); err != nil {
		return zero, err
	}
	return zero, fmt.Errorf("message %s: %w: %T, want %T", m.Key(), ErrWrongContent, m.Content, zero)
}
