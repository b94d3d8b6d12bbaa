package join

import (
	"container/list"
	"net/netip"
	"sync"

	"golang.org/x/time/rate"
)

// Limits bounds how often strangers may knock. Zero fields take their defaults.
type Limits struct {
	PerSecond        float64 // in all; default 50
	Burst            int     // in all; default 100
	AddressPerSecond float64 // from one address (IPv6: one /64); default 5
	AddressBurst     int     // default 40: a whole site behind one NAT may join at once
}

// addressesKept bounds the memory of the limiter; the address that was silent for longest is
// forgotten first.
const addressesKept = 4096

type limiter struct {
	limits Limits
	all    *rate.Limiter

	mu        sync.Mutex
	addresses map[netip.Prefix]*list.Element
	order     *list.List // of *visitor, the latest first
}

type visitor struct {
	address netip.Prefix
	rate    *rate.Limiter
}

func newLimiter(l Limits) *limiter {
	if l.PerSecond <= 0 {
		l.PerSecond = 50
	}
	if l.Burst <= 0 {
		l.Burst = 100
	}
	if l.AddressPerSecond <= 0 {
		l.AddressPerSecond = 5
	}
	if l.AddressBurst <= 0 {
		l.AddressBurst = 40
	}
	return &limiter{
		limits:    l,
		all:       rate.NewLimiter(rate.Limit(l.PerSecond), l.Burst),
		addresses: map[netip.Prefix]*list.Element{},
		order:     list.New(),
	}
}

// allow asks the address's limiter first: one that knocks too often must not use up the limit of
// all.
func (l *limiter) allow(remote string) bool {
	return l.visitor(prefixOf(remote)).Allow() && l.all.Allow()
}

func (l *limiter) visitor(address netip.Prefix) *rate.Limiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e, ok := l.addresses[address]; ok {
		l.order.MoveToFront(e)
		return e.Value.(*visitor).rate
	}
	if l.order.Len() >= addressesKept {
		oldest := l.order.Back()
		delete(l.addresses, oldest.Value.(*visitor).address)
		l.order.Remove(oldest)
	}
	v := &visitor{address: address, rate: rate.NewLimiter(rate.Limit(l.limits.AddressPerSecond), l.limits.AddressBurst)}
	l.addresses[address] = l.order.PushFront(v)
	return v.rate
}

// prefixOf is one household: an IPv4 address, or the /64 that an IPv6 host picks its addresses from
// (RFC 4862, RFC 6177).
func prefixOf(remote string) netip.Prefix {
	ap, err := netip.ParseAddrPort(remote)
	if err != nil {
		return netip.Prefix{}
	}
	addr := ap.Addr().Unmap().WithZone("")
	bits := 32
	if addr.Is6() {
		bits = 64
	}
	prefix, err := addr.Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return prefix
}
