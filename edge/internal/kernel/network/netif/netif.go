// Package netif reads the network interfaces of the device, switches those on that applications are
// given (Up), and gives the loopback interface addresses of the device's own (KeepLoopback).
//
// It owns the addresses with its label on the loopback interface, and refuses to touch others. An
// interface that is on stays on. Its functions may be called from any goroutine; they see the
// network namespace of the calling thread.
package netif

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/skerry-io/skerry/edge/internal/kernel/network/dump"
)

// Interface is a network interface.
type Interface struct {
	Name string
	// Prefixes are its networks: its addresses with the length of their network, except networks of
	// one address.
	Prefixes []netip.Prefix
	// Default: the device's default route uses it.
	Default bool
	// HardwareAddress is as text; "" without one.
	HardwareAddress string
	// Gateways are the next hops of routes through it, of the main table.
	Gateways []netip.Addr
}

// List is the interfaces that are up, but for the loopback, in the kernel's order.
func List() ([]Interface, error) {
	links, addresses, err := dump.Interfaces()
	if err != nil {
		return nil, err
	}
	defaults, gateways, err := nextHops()
	if err != nil {
		return nil, err
	}
	var out []Interface
	for _, l := range links {
		a := l.Attrs()
		// 1 is IFF_UP, 8 is IFF_LOOPBACK (netdevice(7)).
		if a.RawFlags&1 == 0 || a.RawFlags&8 != 0 {
			continue
		}
		i := Interface{Name: a.Name, Default: slices.Contains(defaults, a.Index), HardwareAddress: a.HardwareAddr.String(), Gateways: gateways[a.Index]}
		for _, x := range addresses[a.Index] {
			ip, ok := netip.AddrFromSlice(x.IP)
			ones, _ := x.Mask.Size()
			if ip = ip.Unmap(); ok && ones < ip.BitLen() && !ip.IsLinkLocalUnicast() {
				i.Prefixes = append(i.Prefixes, netip.PrefixFrom(ip, ones))
			}
		}
		out = append(out, i)
	}
	return out, nil
}

// nextHops returns the interface indexes of the main table's default routes, and the gateways of
// all its routes by interface.
func nextHops() (defaults []int, gateways map[int][]netip.Addr, err error) {
	routes, err := dump.Read(func() ([]netlink.Route, error) { return netlink.RouteList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, nil, fmt.Errorf("listing the routes: %w", err)
	}
	gateways = map[int][]netip.Addr{}
	for _, r := range routes {
		isDefault := r.Dst == nil
		if r.Dst != nil {
			ones, _ := r.Dst.Mask.Size()
			isDefault = ones == 0 && r.Dst.IP.IsUnspecified()
		}
		hops := append([]*netlink.NexthopInfo{{LinkIndex: r.LinkIndex, Gw: r.Gw}}, r.MultiPath...)
		for _, hop := range hops {
			if hop.LinkIndex == 0 {
				continue
			}
			if isDefault {
				defaults = append(defaults, hop.LinkIndex)
			}
			if a, ok := netip.AddrFromSlice(hop.Gw); ok && !slices.Contains(gateways[hop.LinkIndex], a.Unmap()) {
				gateways[hop.LinkIndex] = append(gateways[hop.LinkIndex], a.Unmap())
			}
		}
	}
	for _, all := range gateways {
		slices.SortFunc(all, netip.Addr.Compare)
	}
	return defaults, gateways, nil
}
