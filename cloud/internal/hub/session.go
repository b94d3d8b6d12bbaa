// Package hub is the cloud's end of the links: it accepts them, knows which node each belongs to, and leads their messages to the parts that
// serve them.
//
// It owns the sessions: one a node, the newer replaces the older. It refuses links whose certificate is not a node's. It does not know what the
// messages mean. A Session's methods may be called by many goroutines at once.
package hub

import (
	"context"

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
	Info() link.Info
	// Send queues m for the node; see link.Conn.
	Send(ctx context.Context, m message.Message) error
	// Close ends the session.
	Close(code link.CloseCode, reason string)
	// Done is closed when the session has ended.
	Done() <-chan struct{}
}

// Part serves one kind of traffic for every session.
type Part interface {
	// Attach is called once for each session, after the node's earlier session has fully ended and before the first message is dispatched. It
	// registers the part's handlers with mux: a handler is called by the session's read loop, in order, and holds the whole link back while it runs; its
	// ctx ends with the session. Its error ends the session, with the code of a *link.CloseError in it or with CloseInternal; so does a panic. The
	// returned function, which may be nil, runs for as long as the session lives; its error ends the session likewise, nil does not. A later session of
	// the node waits until it has returned, so it must do so soon after its ctx has ended. A heartbeat may have a handler; the hub has answered it then.
	Attach(s Session, mux *message.Mux) (run func(ctx context.Context) error)
}
