// Package redirect redirects TCP connections to other addresses to a listener on this device.
//
// It owns the chain SKERRY-API of the nat table with the two rules that jump to it, the table
// skerry-api of nftables, which has the same redirections ahead of kube-proxy's nftables mode, and
// the addresses of the loopback interface with its label. It refuses IPv6, and touches no other
// state. Chain and addresses stay when the process ends: a redirected connection must not end
// elsewhere for the length of a restart. Apply is called by one goroutine at a time.
package redirect

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/coreos/go-iptables/iptables"
	"github.com/vishvananda/netlink"

	"github.com/skerry-io/skerry/edge/internal/kernel/network/dump"
)

// Driver makes the kernel redirect.
type Driver struct{}

// New returns a Driver. It needs the program iptables as soon as there is something to redirect.
func New() *Driver { return &Driver{} }

// Apply makes the kernel redirect exactly this. Without rules all of ours are removed, and a device
// without iptables is no error.
func (*Driver) Apply(want []Rule) error {
	for _, r := range want {
		if !r.From.Addr().Is4() || !r.To.Addr().Is4() {
			return fmt.Errorf("redirecting %s to %s: only IPv4 can be redirected", r.From, r.To)
		}
	}
	tool, err := iptables.New(iptables.IPFamily(iptables.ProtocolIPv4), iptables.Timeout(10))
	if err != nil {
		if len(want) > 0 {
			return fmt.Errorf("looking for iptables: %w", err)
		}
		tool = nil // no rule can be there
	}
	have, err := read(tool)
	if err != nil {
		return err
	}
	var errs []error
	for _, c := range plan(want, have) {
		if err := c.apply(tool); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", c, err))
		}
	}
	if err := applyEarly(want); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// read returns our kernel state, and the hooks with our rules.
func read(tool *iptables.IPTables) (have state, err error) {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return have, fmt.Errorf("finding the loopback interface: %w", err)
	}
	all, err := dump.Addresses(lo, netlink.FAMILY_V4)
	if err != nil {
		return have, err
	}
	for _, a := range all {
		if ip, ok := netip.AddrFromSlice(a.IP.To4()); ok {
			have.addresses = append(have.addresses, address{ip, a.Label == label})
		}
	}
	if tool == nil {
		return have, nil
	}
	exists, err := tool.ChainExists(table, chain)
	if err != nil {
		return have, fmt.Errorf("looking for chain %s: %w", chain, err)
	}
	if exists {
		if have.chain, err = tool.List(table, chain); err != nil {
			return have, fmt.Errorf("listing chain %s: %w", chain, err)
		}
	}
	have.hooks = map[string][]string{}
	for _, hook := range hooks() {
		if have.hooks[hook], err = tool.List(table, hook); err != nil {
			return have, fmt.Errorf("listing chain %s: %w", hook, err)
		}
	}
	return have, nil
}

// apply makes one change.
func (c change) apply(tool *iptables.IPTables) error {
	switch c.op {
	case addAddress, deleteAddress:
		return c.applyAddress()
	case newChain:
		return tool.ClearChain(table, c.chain) // also makes it
	case appendRule:
		return tool.Append(table, c.chain, c.rule...)
	case insertRule:
		return tool.Insert(table, c.chain, 1, c.rule...)
	case deleteRule:
		return tool.Delete(table, c.chain, c.rule...)
	default:
		return tool.ClearAndDeleteChain(table, c.chain)
	}
}

func (c change) applyAddress() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	a := &netlink.Addr{
		IPNet: &net.IPNet{IP: c.address.AsSlice(), Mask: net.CIDRMask(32, 32)}, Label: label,
		Scope: int(netlink.SCOPE_HOST), // not announced to other devices
	}
	if c.op == addAddress {
		return netlink.AddrAdd(lo, a)
	}
	return netlink.AddrDel(lo, a)
}
