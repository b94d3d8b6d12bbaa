// Package conntrack makes the kernel forget TCP connections to hosts that are gone, so that their
// clients get a reset, and not a time-out.
//
// It owns no state: the entries are the kernel's, and a packet of a live connection recreates its
// entry. It does not touch UDP, which kube-proxy's own clean-up is for, and no connection to
// another address. Forget may be called from any goroutine; it sees the network namespace of the
// calling thread.
package conntrack

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/skerry-io/skerry/edge/internal/kernel/network/dump"
)

// Driver forgets.
type Driver struct{}

// New returns a Driver.
func New() *Driver { return &Driver{} }

// gone matches entries whose answers come from one of the prefixes: a client may have dialled a
// Service's address.
type gone []netip.Prefix

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (g gone) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	if flow.Forward.Protocol != unix.IPPROTO_TCP {
		return false
	}
	from, ok := netip.AddrFromSlice(flow.Reverse.SrcIP)
	if !ok {
		return false
	}
	for _, p := range g {
		if p.Contains(from.Unmap()) {
			return true
		}
	}
	return false
}

// Forget removes the entries of TCP connections to addresses within prefixes, and returns how
// many those were.
func (*Driver) Forget(prefixes []netip.Prefix) (int, error) {
	if len(prefixes) == 0 {
		return 0, nil
	}
	var count int
	var errs []error
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		err := dump.Repeat(func() error {
			n, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, gone(prefixes))
			count += int(n)
			return err
		})
		if err != nil && !errors.Is(err, unix.ENOENT) { // it has gone by itself
			errs = append(errs, fmt.Errorf("forgetting connections: %w", err))
		}
	}
	return count, errors.Join(errs...)
}
