package route

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netroute"
)

// facts are a node's own state for planning. They are from one reading of the kernel, and not
// changed while it plans.
type facts struct {
	guards   guards
	own      map[netip.Addr]string             // the interface of each own address
	links    map[string]netroute.Link          // by name
	direct   map[string][]netip.Prefix         // by interface: networks reached through it without a gateway
	detected map[netip.Addr]netroute.Hop       // by probe
	versions map[string]uint64                 // by interface: grows when it changes
	standing map[netroute.Key][]netroute.Found // of others, in the way of a rehearsal
}

// resolve fills in the fields that a StaticRoute leaves to the node, and validates as far as
// possible without the kernel: of several hops it takes those that can carry traffic, and lost
// gives the reason the others can't.
func (f *facts) resolve(c *claim) (r netroute.Route, lost string, bad *rejection) {
	r = c.route
	if c.invalid != "" {
		return r, "", reject(v1alpha1.RouteInvalid, "%s", c.invalid)
	}
	if bad := f.guards.check(r.Prefix); bad != nil {
		return r, "", bad
	}
	if c.covers != "" {
		return r, "", reject(v1alpha1.RouteProtected, "%s overlaps %s: a route for it could cut this node off from them; choose subnets that leave them out", r.Prefix, c.covers)
	}
	if r.Source.IsValid() {
		if _, mine := f.own[r.Source]; !mine {
			return r, "", reject(v1alpha1.RouteSourceMissing, "preferredSource %s is not an address of this node", r.Source)
		}
	}
	if c.probe.IsValid() {
		hop, ok := f.detected[c.probe]
		if !ok {
			return r, "", reject(v1alpha1.RouteNoGateway, "no gateway is given, and this node's main table has no way to %s to take "+
				"the gateway of; set gateway, or gatewayDetection.probeIP", c.probe)
		}
		r.Hops = []netroute.Hop{hop}
	}
	var living []netroute.Hop
	var why []string
	for _, h := range r.Hops {
		if dead := f.judge(h, len(r.Hops) > 1); dead == nil {
			living = append(living, h)
		} else {
			why = append(why, dead.message)
			bad = dead
		}
	}
	if len(living) == 0 {
		return r, "", bad // of the last hop; nil for a route without hops
	}
	r.Hops = living
	return r, strings.Join(why, "; "), nil
}

// judge returns the reason why a hop can't carry traffic; nil if there is no reason. A single hop
// is left to the kernel, which considers more than interfaces (rules, other tables).
func (f *facts) judge(h netroute.Hop, several bool) *rejection {
	if on, mine := f.own[h.Gateway]; mine {
		return reject(v1alpha1.RouteGatewayUnreachable, "gateway %s is this node's own address on %s", h.Gateway, on)
	}
	if h.Interface != "" {
		l, ok := f.links[h.Interface]
		switch {
		case !ok:
			return reject(v1alpha1.RouteInterfaceMissing, "this node has no interface %s", h.Interface)
		case !l.Up:
			return reject(v1alpha1.RouteInterfaceDown, "interface %s is down", h.Interface)
		}
	}
	if !several || !h.Gateway.IsValid() || h.OnLink {
		return nil
	}
	down := ""
	for name, l := range f.links {
		switch {
		case h.Interface != "" && h.Interface != name || !f.onLink(h.Gateway, name):
		case l.Up:
			return nil
		default:
			down = name
		}
	}
	if down != "" {
		return reject(v1alpha1.RouteInterfaceDown, "interface %s, which gateway %s is on, is down", down, h.Gateway)
	}
	return reject(v1alpha1.RouteGatewayUnreachable, "gateway %s is on no network of this node", h.Gateway)
}

// onLink reports whether an address is reached through an interface without a gateway: its
// addresses' networks, and routes without a gateway.
func (f *facts) onLink(a netip.Addr, name string) bool {
	if a.IsLinkLocalUnicast() && a.Is6() {
		return true // RFC 4291: on each link
	}
	contains := func(p netip.Prefix) bool { return p.Contains(a) }
	return slices.ContainsFunc(f.links[name].Addresses, contains) || slices.ContainsFunc(f.direct[name], contains)
}

// stranded returns the gateway of a kernel route that is no longer on any network: after an address
// was removed from its interface the kernel keeps the route and drops its packets.
func (f *facts) stranded(r netroute.Found) *rejection {
	for _, h := range r.Hops {
		if h.Gateway.IsValid() && !h.OnLink && !f.onLink(h.Gateway, h.Interface) {
			return reject(v1alpha1.RouteDegraded, "the kernel has the route, but its gateway %s is on no network of %s any more", h.Gateway, h.Interface)
		}
	}
	return nil
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

// refused puts the kernel's refusal of a route into words.
func (f *facts) refused(r netroute.Route, err error) *rejection {
	table := fmt.Sprintf("table %d", r.Table)
	if r.Table == netroute.Main {
		table = "the main table"
	}
	switch {
	case errors.Is(err, netroute.ErrNoGateway):
		for _, h := range r.Hops {
			if l, ok := f.linkOf(h.Gateway); ok && !l.Up {
				return reject(v1alpha1.RouteInterfaceDown, "interface %s, which gateway %s is on, is down", l.Name, h.Gateway)
			}
		}
		return reject(v1alpha1.RouteGatewayUnreachable, "gateway %s is on no network that this node can reach directly from %s",
			gateways(r.Hops), table)
	case errors.Is(err, netroute.ErrNoLink):
		return reject(v1alpha1.RouteInterfaceMissing, "this node lacks an interface of the route: %v", err)
	case errors.Is(err, netroute.ErrLinkDown):
		return reject(v1alpha1.RouteInterfaceDown, "an interface of the route is down")
	case errors.Is(err, netroute.ErrNoSource):
		return reject(v1alpha1.RouteSourceMissing, "the kernel refuses gateway %s with preferredSource %s: "+
			"either the one is on no network of this node, or the other is not its address", gateways(r.Hops), r.Source)
	case errors.Is(err, netroute.ErrExists):
		return reject(v1alpha1.RouteConflict, "another route for %s in %s with metric %d is there already", r.Prefix, table, r.Metric)
	}
	return reject(v1alpha1.RouteRefused, "the kernel refuses the route: %v", err)
}

// linkState sums up the changes of the interfaces of a route: when it is another than before, the
// kernel itself may have dropped the route.
func (f *facts) linkState(r netroute.Found) uint64 {
	sum := uint64(0)
	for _, h := range r.Hops {
		sum += f.versions[h.Interface]
	}
	return sum
}

// foreign describes a route that Skerry didn't make.
func foreign(r netroute.Found) string {
	return fmt.Sprintf("a route that Skerry didn't make (protocol %d, via %s) has the same table, subnet and metric", r.Protocol, gateways(r.Hops))
}
