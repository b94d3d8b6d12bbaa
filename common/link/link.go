// Package link is one connection between an edge and the cloud: messages in both directions, in
// classes, over websocket or QUIC.
//
// It owns the Conn contract, the frames, the close codes and the bounds. The transports (wslink,
// quiclink) carry frames; linktest holds the contract that both pass. It refuses whatever is longer
// than its bounds before it takes memory for it, and every peer without a verified certificate. A
// Conn's Send may be called by many goroutines at once, Receive and Poll by one, Close by any.
package link

import (
	"context"
	"crypto/x509"
	"net"
	"time"

	"github.com/skerry-io/skerry/beehive/message"
)

// Transport names the protocol that carries a Conn.
type Transport string

const (
	WebSocket Transport = "websocket"
	QUIC      Transport = "quic"
)

// Conn is one link. Its goroutines start with it and end with it: after Close, or after the peer or
// the network ended it, every call returns an error that errors.As finds a *CloseError in.
type Conn interface {
	// Send queues m in its topic's class, and returns when the queue has
	// taken it. A full queue holds the caller back until there is room, ctx ends or the link
	// does. Heartbeats never wait behind bulk: between two chunks of a large message the lower
	// class goes first.
	Send(ctx context.Context, m message.Message) error
	// Receive returns the next message, in order within a class and a sender.
	Receive(ctx context.Context) (message.Message, error)
	// Poll is Receive without waiting: ok is false where no message waits, or the link has ended.
	Poll() (m message.Message, ok bool)
	// Notify is for callers that prefer a callback to waiting in Receive, which must not be used
	// any more then. came is called after each message that came, and at once for those that have
	// come already; it must not block. ended is called once, in a goroutine of its own, when the
	// link begins to end. Notify is called once.
	Notify(came, ended func())
	// Close sends the peer the reason and ends the link; messages that wait to be sent or received
	// are dropped. It returns when the link has ended. Only the first call counts.
	Close(code CloseCode, reason string) error
	// Done is closed when the link has ended; Err then gives the reason.
	Done() <-chan struct{}
	Err() error

	Info() Info
}

// Info describes a link.
type Info struct {
	Transport Transport
	Local     net.Addr
	Remote    net.Addr
	Peer      *x509.Certificate // verified by the handshake
	Since     time.Time
	// Acks: the transport itself tracks the peer's last acknowledgement, LastHeard of the Stats
	// includes it, and the link ends without it. A message sent only to be answered needs no answer
	// then.
	Acks bool
}

// Listener accepts links.
type Listener interface {
	// Accept waits for the next link whose handshake is complete.
	Accept(ctx context.Context) (Conn, error)
	Addr() net.Addr
	Close() error
}

// Dialer opens a link to an address ("host:port").
type Dialer interface {
	Dial(ctx context.Context, address string) (Conn, error)
}
