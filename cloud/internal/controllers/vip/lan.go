package vip

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// lans names which networks are one LAN although pools name them differently: a node has both on
// one interface, as it reported. Virtual IPs of one LAN must not share addresses or VRIDs.
type lans struct {
	parent  map[string]string
	reasons map[string]string         // by network that is not alone on its LAN
	nets    map[string][]netip.Prefix // by network: the networks of its nodes' interfaces
}

// lanAddress is an address on a LAN, and lanFamily a family there.
type lanAddress struct {
	lan     string
	address netip.Addr
}

type lanFamily struct {
	lan    string
	family family
}

// readLANs gathers the nodes' reports of their interfaces.
func readLANs(vips []*v1alpha1.VirtualIP) lans {
	l := lans{parent: map[string]string{}, reasons: map[string]string{}, nets: map[string][]netip.Prefix{}}
	type place struct{ node, iface string }
	first := map[place]string{}
	vips = slices.Clone(vips)
	slices.SortFunc(vips, func(a, b *v1alpha1.VirtualIP) int { return older(a, b) })
	for _, v := range vips {
		network := v.Spec.Network
		for _, n := range v.Status.Nodes {
			if p, err := netip.ParsePrefix(n.Address); err == nil && !slices.Contains(l.nets[network], p.Masked()) {
				l.nets[network] = append(l.nets[network], p.Masked())
			}
			if n.Interface == "" {
				continue
			}
			at := place{n.Name, n.Interface}
			other, known := first[at]
			if !known {
				first[at] = network
				continue
			}
			if l.of(other) != l.of(network) {
				l.parent[l.of(network)] = l.of(other)
				why := fmt.Sprintf("networks %q and %q are one LAN: node %s has both on interface %s", other, network, n.Name, n.Interface)
				l.reasons[network] = why
				if l.reasons[other] == "" {
					l.reasons[other] = why
				}
			}
		}
	}
	return l
}

// of is the network that stands for a network's LAN.
func (l lans) of(network string) string {
	for {
		next, ok := l.parent[network]
		if !ok {
			return network
		}
		network = next
	}
}

func (l lans) same(a, b string) bool { return l.of(a) == l.of(b) }

// why gives the reason a network is not alone on its LAN; "" where it is.
func (l lans) why(network string) string { return l.reasons[network] }

// prefixes are the networks that nodes have on a LAN.
func (l lans) prefixes(network string) []netip.Prefix {
	var out []netip.Prefix
	for name, all := range l.nets {
		if l.same(name, network) {
			out = append(out, all...)
		}
	}
	return out
}

// noHosts are the addresses of a network that no host may have: those of the network itself
// and of its broadcast (but both of a /31, RFC 3021), and the subnet-router anycast address
// (RFC 4291, 2.6.1).
func noHosts(p netip.Prefix) []span {
	if p.Addr().BitLen()-p.Bits() <= 1 {
		return nil
	}
	if p.Addr().Is4() {
		return []span{one(p.Masked().Addr()), one(last(p.Masked()))}
	}
	return []span{one(p.Masked().Addr())}
}
