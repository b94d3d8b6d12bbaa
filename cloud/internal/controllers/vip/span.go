package vip

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// span is a run of addresses of one family, both ends in. Ranges are never counted out: an IPv6
// network has more addresses than memory has room.
type span struct{ from, to netip.Addr }

func one(a netip.Addr) span { return span{a, a} }

func (s span) String() string {
	if s.from == s.to {
		return s.from.String()
	}
	return s.from.String() + "-" + s.to.String()
}

func (s span) contains(a netip.Addr) bool { return s.from.Compare(a) <= 0 && a.Compare(s.to) <= 0 }

func (s span) overlaps(o span) bool { return s.from.Compare(o.to) <= 0 && o.from.Compare(s.to) <= 0 }

func (s span) size() u128 { return number(s.to).sub(number(s.from)).add(u128{0, 1}) }

// parseSpan reads a single address, a network or a range a-b. A network stands for the addresses
// that hosts may have: not its network and broadcast address (but both of a /31, RFC 3021), and not
// the subnet-router anycast address of IPv6 (RFC 4291 section 2.6.1).
func parseSpan(text string) (span, error) {
	text = strings.TrimSpace(text)
	if a, b, ok := strings.Cut(text, "-"); ok {
		from, err := parseAddr(strings.TrimSpace(a))
		if err != nil {
			return span{}, err
		}
		to, err := parseAddr(strings.TrimSpace(b))
		if err != nil {
			return span{}, err
		}
		if from.Is4() != to.Is4() {
			return span{}, fmt.Errorf("%s: one end is IPv4, the other is IPv6", text)
		}
		if to.Less(from) {
			return span{}, fmt.Errorf("%s: the range is reversed, write %s-%s", text, to, from)
		}
		return span{from, to}, nil
	}
	if !strings.Contains(text, "/") {
		a, err := parseAddr(text)
		return one(a), err
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return span{}, fmt.Errorf("%q is no network", text)
	}
	if _, err := parseAddr(p.Addr().String()); err != nil {
		return span{}, err
	}
	if p.Masked() != p {
		return span{}, fmt.Errorf("%s has bits set behind its mask: write %s", text, p.Masked())
	}
	s := span{p.Addr(), last(p)}
	switch host := p.Addr().BitLen() - p.Bits(); {
	case host <= 1:
	case p.Addr().Is4():
		s = span{s.from.Next(), s.to.Prev()}
	default:
		s.from = s.from.Next()
	}
	return s, nil
}

// last is the highest address of a network.
func last(p netip.Prefix) netip.Addr {
	raw := p.Addr().AsSlice()
	for i := p.Bits(); i < len(raw)*8; i++ {
		raw[i/8] |= 1 << (7 - i%8)
	}
	a, _ := netip.AddrFromSlice(raw)
	return a
}

// parseAddr reads an address that a host of a LAN may have.
func parseAddr(text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	switch {
	case err != nil:
		return netip.Addr{}, fmt.Errorf("%q is no IP address", text)
	case a.Is4In6():
		return netip.Addr{}, fmt.Errorf("%s: write the IPv4 address as such", text)
	case a.Zone() != "" || a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a.IsLinkLocalUnicast():
		return netip.Addr{}, fmt.Errorf("%s can't be a virtual IP", text)
	case a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return netip.Addr{}, fmt.Errorf("%s can't be a virtual IP", text)
	}
	return a, nil
}

// spans is a set of addresses: sorted, without overlap.
type spans []span

// union sorts and merges.
func union(all ...span) spans {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b span) int { return cmp.Or(a.from.Compare(b.from), a.to.Compare(b.to)) })
	var out spans
	for _, s := range all {
		if n := len(out); n > 0 && out[n-1].from.BitLen() == s.from.BitLen() {
			if l := &out[n-1]; l.contains(s.from) || l.to.Next() == s.from {
				if l.to.Less(s.to) {
					l.to = s.to
				}
				continue
			}
		}
		out = append(out, s)
	}
	return out
}

// without is the set less another.
func (a spans) without(b spans) spans {
	var out spans
	i := 0
	for _, s := range a {
		for ; i < len(b) && b[i].to.Less(s.from); i++ {
		}
		rest, alive := s, true
		for j := i; alive && j < len(b) && b[j].from.Compare(rest.to) <= 0; j++ {
			if rest.from.Less(b[j].from) {
				out = append(out, span{rest.from, b[j].from.Prev()})
			}
			if b[j].to.Less(rest.to) {
				rest.from = b[j].to.Next()
			} else {
				alive = false
			}
		}
		if alive {
			out = append(out, rest)
		}
	}
	return out
}

func (a spans) contains(addr netip.Addr) bool {
	i, found := slices.BinarySearchFunc(a, addr, func(s span, x netip.Addr) int { return s.from.Compare(x) })
	return found || i > 0 && a[i-1].contains(addr)
}

// of is the part of one family.
func (a spans) of(f family) spans {
	var out spans
	for _, s := range a {
		if familyOf(s.from) == f {
			out = append(out, s)
		}
	}
	return out
}

// size is the number of addresses, at most the maximum of an int64.
func (a spans) size() int64 {
	sum := a.count()
	if sum.hi > 0 || sum.lo > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(sum.lo)
}

func (a spans) count() u128 {
	var sum u128
	for _, s := range a {
		n := s.size()
		if next := sum.add(n); next.less(sum) || n == (u128{}) { // all 2^128 and more
			return u128{math.MaxUint64, math.MaxUint64}
		}
		sum = sum.add(n)
	}
	return sum
}

// after is the first address behind one, or the first of all; the zero Addr of the empty set.
func (a spans) after(addr netip.Addr) netip.Addr {
	if len(a) == 0 {
		return netip.Addr{}
	}
	for _, s := range a {
		if addr.Less(s.from) {
			return s.from
		}
		if s.contains(addr) && addr.Less(s.to) {
			return addr.Next()
		}
	}
	return a[0].from
}

// at is the n-th address, from 0.
func (a spans) at(n u128) netip.Addr {
	for _, s := range a {
		size := s.size()
		if n.less(size) {
			return number(s.from).add(n).addr(s.from.Is4())
		}
		n = n.sub(size)
	}
	return netip.Addr{}
}

// u128 is an unsigned number of 128 bits.
type u128 struct{ hi, lo uint64 }

func number(a netip.Addr) u128 {
	if a.Is4() {
		b := a.As4()
		return u128{0, uint64(binary.BigEndian.Uint32(b[:]))}
	}
	b := a.As16()
	return u128{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}
}

func (n u128) addr(four bool) netip.Addr {
	if four {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], uint32(n.lo))
		return netip.AddrFrom4(b)
	}
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], n.hi)
	binary.BigEndian.PutUint64(b[8:], n.lo)
	return netip.AddrFrom16(b)
}

func (n u128) add(o u128) u128 {
	lo, carry := bits.Add64(n.lo, o.lo, 0)
	hi, _ := bits.Add64(n.hi, o.hi, carry)
	return u128{hi, lo}
}

func (n u128) sub(o u128) u128 {
	lo, borrow := bits.Sub64(n.lo, o.lo, 0)
	hi, _ := bits.Sub64(n.hi, o.hi, borrow)
	return u128{hi, lo}
}

func (n u128) less(o u128) bool { return n.hi < o.hi || n.hi == o.hi && n.lo < o.lo }

// below draws a number below n, all equally likely; n is not 0.
func (n u128) below(random func() uint64) u128 {
	mask := u128{math.MaxUint64, math.MaxUint64}
	if n.hi == 0 {
		mask = u128{0, math.MaxUint64 >> bits.LeadingZeros64(n.lo)}
	} else {
		mask.hi >>= bits.LeadingZeros64(n.hi)
	}
	for {
		x := u128{random() & mask.hi, random() & mask.lo}
		if x.less(n) {
			return x
		}
	}
}

// family is an IP family as Services name it.
type family = corev1.IPFamily

func familyOf(a netip.Addr) family {
	if a.Is4() {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}
