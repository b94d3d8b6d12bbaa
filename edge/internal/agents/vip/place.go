package vip

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	addresses "github.com/skerry-io/skerry/common/claim" // claim is another thing here
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netif"
)

// guard gives the reason an address must not be claimed, or "".
func guard(f Facts, address netip.Addr) string {
	for _, g := range slices.Concat(addresses.Standard(), f.Guards) {
		if g.Prefix.Contains(address) {
			return fmt.Sprintf("%s is in %s, %s: this node does not claim it", address, g.Prefix, g.Why)
		}
	}
	for _, i := range f.Interfaces {
		for _, p := range i.Prefixes {
			if p.Addr() == address {
				return fmt.Sprintf("%s is this node's own address on %s", address, i.Name)
			}
		}
		if slices.Contains(i.Gateways, address) {
			return fmt.Sprintf("%s is a gateway of this node on %s: it does not claim it", address, i.Name)
		}
	}
	for _, n := range f.VIPs {
		for _, x := range n.Spec.Nodes {
			if x.Address == address.String() {
				return fmt.Sprintf("%s is an address of node %s", address, x.Name)
			}
		}
	}
	return ""
}

// place finds the interface for an address: one whose network it is in, of those the one with the
// smallest. An interface that the pool names must be on the network, too: elsewhere the address
// would reach no client, and could be another host's. Interfaces of pods don't count.
func place(f Facts, asked string, address netip.Addr) (iface netif.Interface, own netip.Prefix, fault string) {
	if why := guard(f, address); why != "" {
		return iface, own, why
	}
	if asked != "" && !slices.ContainsFunc(f.Interfaces, func(i netif.Interface) bool { return i.Name == asked }) {
		return iface, own, fmt.Sprintf("the node has no interface %.40s, or it is down", strconv.QuoteToASCII(asked))
	}
	best := -1
	for _, i := range f.Interfaces {
		if asked != "" && i.Name != asked {
			continue
		}
		for _, p := range i.Prefixes {
			if p.Contains(address) && p.Bits() > best && !podNetwork(f, p) {
				iface, own, best = i, p, p.Bits()
			}
		}
	}
	switch {
	case best >= 0 && reserved(own, address):
		return iface, own, fmt.Sprintf("%s is the address of network %s itself, or its broadcast address", address, own.Masked())
	case best >= 0:
		return iface, own, ""
	case asked != "":
		return iface, own, fmt.Sprintf("interface %s is not on the network of %s", asked, address)
	}
	return iface, own, "no interface of the node is on the network of " + address.String()
}

// podNetwork reports whether pods of this node have addresses in a network, such as a bridge's.
func podNetwork(f Facts, network netip.Prefix) bool {
	for _, p := range f.Pods {
		if p.Spec.HostNetwork {
			continue
		}
		for _, ip := range p.Status.PodIPs {
			if a, err := netip.ParseAddr(ip.IP); err == nil && network.Contains(a) {
				return true
			}
		}
	}
	return false
}

// reserved reports whether no host may have an address in a network: the network's own and
// its broadcast address, but both of a /31 (RFC 3021), and the subnet-router anycast address
// (RFC 4291, 2.6.1).
func reserved(network netip.Prefix, address netip.Addr) bool {
	host := address.BitLen() - network.Bits()
	if host <= 1 {
		return false
	}
	if address == network.Masked().Addr() {
		return true
	}
	if address.Is6() {
		return false
	}
	next := address.Next()
	return !next.IsValid() || !network.Contains(next)
}
