package names

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"time"
)

// admits reports whether a query of an address is answered.
func (m *Module) admits(ctx context.Context, from net.Addr) bool {
	at, err := netip.ParseAddrPort(from.String())
	if m.config.Admits == nil || err == nil && m.config.Admits(ctx, at.Addr().Unmap()) {
		return true
	}
	if err != nil {
		return false
	}
	select {
	case m.waiting <- struct{}{}:
		defer func() { <-m.waiting }()
	default:
		return false
	}
	for end := time.Now().Add(admitWait); time.Now().Before(end); {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(admitPoll):
		}
		if m.config.Admits(ctx, at.Addr().Unmap()) {
			return true
		}
	}
	return false
}

// shares is a listener of which one address has a part.
type shares struct {
	net.Listener

	mu   sync.Mutex
	open map[netip.Addr]int
}

func newShares(l net.Listener) *shares { return &shares{Listener: l, open: map[netip.Addr]int{}} }

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
	if s.open[a] >= maxClientTCP {
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
