package quiclink

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/qlogwriter"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/topic"
)

// ListenConfig configures a Listener.
type ListenConfig struct {
	Link  link.Config
	TLS   *tls.Config // must verify the clients
	Table *topic.Table
	// MaxLinks is how many links may be open; another is refused before TLS begins. 0: no bound.
	MaxLinks int
	// MaxHandshakes is how many handshakes run at once, of which one address has its share
	// (link.Shares); from half of it on, clients must prove their address first (RFC 9000 section
	// 8.1.2). 0: 128.
	MaxHandshakes int
	// ResetKey lets a restarted process tell the clients of its predecessor at once that their
	// links have ended (RFC 9000 section 10.3). It must be secret and the same for all replicas
	// behind one address; nil: they find out by IdleTimeout.
	ResetKey *[32]byte
	// Wrap, if set, wraps the UDP socket.
	Wrap func(net.PacketConn) net.PacketConn
}

// Listener accepts links.
type Listener struct {
	config     ListenConfig
	log        klog.Logger
	codec      *link.Codec
	socket     net.PacketConn
	transport  *quic.Transport
	listener   *quic.Listener
	links      atomic.Int64 // those in their handshake too
	handshakes atomic.Int64
	shares     *link.Shares[netip.Prefix]
	lost       atomic.Uint64
	users      atomic.Int64 // of the socket: the listener and its links
	close      func() error
}

// Listen opens address ("host:port") and serves it until Close. ctx bounds the opening alone, and
// its logger is kept.
func Listen(ctx context.Context, address string, config ListenConfig) (*Listener, error) {
	if err := config.Link.Validate(); err != nil {
		return nil, err
	}
	secure, err := link.ServerTLS(config.TLS, protocol())
	if err != nil {
		return nil, err
	}
	if config.MaxHandshakes <= 0 {
		config.MaxHandshakes = 128
	}
	udp, err := (&net.ListenConfig{}).ListenPacket(ctx, "udp", address)
	if err != nil {
		return nil, fmt.Errorf("listening for QUIC: %w", err)
	}
	l := &Listener{config: config, log: klog.FromContext(ctx), codec: link.NewCodec(config.Table, config.Link)}
	l.shares = link.NewShares[netip.Prefix](config.MaxHandshakes)
	l.socket = socket{udp.(*net.UDPConn), &l.lost}
	if config.Wrap != nil {
		l.socket = config.Wrap(l.socket)
	}
	l.transport = &quic.Transport{
		Conn:                l.socket,
		StatelessResetKey:   (*quic.StatelessResetKey)(config.ResetKey),
		VerifySourceAddress: func(net.Addr) bool { return l.handshakes.Load() >= int64(config.MaxHandshakes+1)/2 },
		ConnContext:         l.admit,
	}
	quicConfig := quicConfig(config.Link)
	quicConfig.Tracer = func(context.Context, bool, quic.ConnectionID) qlogwriter.Trace { return &inbox{} }
	if l.listener, err = l.transport.Listen(secure, quicConfig); err != nil {
		_ = l.socket.Close()
		return nil, fmt.Errorf("listening for QUIC: %w", err)
	}
	l.users.Add(1)
	l.close = sync.OnceValue(func() error {
		defer l.leave()
		return l.listener.Close()
	})
	return l, nil
}

// leave closes the socket when the listener and all links have.
func (l *Listener) leave() {
	if l.users.Add(-1) == 0 {
		_ = l.transport.Close()
		_ = l.socket.Close()
	}
}

// place is a connection's share of the bounds, from its first packet on.
type place struct{ shaken, left func() }

type placeKey struct{} // of the *place in a connection's context

var errTooMany = errors.New("too many links")

// admit is asked before any work is done for a connection.
func (l *Listener) admit(ctx context.Context, client *quic.ClientInfo) (context.Context, error) {
	leave, ok := l.shares.Enter(link.Source(client.RemoteAddr))
	if !ok {
		return nil, errTooMany
	}
	if n := l.links.Add(1); l.config.MaxLinks > 0 && n > int64(l.config.MaxLinks) {
		l.links.Add(-1)
		leave()
		return nil, errTooMany
	}
	l.handshakes.Add(1)
	p := &place{
		shaken: sync.OnceFunc(func() { l.handshakes.Add(-1); leave() }),
		left:   sync.OnceFunc(func() { l.links.Add(-1) }),
	}
	context.AfterFunc(ctx, func() { // the connection has ended, or never came to be
		p.shaken()
		p.left()
	})
	return context.WithValue(ctx, placeKey{}, p), nil
}

// Accept implements link.Listener.
func (l *Listener) Accept(ctx context.Context) (link.Conn, error) {
	for {
		conn, err := l.listener.Accept(ctx)
		if err != nil {
			switch {
			case errors.Is(err, quic.ErrServerClosed):
				err = net.ErrClosed
			case ctx.Err() != nil:
				err = context.Cause(ctx)
			}
			return nil, fmt.Errorf("accepting QUIC: %w", err)
		}
		if p, ok := conn.Context().Value(placeKey{}).(*place); ok {
			p.shaken()
		}
		l.users.Add(1)
		a := accepted{newCarrier(conn, l.config.Link, false, l.leave), conn.QlogTrace().(*inbox)}
		c, err := a.start(a, l.codec)
		if err == nil {
			return c, nil
		}
		l.leave()
		_ = conn.CloseWithError(quic.ApplicationErrorCode(link.CloseForbidden), err.Error())
		l.log.V(2).Info("Closed a connection that is not an edge's", "remote", conn.RemoteAddr(), "err", err)
	}
}

// Addr is where the listener listens.
func (l *Listener) Addr() net.Addr { return l.socket.LocalAddr() }

// Links is how many are open or in their handshake.
func (l *Listener) Links() int { return int(l.links.Load()) }

// Lost is how many packets the network of this machine refused to take.
func (l *Listener) Lost() uint64 { return l.lost.Load() }

// Close stops listening. Links that were accepted live on.
func (l *Listener) Close() error { return l.close() }
