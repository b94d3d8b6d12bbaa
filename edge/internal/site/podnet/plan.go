package podnet

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/claim"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/lan"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netroute"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/wireguard"
	"github.com/skerry-io/skerry/edge/internal/site/peers"
)

// Make computes the plan.
func Make(s State) Plan {
	p := Plan{Routes: map[netroute.Key]netroute.Route{}}
	own := rangesOf(s.Node)
	p.Addresses = addresses(s.Networks, own)
	if len(s.Node.Spec.PodCIDRs) == 0 && s.Node.Annotations[v1alpha1.PodCIDROfferAnnotation] != "" {
		p.PodCIDRs = offered(s.Node.Annotations[v1alpha1.PodCIDROfferAnnotation])
	}
	switch {
	case s.Site != nil && s.Site.PodNetwork == string(v1alpha1.PodNetworkNone):
		p.HandsOff, p.Reason, p.Message, p.PodCIDRs = true, ReasonOff, "the NodePool says podNetwork: None", nil
		return p
	case len(s.Foreign) > 0:
		p.HandsOff, p.Reason, p.Message, p.PodCIDRs = true, ReasonForeign, "the pod network is made by "+strings.Join(s.Foreign, ", "), nil
		return p
	case len(own) == 0 && (len(p.PodCIDRs) > 0 || !s.Waited && !s.Current.IsValid()):
		p.Reason, p.Message = ReasonNoPodCIDR, "the Node has no podCIDR yet"
		return p
	}
	p.Reason, p.Message = ReasonReady, "pods of this device are in "+join(own)
	var found findings
	if len(own) > 0 {
		found.strays = p.strays(s.Pods, own)
	} else {
		r, ok := local(s)
		if !ok {
			p.Reason = ReasonNoPodCIDR
			p.Message = "the Node has no podCIDR, and networks or routes of this device cover all of " + join(s.Subnets) +
				": give its NodePool podSubnets, or name other ranges in modules.podNetwork.subnets"
			return p
		}
		own = []netip.Prefix{r}
		p.Message = "pods of this device are in " + r.String() + ", of which the cluster knows nothing: for pods that other devices reach give its NodePool podSubnets"
	}
	p.Rules.Pods = own
	least := mtu(s.Networks)
	if s.Site == nil {
		least = p.keep(s.Made, least)
	} else {
		for _, m := range s.Site.Members {
			if m.Node != s.Self {
				p.route(s, m, own, &found)
			}
		}
	}
	if p.Tunnel != nil {
		least = p.finishTunnel(own, least)
	}
	p.Conflist = conflist(own, least)
	found.judge(&p, own)
	return p
}

// keep leaves the present state, and its packets take the same path. It returns the MTU of pods:
// with a tunnel the outer protocol is unknown too, so it is the minimum.
func (p *Plan) keep(made []netroute.Route, least int) int {
	p.Routes = nil
	tunnel := false
	for _, r := range made {
		p.Rules.Others = append(p.Rules.Others, r.Key.Prefix)
		p.Rules.Inside = append(p.Rules.Inside, r.Key.Prefix)
		for _, hop := range r.Hops {
			if hop.Gateway.IsValid() {
				neighbour := netip.PrefixFrom(hop.Gateway, hop.Gateway.BitLen())
				p.Rules.Inside, p.Rules.Neighbours = append(p.Rules.Inside, neighbour), append(p.Rules.Neighbours, neighbour)
			}
			tunnel = tunnel || hop.Interface == wireguard.Interface
		}
	}
	if tunnel {
		least = inTunnel(least, wireguard.Overhead6)
	}
	return least
}

// maxStrays bounds how many pods a message names.
const maxStrays = 8

// strays sees to pods outside the device's ranges: they reach the network as before. It returns
// their addresses for the message.
func (p *Plan) strays(pods []netip.Addr, own []netip.Prefix) (texts []string) {
	for _, a := range pods {
		if slices.ContainsFunc(own, func(r netip.Prefix) bool { return r.Contains(a) }) {
			continue
		}
		p.Rules.Strays = append(p.Rules.Strays, netip.PrefixFrom(a, a.BitLen()))
		texts = append(texts, a.String())
	}
	slices.Sort(texts)
	if more := len(texts) - maxStrays; more > 0 {
		texts = append(texts[:maxStrays], fmt.Sprintf("%d more", more))
	}
	return texts
}

// findings are a plan's errors of other devices.
type findings struct{ conflicts, away, unencrypted, strays, tunnels []string }

func (f findings) judge(p *Plan, own []netip.Prefix) {
	names := func(all []string) string { return strings.Join(slices.Compact(all), ", ") }
	switch {
	case len(f.conflicts) > 0:
		p.Reason, p.Message = ReasonConflict, strings.Join(f.conflicts, "; ")
	case len(f.unencrypted) > 0:
		p.Reason, p.Message = ReasonNoTunnel, "the NodePool says podNetwork: WireGuard, and there is no tunnel to "+names(f.unencrypted)
	case len(f.away) > 0:
		p.Reason, p.Message = ReasonNotOnLink, "on no network of this device, and there is no tunnel to "+names(f.away)
	case len(f.strays) > 0:
		p.Reason = ReasonOldRange
		p.Message = fmt.Sprintf("other devices can't reach the pods at %s, which started before this device had %s: delete them, and their controllers recreate them",
			strings.Join(f.strays, ", "), join(own))
	case len(f.tunnels) > 0:
		p.Message += "; by WireGuard: " + names(f.tunnels)
	}
}

// route adds the route to a device's pods. A range that overlaps this device's own would take its
// own pods away: it is refused.
func (p *Plan) route(s State, m peers.Member, own []netip.Prefix, found *findings) {
	for _, r := range m.PodCIDRs {
		if slices.ContainsFunc(own, r.Overlaps) {
			found.conflicts = append(found.conflicts, fmt.Sprintf("device %s has %s too", m.Node, r))
			continue
		}
		if slices.ContainsFunc(s.Networks, func(n lan.Network) bool { return n.Prefix.Overlaps(r) }) {
			found.conflicts = append(found.conflicts, fmt.Sprintf("%s, of device %s, is a network that this device is on", r, m.Node))
			continue
		}
		if why := refused(s, m, r); why != "" {
			found.conflicts = append(found.conflicts, why)
			continue
		}
		claimed := m.Node + " " + r.String()
		p.Claims = append(p.Claims, claimed)
		if s.Withheld != nil {
			if why := s.Withheld(claimed); why != "" {
				found.conflicts = append(found.conflicts, fmt.Sprintf("%s, of device %s, is not routed: %s", r, m.Node, why))
				continue
			}
		}
		key := netroute.NewKey(0, r, 0)
		if other, taken := overlapped(p.Routes, r); taken {
			found.conflicts = append(found.conflicts, fmt.Sprintf("%s is of device %s and of another, by %s", r, m.Node, by(other.Hops[0])))
			continue
		}
		always := s.Site.PodNetwork == string(v1alpha1.PodNetworkWireGuard)
		hop, ok := onLink(s, m, r.Addr().Is4())
		route := netroute.Route{Key: key, Type: netroute.Unicast, Hops: []netroute.Hop{hop}}
		if ok && !always {
			neighbour := netip.PrefixFrom(hop.Gateway, hop.Gateway.BitLen())
			p.Rules.Inside, p.Rules.Neighbours = append(p.Rules.Inside, neighbour), append(p.Rules.Neighbours, neighbour)
		} else if route, ok = p.encrypt(s, m, key, own); !ok {
			missing := &found.away
			if always {
				missing = &found.unencrypted
			}
			*missing = append(*missing, without(s, m))
			continue
		} else {
			found.tunnels = append(found.tunnels, m.Node)
		}
		p.Routes[key] = route
		p.Standing = append(p.Standing, claimed)
		p.Rules.Others = append(p.Rules.Others, r)
		p.Rules.Inside = append(p.Rules.Inside, r)
	}
}

// refused gives the reason there is no route for a range, whatever the Site contains, which may be
// one that was stored before cloudcore judged ranges; "" if it is valid.
func refused(s State, m peers.Member, r netip.Prefix) string {
	if why := claim.Counts(r, nil); why != "" {
		return fmt.Sprintf("%s, of device %s, is not routed: %s", r, m.Node, why)
	}
	if g, touched := s.Guards.Touched(r); touched {
		return fmt.Sprintf("%s, of device %s, is not routed: it overlaps %s, %s", r, m.Node, g.Prefix, g.Why)
	}
	if s.At == nil {
		return ""
	}
	// Where a device is connected, which its certificate showed; an address that it only reports
	// could take the pods of others away.
	for _, other := range s.Site.Members {
		if a := s.At(other.Node); a.IsValid() && r.Contains(a) {
			return fmt.Sprintf("%s, of device %s, is not routed: it has %s, an address of device %s", r, m.Node, a, other.Node)
		}
	}
	return ""
}

func overlapped(all map[netroute.Key]netroute.Route, r netip.Prefix) (netroute.Route, bool) {
	for key, route := range all {
		if key.Prefix.Overlaps(r) {
			return route, true
		}
	}
	return netroute.Route{}, false
}

func by(h netroute.Hop) string {
	if h.Gateway.IsValid() {
		return h.Gateway.String()
	}
	return h.Interface
}

// onLink is the way to a device on a network of this one: to where it is connected, else to where
// it reports itself, else to where the cloud has seen it.
func onLink(s State, m peers.Member, v4 bool) (netroute.Hop, bool) {
	all := m.Addresses
	if s.Said != nil {
		if said := s.Said(m.Node); len(said) > 0 {
			all = said // its present report, of each family: the cloud's addresses may be those of before it was cut off
		}
	}
	if s.At != nil {
		all = slices.Concat([]netip.Addr{s.At(m.Node)}, all)
	}
	for _, a := range all {
		if !a.IsValid() || a.Is4() != v4 {
			continue
		}
		for _, n := range s.Networks {
			if n.Prefix.Contains(a) && n.Prefix.Addr() != a {
				return netroute.Hop{Gateway: a, Interface: n.Interface, Weight: 1}, true
			}
		}
	}
	return netroute.Hop{}, false
}

func rangesOf(n *corev1.Node) (all []netip.Prefix) {
	for _, text := range n.Spec.PodCIDRs {
		if p, err := netip.ParsePrefix(text); err == nil {
			all = append(all, p.Masked())
		}
	}
	return all
}

func offered(text string) (all []string) {
	for part := range strings.SplitSeq(text, ",") {
		if p, err := netip.ParsePrefix(part); err == nil && len(all) < 2 {
			all = append(all, p.Masked().String())
		}
	}
	return all
}

func join(all []netip.Prefix) string {
	texts := make([]string, len(all))
	for i, p := range all {
		texts[i] = p.String()
	}
	return strings.Join(texts, ", ")
}

// virtual are interfaces that container runtimes and hypervisors make: their networks are
// not the device's.
func virtual(name string) bool {
	for _, prefix := range []string{"cni", "docker", "br-", "veth", "virbr", "flannel", "cali", "cilium", "kube-"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

const maxAddresses = 8

// addresses are those under which other devices may find this one, as the annotation has them.
func addresses(networks []lan.Network, own []netip.Prefix) string {
	var all []string
	for _, p := range onLAN(networks, own) {
		all = append(all, p.String())
	}
	slices.Sort(all)
	return strings.Join(all, ",")
}

// onLAN are this device's addresses on its networks, without pods'.
func onLAN(networks []lan.Network, own []netip.Prefix) (all []netip.Prefix) {
	for _, n := range networks {
		if !virtual(n.Interface) && !slices.ContainsFunc(own, n.Prefix.Overlaps) && len(all) < maxAddresses {
			all = append(all, n.Prefix)
		}
	}
	slices.SortFunc(all, func(a, b netip.Prefix) int { return strings.Compare(a.String(), b.String()) })
	return all
}

// mtu is the least of the device's networks: a pod's packet must go through any of them.
func mtu(networks []lan.Network) int {
	least := 0
	for _, n := range networks {
		if !virtual(n.Interface) && (least == 0 || n.MTU < least) {
			least = n.MTU
		}
	}
	return least
}

// local returns a range known only to this device, if the cluster assigns it no range: the first of
// the list that no network and no route of the device covers. Its current range stays as long as
// that is so, also where the cluster gave it before: of a device that lost its store and is cut
// off, or whose Node was deleted, the pods that run keep their addresses. Other devices may have
// the same, since all packets that leave the device have its address.
func local(s State) (netip.Prefix, bool) {
	if s.Current.IsValid() && !covered(s, s.Current) {
		return s.Current, true
	}
	for _, p := range s.Subnets {
		if !covered(s, p) {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

func covered(s State, p netip.Prefix) bool {
	return slices.ContainsFunc(s.Networks, func(n lan.Network) bool { return n.Prefix.Masked().Overlaps(p) }) ||
		slices.ContainsFunc(s.Taken, func(r netip.Prefix) bool { return r.Bits() > 0 && r.Overlaps(p) })
}
