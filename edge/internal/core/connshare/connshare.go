// Package connshare bounds the open connections of a listener's clients, in total and for each
// client, so that one client can't take all of them before it is authenticated.
//
// It owns the counts of open connections and requests by client. It refuses a connection above a
// bound by closing it at once. Shares and listeners may be used by many goroutines.
package connshare

import (
	"net"
	"net/netip"
	"sync"
)

// Shares counts the open connections of clients.
type Shares struct {
	all, each int

	mu     sync.Mutex
	open   int
	client map[string]int
}

// New bounds the open connections of all clients together and of each.
func New(all, each int) *Shares {
	return &Shares{all: all, each: each, client: map[string]int{}}
}

// Take counts one more of a client, or returns false at the bound. The client "" has no bound but
// that of all.
func (s *Shares) Take(client string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open >= s.all || client != "" && s.client[client] >= s.each {
		return false
	}
	s.open++
	s.client[client]++
	return true
}

// Give releases a share counted by Take.
func (s *Shares) Give(client string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open--
	if s.client[client]--; s.client[client] == 0 {
		delete(s.client, client)
	}
}

// By decides for an address which Shares bound its connections, and as which client of theirs.
type By func(netip.Addr) (shares *Shares, client string)

// Each has every address as a client of its own.
func (s *Shares) Each(a netip.Addr) (shares *Shares, client string) { return s, a.String() }

// Listen bounds the open connections of a listener.
func Listen(l net.Listener, by By) net.Listener { return &listener{l, by} }

type listener struct {
	net.Listener
	by By
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if at, err := netip.ParseAddrPort(c.RemoteAddr().String()); err == nil {
			if shares, client := l.by(at.Addr().WithZone("").Unmap()); shares.Take(client) {
				return &conn{Conn: c, over: sync.OnceFunc(func() { shares.Give(client) })}, nil
			}
		}
		_ = c.Close()
	}
}

type conn struct {
	net.Conn
	over func()
}

func (c *conn) Close() error {
	c.over()
	return c.Conn.Close()
}
