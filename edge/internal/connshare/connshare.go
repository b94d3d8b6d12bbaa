// Package connshare gives each address its share of a listener's connections, so that one client
// can not take all of them before it has shown who it is.
//
// It owns the count of open connections by address. It refuses one above the share by closing it at
// once. A listener may be used by many goroutines.
package connshare

import (
	"net"
	"net/netip"
	"sync"
)

// shares is a listener of which one address has a part.
type shares struct {
	net.Listener
	each int

	mu   sync.Mutex
	open map[netip.Addr]int
}

// Listen bounds the open connections of a listener: one address has at most each, and one more is
// closed at once.
func Listen(l net.Listener, each int) net.Listener {
	return &shares{Listener: l, each: each, open: map[netip.Addr]int{}}
}

// Accept implements net.Listener.
func (s *shares) Accept() (net.Conn, error) {
	for {
		c, err := s.Listener.Accept()
		if err != nil {
			return nil, err
		}
		at, err := netip.ParseAddrPort(c.RemoteAddr().String())
		if err != nil || !s.take(at.Addr()) {
			_ = c.Close()
			continue
		}
		return &shared{Conn: c, over: sync.OnceFunc(func() { s.give(at.Addr()) })}, nil
	}
}

func (s *shares) take(a netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[a] >= s.each {
		return false
	}
	s.open[a]++
	return true
}

func (s *shares) give(a netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[a]--; s.open[a] <= 0 {
		delete(s.open, a)
	}
}

type shared struct {
	net.Conn
	over func()
}

func (c *shared) Close() error {
	c.over()
	return c.Conn.Close()
}
