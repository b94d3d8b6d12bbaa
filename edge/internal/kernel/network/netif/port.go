package netif

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
)

// Up switches a port on. One that an application has is in the application's own network namespace,
// and is missing here: ErrMissing.
func Up(name string) error {
	l, err := netlink.LinkByName(name)
	if _, ok := errors.AsType[netlink.LinkNotFoundError](err); ok {
		return fmt.Errorf("interface %s: %w", name, ErrMissing)
	}
	if err != nil {
		return fmt.Errorf("finding interface %s: %w", name, err)
	}
	const loopback = 8 // IFF_LOOPBACK of netdevice(7)
	if l.Attrs().RawFlags&loopback != 0 {
		return fmt.Errorf("interface %s is the loopback interface", name)
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return fmt.Errorf("switching interface %s on: %w", name, err)
	}
	return nil
}

// Depends names the reason why this device needs a port: its default route, its route to one of the
// ways, or one of its own addresses, also by a bridge, a bond or a VLAN above the port. "" without
// a reason, also if there is no such port.
func Depends(name string, ways, own []netip.Addr) (why string, err error) {
	port, err := netlink.LinkByName(name)
	if _, ok := errors.AsType[netlink.LinkNotFoundError](err); ok {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("finding interface %s: %w", name, err)
	}
	all, err := netlink.LinkList()
	if err != nil {
		return "", fmt.Errorf("listing interfaces: %w", err)
	}
	for _, l := range above(port, all) {
		why, err := depends(l, ways, own)
		if err != nil {
			return "", err
		}
		if upper := l.Attrs().Name; why != "" && upper != name {
			why = "it is part of " + upper + ": " + why
		}
		if why != "" {
			return why, nil
		}
	}
	return "", nil
}

// above is a port with the interfaces that use it.
func above(port netlink.Link, all []netlink.Link) []netlink.Link {
	found := []netlink.Link{port}
	for i := 0; i < len(found); i++ {
		lower := found[i].Attrs()
		for _, l := range all {
			upper := l.Attrs()
			// The parent of a veth is its peer, which it does not need to be there.
			uses := upper.Index == lower.MasterIndex || upper.ParentIndex == lower.Index && l.Type() != "veth"
			if uses && !slices.ContainsFunc(found, func(f netlink.Link) bool { return f.Attrs().Index == upper.Index }) {
				found = append(found, l)
			}
		}
	}
	return found
}

func depends(l netlink.Link, ways, own []netip.Addr) (why string, err error) {
	name := l.Attrs().Name
	addresses, err := netlink.AddrList(l, netlink.FAMILY_ALL)
	if err != nil {
		return "", fmt.Errorf("reading the addresses of %s: %w", name, err)
	}
	for _, a := range addresses {
		if ip, ok := netip.AddrFromSlice(a.IP); ok && slices.Contains(own, ip.Unmap()) {
			return fmt.Sprintf("it has %s, an address of this node", ip.Unmap()), nil
		}
	}
	routes, err := netlink.RouteList(l, netlink.FAMILY_ALL)
	if err != nil {
		return "", fmt.Errorf("reading the routes of %s: %w", name, err)
	}
	for _, r := range routes {
		if r.Dst == nil || r.Dst.IP.IsUnspecified() {
			return "it has the default route of this device", nil
		}
	}
	for _, way := range ways {
		found, err := netlink.RouteGet(way.AsSlice())
		if err != nil {
			continue // there is no way now
		}
		for _, r := range found {
			if r.LinkIndex == l.Attrs().Index {
				return fmt.Sprintf("it leads to %s, an address of cloudcore", way), nil
			}
		}
	}
	return "", nil
}

// ErrMissing means that the device has no interface of that name.
var ErrMissing = errors.New("this device has none of that name")
