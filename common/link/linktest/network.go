package linktest

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

// Network is the path between the two ends: it wraps the edge's connection and injects faults on
// request. Its methods may be called at any time.
type Network struct {
	mu   sync.Mutex
	cut  bool
	held chan struct{} // not nil: writes wait until it is closed
}

// Cut swallows everything from now on, in both directions, silently for both ends.
func (n *Network) Cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut = true
}

// Hold makes the edge's writes wait for Release, as a full socket does.
func (n *Network) Hold() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.held == nil {
		n.held = make(chan struct{})
	}
}

// Release ends Hold.
func (n *Network) Release() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.held != nil {
		close(n.held)
		n.held = nil
	}
}

func (n *Network) isCut() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.cut
}

// pass waits while the network holds, and reports whether a write arrives.
func (n *Network) pass() bool {
	n.mu.Lock()
	held := n.held
	n.mu.Unlock()
	if held != nil {
		<-held
	}
	return !n.isCut()
}

// Conn leads the edge's connection through the network.
func (n *Network) Conn(c net.Conn) net.Conn {
	if n == nil {
		return c
	}
	return &networkConn{Conn: c, network: n, closed: make(chan struct{})}
}

// PacketConn leads the edge's socket through the network.
func (n *Network) PacketConn(c net.PacketConn) net.PacketConn {
	if n == nil {
		return c
	}
	return &networkPacketConn{c, n}
}

// networkConn lets neither bytes nor the end of the connection through once the network is cut.
type networkConn struct {
	net.Conn
	network *Network

	mu       sync.Mutex
	deadline time.Time // of reads
	closed   chan struct{}
}

func (c *networkConn) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		if !c.network.isCut() {
			return n, err
		}
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			c.mu.Lock()
			deadline := c.deadline
			c.mu.Unlock()
			select {
			case <-time.After(time.Until(deadline)):
				err = os.ErrDeadlineExceeded
			case <-c.closed:
				err = net.ErrClosed
			}
		}
		if err != nil {
			return 0, err
		}
	}
}

func (c *networkConn) SetDeadline(t time.Time) error {
	c.keep(t)
	return c.Conn.SetDeadline(t)
}

func (c *networkConn) SetReadDeadline(t time.Time) error {
	c.keep(t)
	return c.Conn.SetReadDeadline(t)
}

func (c *networkConn) keep(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline = t
}

func (c *networkConn) Write(b []byte) (int, error) {
	if !c.network.pass() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// Close does not reach the peer when the network is cut; open connections, the peer's
// own end closes.
func (c *networkConn) Close() error {
	c.mu.Lock()
	select {
	case <-c.closed:
	default:
		close(c.closed)
	}
	c.mu.Unlock()
	if c.network.isCut() {
		return c.Conn.SetDeadline(time.Now())
	}
	return c.Conn.Close()
}

type networkPacketConn struct {
	net.PacketConn
	network *Network
}

func (c *networkPacketConn) ReadFrom(b []byte) (int, net.Addr, error) {
	for {
		n, from, err := c.PacketConn.ReadFrom(b)
		if err != nil || !c.network.isCut() {
			return n, from, err
		}
	}
}

func (c *networkPacketConn) WriteTo(b []byte, to net.Addr) (int, error) {
	if !c.network.pass() {
		return len(b), nil
	}
	return c.PacketConn.WriteTo(b, to)
}
