package netif

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"github.com/vishvananda/netlink"

	"github.com/skerry-io/skerry/edge/internal/kernel/network/dump"
)

// loopbackLabel marks our addresses: not those of package redirect (ip-address(8)).
const loopbackLabel = "lo:skerry-n"

// KeepLoopback gives the loopback interface addresses for services to which only the device and its
// pods connect, and removes those of an earlier run that are not among them. An address that is
// there already stays as it is.
func KeepLoopback(want ...netip.Addr) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("finding the loopback interface: %w", err)
	}
	have, err := dump.Addresses(lo, netlink.FAMILY_V4)
	if err != nil {
		return err
	}
	missing := map[netip.Addr]bool{}
	for _, a := range want {
		if !a.IsLoopback() {
			missing[a] = true
		}
	}
	for _, a := range have {
		ip, ok := netip.AddrFromSlice(a.IP.To4())
		switch {
		case !ok:
		case missing[ip]:
			delete(missing, ip)
		case a.Label == loopbackLabel:
			if err := netlink.AddrDel(lo, &a); err != nil {
				return fmt.Errorf("removing %s: %w", ip, err)
			}
		}
	}
	for ip := range missing {
		a := &netlink.Addr{IPNet: &net.IPNet{IP: ip.AsSlice(), Mask: net.CIDRMask(ip.BitLen(), ip.BitLen())}, Scope: int(netlink.SCOPE_HOST)}
		if ip.Is4() {
			a.Label = loopbackLabel
		}
		if err := netlink.AddrAdd(lo, a); err != nil && !errors.Is(err, syscall.EEXIST) {
			return fmt.Errorf("adding %s: %w", ip, err)
		}
	}
	return nil
}
