// Package cloudhub is the cloud's end of the links: it accepts them, authenticates the node of
// each, and dispatches their messages to the parts that serve them.
//
// It owns the sessions: one a node, the newer replaces the older. It refuses links whose
// certificate is not a node's. It does not interpret the messages. A Session's methods may be
// called by many goroutines at once.
package cloudhub

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/link"
)

// Session is one node's open link.
type Session interface {
	// Node comes from the certificate, and from nowhere else.
	Node() types.NodeName
	// Epoch grows with every connect of the node.
	Epoch() uint64
	// Keepalive is the interval at which the node reports that it lives.
	Keepalive() time.Duration
	// Supports reports whether the node supports a feature (package protocol).
	Supports(feature string) bool
	Info() link.Info
	// Version is the version of edgecore that the node reported, and Machine its digest of the
	// device's hardware; "" if unknown.
	Version() string
	Machine() string
	// Send queues m for the node; see link.Conn.
	Send(ctx context.Context, m message.Message) error
	// Charge has the node pay for work in cloudcore, a second each second, above a credit of 10 s
	// by not reading its link until it has. Other links are read at the same time; it does not
	// block. It is for work that a device within its bounds causes rarely or never, and a multiple
	// of the cost: a refusal is less work than a request, and still fifty devices that are refused
	// as fast as they send take all processors.
	Charge(d time.Duration)
	// Close ends the session.
	Close(code link.CloseCode, reason string)
	// Done is closed when the session has ended.
	Done() <-chan struct{}
}

// Part serves one kind of traffic for every session.
type Part interface {
	// Attach is called once for each session, after the node's earlier session has fully ended and
	// before the first message is dispatched. It registers the part's handlers with mux: a handler
	// is called by the session alone, in order, and holds the whole link back while it runs; its
	// ctx ends with the session. Its error ends the session, with the code of a *link.CloseError in
	// it or with CloseInternal; so does a panic. A heartbeat may have a handler; the hub has
	// answered it then. The part's further work for the session is the returned Service, which may
	// be nil.
	Attach(s Session, mux *message.Mux) Service
}

// Service is a part's work for a session, apart from handling its messages. While idle it should
// have no goroutine: see Loop.
type Service interface {
	// Start begins, once, and does not block. ctx ends with the session. An error given to fail
	// ends the session, as a handler's does; fail may be called at any time by any goroutine, and
	// does not block.
	Start(ctx context.Context, fail func(error))
	// Stop is called once after Start, when ctx has ended, and returns when the service has ended
	// completely. A later session of the node waits for that, so it must do so soon.
	Stop()
}
