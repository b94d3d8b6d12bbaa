package route

import (
	"net/netip"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	addresses "github.com/skerry-io/skerry/common/claim" // claim is another thing here
)

// Guard is a network that no StaticRoute may cover.
type Guard = addresses.Guard

// guards is a list of them. A lookup costs the length of the list, for 0.0.0.0/0 as for a host:
// prefix arithmetic, never a walk over addresses.
type guards []Guard

// standard are the networks that have their meaning from the standards: loopback, link-local,
// multicast (RFC 6890, RFC 4291).
func standard() guards {
	return guards{
		{Prefix: netip.MustParsePrefix("127.0.0.0/8"), Why: "the loopback network"},
		{Prefix: netip.MustParsePrefix("224.0.0.0/4"), Why: "the multicast networks"},
		{Prefix: netip.MustParsePrefix("255.255.255.255/32"), Why: "the broadcast address"},
		{Prefix: netip.MustParsePrefix("::1/128"), Why: "the loopback address"},
		{Prefix: netip.MustParsePrefix("fe80::/10"), Why: "the link-local networks"},
		{Prefix: netip.MustParsePrefix("ff00::/8"), Why: "the multicast networks"},
	}
}

func (g *guards) add(p netip.Prefix, why string) {
	if p.IsValid() {
		*g = append(*g, Guard{Prefix: p.Masked(), Why: why})
	}
}

func (g *guards) host(ip netip.Addr, why string) {
	if ip.IsValid() {
		ip = ip.WithZone("").Unmap()
		g.add(netip.PrefixFrom(ip, ip.BitLen()), why)
	}
}

// check finds the first network that the subnet would cover, or is covered by.
func (g guards) check(subnet netip.Prefix) *rejection {
	for _, one := range g {
		if one.Prefix.Overlaps(subnet) {
			return reject(v1alpha1.RouteProtected, "%s overlaps %s, %s: a route for it could cut this node off; choose subnets that leave it out", subnet, one.Prefix, one.Why)
		}
	}
	return nil
}
