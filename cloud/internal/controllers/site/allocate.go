package site

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/claim"
)

// Taken is a prefix that pods' ranges must not overlap.
type Taken struct {
	Prefix netip.Prefix
	Why    string
}

// Offer is a change of a node's offered ranges; no Ranges takes the offer back.
type Offer struct {
	Node   string
	Ranges []netip.Prefix
}

// String is as the annotation has it.
func (o Offer) String() string {
	texts := make([]string, len(o.Ranges))
	for i, p := range o.Ranges {
		texts[i] = p.String()
	}
	return strings.Join(texts, ",")
}

// Allocation is the result of Allocate.
type Allocation struct {
	Offers []Offer
	// Invalid has for each pool the entries of podSubnets that can't be used and why; Full, the
	// number of devices without a free range.
	Invalid map[string][]string
	Full    map[string]int
}

const (
	bits4, bits6 = claim.Offered4, claim.Offered6
	// maxTries bounds the search within one subnet: a /8 has 65,536 ranges, and a /40 of IPv6 has
	// more than any site needs.
	maxTries = 1 << 16
)

// Allocate offers a range of each family of podSubnets to the devices of Edge pools that have none
// yet. A device's range stays: no range is changed here. Devices of pools with different networks
// never meet, so they may have the same.
func Allocate(x *Index, devices []*Device, pools []*v1alpha1.NodePool, taken []Taken) Allocation {
	a := Allocation{Invalid: map[string][]string{}, Full: map[string]int{}}
	networks := map[string]string{} // by pool
	for _, p := range pools {
		networks[p.Name] = p.Spec.Network
	}
	used := map[string]map[netip.Prefix]bool{} // by network; "" for devices that may be anywhere
	note := func(network string, p netip.Prefix) {
		if used[network] == nil {
			used[network] = map[netip.Prefix]bool{}
		}
		used[network][p.Masked()] = true
	}
	for _, d := range devices {
		network := ""
		if g := x.of[d.Name]; g != nil {
			network = networks[g.pool.Name]
		}
		for _, p := range held(x, d) {
			note(network, p)
		}
	}
	pools = slices.Clone(pools)
	slices.SortFunc(pools, func(a, b *v1alpha1.NodePool) int { return cmp.Compare(a.Name, b.Name) })
	for _, pool := range pools {
		subnets := a.usable(pool, devices, taken)
		for _, d := range membersOf(x, pool.Name) {
			if len(d.PodCIDRs) > 0 || len(subnets) == 0 {
				continue
			}
			if have := parseOffer(d.Offer); len(have) > 0 && within(have, subnets) {
				continue
			}
			subnets, words := offTheWay(d, subnets)
			a.Invalid[pool.Name] = append(a.Invalid[pool.Name], words...)
			offer := Offer{Node: d.Name}
			for _, v6 := range []bool{false, true} {
				if p, ok := free(subnets, v6, used[""], used[pool.Spec.Network]); ok {
					offer.Ranges = append(offer.Ranges, p)
				}
			}
			if len(offer.Ranges) == 0 {
				a.Full[pool.Name]++
				continue
			}
			for _, p := range offer.Ranges {
				note(pool.Spec.Network, p)
			}
			a.Offers = append(a.Offers, offer)
		}
	}
	return a
}

// held are the ranges that a node keeps from others: those that count, and of a device those that
// it may have by an offer, whether it has taken it or left its pool since. A device can write both,
// so it holds no more than it would be given.
func held(x *Index, d *Device) []netip.Prefix {
	all := slices.Clone(x.ranges[d.Name])
	if d.Labels == nil {
		return all
	}
	for _, claims := range [][]netip.Prefix{d.PodCIDRs, parseOffer(d.Offer)} {
		for _, p := range claims[:min(len(claims), maxClaims)] {
			if p.Addr().Is4() && p.Bits() >= bits4 || p.Addr().Is6() && p.Bits() >= bits6 {
				all = append(all, p)
			}
		}
	}
	return all
}

// offTheWay splits the subnets into those that a device is not on, and the others, of which it is
// offered no range. The device itself reports that, so it must not cost another one its range.
func offTheWay(d *Device, subnets []netip.Prefix) (good []netip.Prefix, words []string) {
	for _, s := range subnets {
		on := ""
		for _, lan := range d.LANs {
			if s.Overlaps(lan) {
				on = "is on " + lan.String()
			}
		}
		for _, one := range d.Addresses {
			if ip, err := netip.ParseAddr(one); err == nil && on == "" && s.Contains(ip) {
				on = "has the address " + ip.String()
			}
		}
		if on == "" {
			good = append(good, s)
		} else {
			words = append(words, fmt.Sprintf("node %s %s: it is offered no range of %s", d.Name, on, s))
		}
	}
	return good, words
}

func membersOf(x *Index, pool string) []*Device {
	for _, g := range x.of {
		if g.pool.Name == pool {
			return g.devices
		}
	}
	return nil
}

// usable are the subnets of a pool that overlap no taken prefix.
func (a *Allocation) usable(pool *v1alpha1.NodePool, devices []*Device, taken []Taken) (good []netip.Prefix) {
	for i, text := range pool.Spec.PodSubnets {
		p, err := netip.ParsePrefix(text)
		bad := ""
		if err != nil {
			bad = err.Error()
		}
		for _, t := range taken {
			if err == nil && bad == "" && p.Overlaps(t.Prefix) {
				bad = fmt.Sprintf("overlaps %s, %s", t.Prefix, t.Why)
			}
		}
		for _, d := range devices {
			if d.Labels != nil || err != nil || bad != "" {
				continue // a device's own report is judged where it is offered a range
			}
			for _, one := range d.Addresses {
				if ip, err := netip.ParseAddr(one); err == nil && p.Contains(ip) {
					bad = fmt.Sprintf("has %s, an address of node %s", ip, d.Name)
				}
			}
		}
		if bad != "" {
			a.Invalid[pool.Name] = append(a.Invalid[pool.Name], fmt.Sprintf("podSubnets[%d]: %s %s", i, text, bad))
			continue
		}
		good = append(good, p.Masked())
	}
	return good
}

func parseOffer(text string) (all []netip.Prefix) {
	for part := range strings.SplitSeq(text, ",") {
		if p, err := netip.ParsePrefix(part); err == nil {
			all = append(all, p.Masked())
		}
	}
	return all
}

func within(ranges, subnets []netip.Prefix) bool {
	return !slices.ContainsFunc(ranges, func(r netip.Prefix) bool {
		return !slices.ContainsFunc(subnets, func(s netip.Prefix) bool { return s.Overlaps(r) })
	})
}

// free is the first range of a family that overlaps no used one.
func free(subnets []netip.Prefix, v6 bool, used ...map[netip.Prefix]bool) (netip.Prefix, bool) {
	bits := bits4
	if v6 {
		bits = bits6
	}
	for _, s := range subnets {
		if s.Addr().Is6() != v6 || s.Bits() > bits {
			continue
		}
		count := uint64(1) << min(bits-s.Bits(), 16)
		for n := range min(count, maxTries) {
			p := nth(s, bits, n)
			if !slices.ContainsFunc(used, func(u map[netip.Prefix]bool) bool { return overlapsAny(u, p) }) {
				return p, true
			}
		}
	}
	return netip.Prefix{}, false
}

// overlapsAny checks the exact range first: nearly all used ranges have its length.
func overlapsAny(used map[netip.Prefix]bool, p netip.Prefix) bool {
	if used[p] {
		return true
	}
	for u := range used {
		if u.Bits() != p.Bits() && u.Overlaps(p) {
			return true
		}
	}
	return false
}

// nth is the n-th range of a length within a subnet.
func nth(s netip.Prefix, bits int, n uint64) netip.Prefix {
	if s.Addr().Is4() {
		b := s.Addr().As4()
		v := binary.BigEndian.Uint32(b[:]) + uint32(n)<<(32-bits)
		binary.BigEndian.PutUint32(b[:], v)
		return netip.PrefixFrom(netip.AddrFrom4(b), bits)
	}
	b := s.Addr().As16()
	v := binary.BigEndian.Uint64(b[:8]) + n<<(64-bits)
	binary.BigEndian.PutUint64(b[:8], v)
	return netip.PrefixFrom(netip.AddrFrom16(b), bits)
}
