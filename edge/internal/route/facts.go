package route

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/kernel/netroute"
)

// verdict is why a route is not as wished.
type verdict struct{ reason, message string }

func judge(reason, format string, args ...any) *verdict {
	return &verdict{reason, fmt.Sprintf(format, args...)}
}

// Guard is a network that no StaticRoute may cover.
type Guard struct {
	Prefix netip.Prefix
	Why    string // completes "overlaps 10.0.0.1/32, ..."
}

// builtin are the networks that have their meaning from the standards: loopback, link-local, multicast (RFC 6890, RFC 4291).
func builtin() []Guard {
	return []Guard{
		{netip.MustParsePrefix("127.0.0.0/8"), "the loopback network"},
		{netip.MustParsePrefix("224.0.0.0/4"), "the multicast networks"},
		{netip.MustParsePrefix("255.255.255.255/32"), "the broadcast address"},
		{netip.MustParsePrefix("::1/128"), "the loopback address"},
		{netip.MustParsePrefix("fe80::/10"), "the link-local networks"},
		{netip.MustParsePrefix("ff00::/8"), "the multicast networks"},
	}
}

// facts are what a node knows of itself when it judges its claims. They are made anew for each pass and not changed in it.
type facts struct {
	guards   []Guard
	own      map[netip.Addr]string // to the interface
	links    map[string]netroute.Link
	detected map[netip.Addr]netroute.Hop // by probe
}

// guard finds the first network that the subnet would cover or is covered by. Prefix arithmetic: the cost is that of the list, for 0.0.0.0/0 as for a host.
func (f *facts) guard(subnet netip.Prefix) *verdict {
	for _, g := range f.guards {
		if g.Prefix.Overlaps(subnet) {
			return judge(v1alpha1.RouteProtected, "%s overlaps %s, %s: a route for it could cut this node off", subnet, g.Prefix, g.Why)
		}
	}
	return nil
}

// resolve fills in what the claim leaves to the node, and judges what can be judged without the kernel. Whether a gateway can be reached is the kernel's to say.
func (f *facts) resolve(c *claim) (netroute.Route, *verdict) {
	r := c.route
	if c.invalid != "" {
		return r, judge(v1alpha1.RouteInvalid, "%s", c.invalid)
	}
	if v := f.guard(r.Prefix); v != nil {
		return r, v
	}
	if r.Source.IsValid() {
		if _, mine := f.own[r.Source]; !mine {
			return r, judge(v1alpha1.RouteSourceMissing, "preferredSource %s is not an address of this node", r.Source)
		}
	}
	if c.probe.IsValid() {
		hop, ok := f.detected[c.probe]
		if !ok {
			return r, judge(v1alpha1.RouteNoGateway, "no gateway is given, and this node's main table has no way to %s to take the gateway of; set gateway, or gatewayDetection.probeIP",
				c.probe)
		}
		r.Hops = []netroute.Hop{hop}
	}
	for _, h := range r.Hops {
		if h.Interface != "" {
			l, ok := f.links[h.Interface]
			switch {
			case !ok:
				return r, judge(v1alpha1.RouteInterfaceMissing, "this node has no interface %s", h.Interface)
			case !l.Up && len(r.Hops) == 1:
				return r, judge(v1alpha1.RouteInterfaceDown, "interface %s is down", h.Interface)
			}
		}
		if on, mine := f.own[h.Gateway]; mine {
			return r, judge(v1alpha1.RouteGatewayUnreachable, "gateway %s is this node's own address on %s", h.Gateway, on)
		}
	}
	return r, nil
}

// refused puts the kernel's refusal into words.
func (f *facts) refused(r netroute.Route, err error) *verdict {
	table := fmt.Sprintf("table %d", r.Table)
	if r.Table == netroute.Main {
		table = "the main table"
	}
	switch {
	case errors.Is(err, netroute.ErrNoGateway):
		for _, h := range r.Hops {
			if l, ok := f.linkOf(h.Gateway); ok && !l.Up {
				return judge(v1alpha1.RouteInterfaceDown, "interface %s, which gateway %s is on, is down", l.Name, h.Gateway)
			}
		}
		return judge(v1alpha1.RouteGatewayUnreachable, "gateway %s is on no network that this node can reach directly from %s", gateways(r.Hops), table)
	case errors.Is(err, netroute.ErrNoLink):
		return judge(v1alpha1.RouteInterfaceMissing, "this node lacks an interface of the route: %v", err)
	case errors.Is(err, netroute.ErrLinkDown):
		return judge(v1alpha1.RouteInterfaceDown, "an interface of the route is down")
	case errors.Is(err, netroute.ErrNoSource):
		return judge(v1alpha1.RouteSourceMissing, "the kernel refuses gateway %s with preferredSource %s: either the one is on no network of this node, or the other is not its address",
			gateways(r.Hops), r.Source)
	case errors.Is(err, netroute.ErrExists):
		return judge(v1alpha1.RouteConflict, "another route for %s in %s with metric %d is there already", r.Prefix, table, r.Metric)
	}
	return judge(v1alpha1.RouteRefused, "the kernel refuses the route: %v", err)
}

// linkOf is the interface whose network an address is in.
func (f *facts) linkOf(a netip.Addr) (netroute.Link, bool) {
	for _, l := range f.links {
		if slices.ContainsFunc(l.Addresses, func(p netip.Prefix) bool { return p.Contains(a) }) {
			return l, true
		}
	}
	return netroute.Link{}, false
}

func gateways(hops []netroute.Hop) string {
	text := ""
	for _, h := range hops {
		if text != "" {
			text += ", "
		}
		if h.Gateway.IsValid() {
			text += h.Gateway.String()
		} else {
			text += h.Interface
		}
	}
	return text
}

// resolved is a route as the status shows it, hops in order.
func resolved(r netroute.Route) *v1alpha1.ResolvedRoute {
	out := &v1alpha1.ResolvedRoute{Subnet: r.Prefix.String(), Table: int64(r.Table), Metric: int64(r.Metric), MTU: int32(r.MTU)}
	switch r.Type {
	case netroute.Blackhole:
		out.Type = v1alpha1.RouteBlackhole
	case netroute.Unreachable:
		out.Type = v1alpha1.RouteUnreachable
	case netroute.Prohibit:
		out.Type = v1alpha1.RouteProhibit
	default:
		out.Type = v1alpha1.RouteUnicast
	}
	if r.Source.IsValid() {
		out.PreferredSource = r.Source.String()
	}
	for _, h := range r.Hops {
		hop := v1alpha1.ResolvedHop{Interface: h.Interface, Weight: int32(max(h.Weight, 1)), OnLink: h.OnLink}
		if h.Gateway.IsValid() {
			hop.Gateway = h.Gateway.String()
		}
		out.NextHops = append(out.NextHops, hop)
	}
	slices.SortFunc(out.NextHops, func(a, b v1alpha1.ResolvedHop) int {
		return cmp.Or(cmp.Compare(a.Gateway, b.Gateway), cmp.Compare(a.Interface, b.Interface))
	})
	return out
}
