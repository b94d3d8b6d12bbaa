package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/vishvananda/netlink"

	"github.com/skerry-io/skerry/tests/cluster/host"
)

// Channel is the address at which machine n takes commands, on a cable that no fault touches.
func Channel(n int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 99, byte(n), 2}), 24)
}

// ConnectTaps makes the router's ends of the cables of machine n, which is no host: its uplink,
// which SetCut knows as that of edge n, its place on the LAN, and its channel. A program that opens
// the taps is at their other ends. It may be repeated.
func ConnectTaps(router host.Host, n int) error {
	links, err := router.Netlink()
	if err != nil {
		return err
	}
	defer links.Close()
	number, channel := strconv.Itoa(n), "channel"+strconv.Itoa(n)
	for _, name := range []string{upName(n), "lan" + number, channel} {
		if _, err := links.LinkByName(name); errors.As(err, new(netlink.LinkNotFoundError)) {
			tap := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: name}, Mode: netlink.TUNTAP_MODE_TAP}
			// The device is made in the namespace of the thread that asks.
			if err := router.Do(func() error { return netlink.LinkAdd(tap) }); err != nil {
				return fmt.Errorf("making the tap %s: %w", name, err)
			}
		} else if err != nil {
			return fmt.Errorf("finding the tap %s: %w", name, err)
		}
		if err := up(router, name); err != nil {
			return err
		}
	}
	if err := address(router, upName(n), gateway(n)); err != nil {
		return err
	}
	end := Channel(n)
	if err := address(router, channel, netip.PrefixFrom(end.Addr().Prev(), end.Bits())); err != nil {
		return err
	}
	br, err := links.LinkByName(bridge)
	if err != nil {
		return fmt.Errorf("finding the bridge %s: %w", bridge, err)
	}
	l, err := links.LinkByName("lan" + number)
	if err != nil {
		return fmt.Errorf("finding the LAN's end: %w", err)
	}
	if err := links.LinkSetMaster(l, br); err != nil {
		return fmt.Errorf("joining the bridge %s: %w", bridge, err)
	}
	return nil
}
