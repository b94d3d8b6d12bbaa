// Package clienthello reads the first message of TLS clients, and lets several TLS servers share
// one port by it: each connection goes to the server whose protocol its client offers by ALPN (RFC
// 7301).
//
// It owns the wait for the ClientHello, which a Mux reads without taking it from the socket: the
// server that gets the connection does its own handshake, with its own bounds, as if the port were
// its own. It refuses clients that send no hello, or send it too slowly, and never answers itself.
// A Mux may be used by many goroutines.
package clienthello

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/pki"
)

const (
	// Link and Join are the protocols that devices offer with http/1.1, which both then use: for a
	// link, and before they have a certificate.
	Link = link.Protocol
	Join = pki.JoinProtocol

	// helloTimeout is for a client to send its hello.
	helloTimeout = 10 * time.Second
	// hellosAtOnce bounds the connections that have not sent theirs, of which one address has its
	// share (link.Shares); one more is closed.
	hellosAtOnce = 512
	// queued bounds the connections that a server has been given and has not taken; one more is
	// closed, and its client tries again.
	queued = 64
)

// Mux is one port.
type Mux struct {
	// Set by New and Route, never changed once Run has begun.
	listener net.Listener
	routes   []*route

	shares *link.Shares[netip.Prefix]
}

// New returns a Mux over a listener of TCP connections. It does not start it.
func New(listener net.Listener) *Mux {
	return &Mux{listener: listener, shares: link.NewShares[netip.Prefix](hellosAtOnce)}
}

// Route is the listener of the clients that offer a protocol; "" is for all that offer none of the
// routed ones. It is called before Run.
func (m *Mux) Route(protocol string) net.Listener {
	r := &route{protocol: protocol, at: m.listener.Addr(), conns: make(chan net.Conn, queued), closed: make(chan struct{})}
	r.close = sync.OnceFunc(func() { close(r.closed) })
	m.routes = append(m.routes, r)
	return r
}

// Close closes the port, for a caller that never runs it.
func (m *Mux) Close() error { return m.listener.Close() }

// Run hands connections on until ctx ends. The servers close their own listeners: which of them
// ends first is the caller's business.
func (m *Mux) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var waiting sync.WaitGroup
	defer func() {
		waiting.Wait()
		for _, r := range m.routes {
			r.drain()
		}
	}()
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = m.listener.Close() })()
	for {
		conn, err := m.listener.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			if temporary, ok := errors.AsType[interface {
				error
				Temporary() bool
			}](err); ok && temporary.Temporary() { // out of descriptors, most likely
				time.Sleep(10 * time.Millisecond)
				continue
			}
			return fmt.Errorf("accepting connections on %s: %w", m.listener.Addr(), err)
		}
		leave, ok := m.shares.Enter(link.Source(conn.RemoteAddr()))
		if !ok {
			_ = conn.Close() // it cost an accept alone
			continue
		}
		waiting.Go(func() {
			defer leave()
			m.lead(ctx, conn)
		})
	}
}

// lead hands one connection on.
func (m *Mux) lead(ctx context.Context, conn net.Conn) {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	offered, err := peek(conn)
	if !stop() || err != nil {
		klog.FromContext(ctx).V(4).Info("Closed a connection without a TLS ClientHello", "remote", conn.RemoteAddr().String(), "err", err)
		_ = conn.Close()
		return
	}
	r := m.choose(offered)
	if r == nil || !r.give(conn) {
		_ = conn.Close()
	}
}

func (m *Mux) choose(offered []string) (rest *route) {
	for _, r := range m.routes {
		if slices.Contains(offered, r.protocol) {
			return r
		}
		if r.protocol == "" {
			rest = r
		}
	}
	return rest
}

// peek reads a ClientHello and leaves it in the socket. It returns the protocols that are offered.
func peek(conn net.Conn) ([]string, error) {
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("a %T is no socket", conn)
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return nil, err
	}
	if err := conn.SetReadDeadline(time.Now().Add(helloTimeout)); err != nil {
		return nil, err
	}
	var offered []string
	var failed error
	seen := 0
	b := make([]byte, Max)
	err = raw.Read(func(fd uintptr) bool {
		n, _, err := unix.Recvfrom(int(fd), b, unix.MSG_PEEK)
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
			return false
		case err != nil:
			failed = err
			return true
		case n == 0, n <= seen && n == len(b):
			failed = io.EOF
			return true
		case n == seen:
			return false // woken without new data: the rest is on its way
		}
		seen = n
		if Incomplete(b[:n]) {
			return false
		}
		var h Hello
		h, _, failed = Read(bytes.NewReader(b[:n]))
		offered = h.Protocols
		return true
	})
	if err := errors.Join(err, failed); err != nil {
		return nil, err
	}
	return offered, conn.SetReadDeadline(time.Time{})
}

// route is a net.Listener.
type route struct {
	protocol string
	at       net.Addr
	conns    chan net.Conn
	closed   chan struct{}
	close    func()
}

func (r *route) give(conn net.Conn) bool {
	select {
	case <-r.closed:
		return false
	default:
	}
	select {
	case r.conns <- conn:
		return true
	default:
		return false
	}
}

// drain closes connections that no server has taken.
func (r *route) drain() {
	for {
		select {
		case c := <-r.conns:
			_ = c.Close()
		default:
			return
		}
	}
}

// Accept implements net.Listener.
func (r *route) Accept() (net.Conn, error) {
	select {
	case c := <-r.conns:
		return c, nil
	case <-r.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. The port stays open for the others.
func (r *route) Close() error {
	r.close()
	return nil
}

// Addr implements net.Listener.
func (r *route) Addr() net.Addr { return r.at }
