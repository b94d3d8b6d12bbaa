package join

import (
	"net"
	"net/netip"
	"sync"
)

// shares bounds how much of a resource each address holds at once, so that one can't take all. Its
// memory is bounded by the held shares.
type shares struct {
	most int

	mu   sync.Mutex
	held map[netip.Prefix]int
}

func newShares(most int) *shares { return &shares{most: most, held: map[netip.Prefix]int{}} }

// take takes one for an address, "HOST:PORT". The returned function gives it back and is
// called once.
func (s *shares) take(remote string) (leave func(), ok bool) {
	address := prefixOf(remote)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[address] >= s.most {
		return nil, false
	}
	s.held[address]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.held[address]--; s.held[address] == 0 {
			delete(s.held, address)
		}
	}, true
}

// shareListener closes connections of an address that holds its share, before they cost a
// handshake.
type shareListener struct {
	net.Listener
	shares *shares
}

func newShareListener(l net.Listener, most int) net.Listener {
	return &shareListener{l, newShares(most)}
}

// Accept returns the next connection of an address that may have one more.
func (l *shareListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if leave, ok := l.shares.take(conn.RemoteAddr().String()); ok {
			return &shareConn{Conn: conn, leave: sync.OnceFunc(leave)}, nil
		}
		_ = conn.Close()
	}
}

type shareConn struct {
	net.Conn
	leave func()
}

// Close gives the share back.
func (c *shareConn) Close() error {
	c.leave()
	return c.Conn.Close()
}
