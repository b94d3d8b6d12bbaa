// Package claim judges the addresses that a Node, a report or an object claims as its own: a claim
// that its author alone controls must not take a network from others.
//
// It owns the rules that cloud and devices share: which networks no claim may touch (Guards), and
// which ranges of pods count (Count). It does not depend on the caller, and reads no object:
// callers pass the protected networks. All of it is pure.
package claim

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// Guard is a network that no claim may touch.
type Guard struct {
	Prefix netip.Prefix
	Why    string // completes "overlaps 10.0.0.1/32, ..."
}

// Guards is a list of them. A lookup costs the length of the list, for 0.0.0.0/0 as for a host.
type Guards []Guard

// Standard are the networks that have their meaning from the standards: loopback, link-local,
// multicast (RFC 6890, RFC 4291).
func Standard() Guards {
	return Guards{
		{netip.MustParsePrefix("0.0.0.0/8"), "the networks of this host"},
		{netip.MustParsePrefix("127.0.0.0/8"), "the loopback network"},
		{netip.MustParsePrefix("169.254.0.0/16"), "the link-local network"},
		{netip.MustParsePrefix("224.0.0.0/4"), "the multicast networks"},
		{netip.MustParsePrefix("255.255.255.255/32"), "the broadcast address"},
		{netip.MustParsePrefix("::/127"), "the loopback address"},
		{netip.MustParsePrefix("fe80::/10"), "the link-local networks"},
		{netip.MustParsePrefix("ff00::/8"), "the multicast networks"},
	}
}

// Add adds a network.
func (g *Guards) Add(p netip.Prefix, why string) {
	if p.IsValid() {
		*g = append(*g, Guard{p.Masked(), why})
	}
}

// Host adds an address.
func (g *Guards) Host(a netip.Addr, why string) {
	if a.IsValid() {
		a = a.WithZone("").Unmap()
		g.Add(netip.PrefixFrom(a, a.BitLen()), why)
	}
}

// Touched is the first network that p covers, or is covered by.
func (g Guards) Touched(p netip.Prefix) (Guard, bool) {
	i := slices.IndexFunc(g, func(one Guard) bool { return one.Prefix.Overlaps(p) })
	if i < 0 {
		return Guard{}, false
	}
	return g[i], true
}

// TouchedBy is the first network that an address is in.
func (g Guards) TouchedBy(a netip.Addr) (Guard, bool) {
	a = a.WithZone("").Unmap()
	if !a.IsValid() {
		return Guard{}, false
	}
	return g.Touched(netip.PrefixFrom(a, a.BitLen()))
}

// The length of a range that is offered to a device for its pods, and the shortest that counts
// where the cluster gives the ranges (kube-controller-manager, which cloudcore can't ask).
const (
	Offered4, Offered6   = 24, 64
	shortest4, shortest6 = 16, 48
)

// Counts gives the reason a device's range for its pods does not count for others; "" where it
// does. With subnets, those of its NodePool, it is inside one of them and as long as those that are
// offered; without, it is no longer network than a cluster gives to a node.
func Counts(r netip.Prefix, subnets []netip.Prefix) string {
	least := shortest4
	if r.Addr().Is6() {
		least = shortest6
	}
	if len(subnets) > 0 {
		least = Offered4
		if r.Addr().Is6() {
			least = Offered6
		}
		if !slices.ContainsFunc(subnets, func(s netip.Prefix) bool { return s.Bits() <= r.Bits() && s.Contains(r.Addr()) }) {
			return "it is outside of the pool's podSubnets"
		}
	}
	if r.Bits() < least {
		return "it is larger than a device's range"
	}
	return ""
}

// OfNode is Counts for a caller that does not know a node's pool. An edge Node's range counts
// inside the podSubnets of any pool; a range of another Node, which the cluster gave, where it is
// no larger than a cluster's ranges.
func OfNode(r netip.Prefix, edge bool, subnets []netip.Prefix) string {
	switch {
	case edge && len(subnets) == 0:
		return "no pool has podSubnets"
	case edge:
		return Counts(r, subnets)
	}
	return Counts(r, nil)
}

// maxAddresses is how many addresses of an edge count: it writes them itself, and must not use up a
// pool's.
const maxAddresses = 8

// Addresses are a Node's, those in its LANs too.
func Addresses(n *corev1.Node) (all []netip.Addr) {
	for text := range strings.SplitSeq(n.Annotations[v1alpha1.LANAddressesAnnotation], ",") {
		if p, err := netip.ParsePrefix(strings.TrimSpace(text)); err == nil {
			all = append(all, p.Addr().Unmap())
		}
	}
	for _, a := range n.Status.Addresses {
		if addr, err := netip.ParseAddr(a.Address); err == nil {
			all = append(all, addr.Unmap())
		}
	}
	if v1alpha1.IsEdge(n.Labels) {
		all = all[:min(len(all), maxAddresses)]
	}
	return all
}

// Prefixes parses the texts that are networks, and ignores the others.
func Prefixes(texts []string) (all []netip.Prefix) {
	for _, text := range texts {
		if p, err := netip.ParsePrefix(text); err == nil {
			all = append(all, p.Masked())
		}
	}
	return all
}
