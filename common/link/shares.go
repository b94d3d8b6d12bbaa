package link

import (
	"net"
	"net/netip"
	"sync"
)

// Shares keeps one source from taking all the places for handshakes. Until half of them are taken a
// source may have as many as it likes: a whole site comes back through one address. From then on it
// may have an eighth of all. The use of a place is the caller's; a source that has no more is
// turned away at once, and comes back. Its methods may be called by many goroutines at once.
type Shares[K comparable] struct {
	places int

	mu    sync.Mutex
	taken int
	by    map[K]int // at most as many as there are places
}

// NewShares makes the shares of so many places.
func NewShares[K comparable](places int) *Shares[K] {
	return &Shares[K]{places: places, by: map[K]int{}}
}

// Enter takes a place for a source, or reports that it has its share. leave gives the
// place back, once.
func (s *Shares[K]) Enter(source K) (leave func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken >= s.places || s.taken >= s.places/2 && s.by[source] >= max(s.places/8, 2) {
		return nil, false
	}
	s.taken++
	s.by[source]++
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.taken--
		if s.by[source]--; s.by[source] == 0 {
			delete(s.by, source)
		}
	}), true
}

// Source is the key by which an address counts: the whole of IPv4, and of IPv6 the 64 bits that one
// network has (RFC 4291, 2.5.1), in which a single machine may take any address.
func Source(a net.Addr) netip.Prefix {
	var ip netip.Addr
	switch a := a.(type) {
	case *net.TCPAddr:
		ip = a.AddrPort().Addr()
	case *net.UDPAddr:
		ip = a.AddrPort().Addr()
	}
	ip = ip.Unmap()
	bits := ip.BitLen()
	if ip.Is6() {
		bits = 64
	}
	p, err := ip.Prefix(bits)
	if err != nil { // no IP address at all: one source
		return netip.Prefix{}
	}
	return p
}
