package podnet

import (
	"net/netip"
	"slices"

	"github.com/skerry-io/skerry/edge/internal/kernel/network/netroute"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/wireguard"
	"github.com/skerry-io/skerry/edge/internal/site/contact"
	"github.com/skerry-io/skerry/edge/internal/site/peers"
)

// encrypt adds a route to a device's range by WireGuard; false if that is impossible, yet or
// permanently. The interface is created then too: the other device waits for its key.
func (p *Plan) encrypt(s State, m peers.Member, key netroute.Key, own []netip.Prefix) (netroute.Route, bool) {
	if !s.Tunnels {
		return netroute.Route{}, false
	}
	if p.Tunnel == nil {
		p.Tunnel = &wireguard.Config{Port: s.TunnelPort}
	}
	other := s.Tunnel(m.Node)
	if other == (contact.Tunnel{}) {
		return netroute.Route{}, false
	}
	i := slices.IndexFunc(p.Tunnel.Peers, func(x wireguard.Peer) bool { return x.Key == other.Key })
	if i < 0 {
		peer := wireguard.Peer{Key: other.Key}
		if at := s.At(m.Node); at.IsValid() {
			peer.Endpoint = netip.AddrPortFrom(at, other.Port)
		}
		p.Tunnel.Peers = append(p.Tunnel.Peers, peer)
		i = len(p.Tunnel.Peers) - 1
	}
	p.Tunnel.Peers[i].Allowed = append(p.Tunnel.Peers[i].Allowed, key.Prefix)
	// Packets of this device itself must come from its own range: the other end takes
	// no others from it.
	r := netroute.Route{Key: key, Type: netroute.Unicast, Hops: []netroute.Hop{{Interface: wireguard.Interface, Weight: 1}}}
	if i := slices.IndexFunc(own, func(o netip.Prefix) bool { return o.Addr().Is4() == key.Prefix.Addr().Is4() }); i >= 0 {
		r.Source = gateway(own[i])
	}
	return r, true
}

// gateway is the address that ptp gives this device towards its pods, the first of the range: pods
// answer packets from it.
func gateway(own netip.Prefix) netip.Addr { return own.Masked().Addr().Next() }

// finishTunnel gives the interface its addresses, and the MTU that leaves room in a packet of least
// bytes; pods have that too. It returns it.
func (p *Plan) finishTunnel(own []netip.Prefix, least int) int {
	overhead := wireguard.Overhead4
	if slices.ContainsFunc(p.Tunnel.Peers, func(x wireguard.Peer) bool { return x.Endpoint.Addr().Is6() }) {
		overhead = wireguard.Overhead6
	}
	least = inTunnel(least, overhead)
	p.Tunnel.MTU = least
	for _, r := range own {
		p.Tunnel.Addresses = append(p.Tunnel.Addresses, gateway(r))
	}
	return least
}

// inTunnel is the part of an MTU (0: not known) that is left to packets in a tunnel.
func inTunnel(mtu, overhead int) int {
	if mtu == 0 {
		mtu = 1500
	}
	return mtu - overhead
}

// without is a device without a tunnel, and why.
func without(s State, m peers.Member) string {
	if !s.Tunnels {
		return m.Node + " (this kernel has no WireGuard)"
	}
	return m.Node + " (it has not said its key)"
}
