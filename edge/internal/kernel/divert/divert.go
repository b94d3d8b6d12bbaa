// Package divert leads connections that are for elsewhere to a listener on this device, which has an address of its own for that.
//
// It owns the chain SKERRY-API of the nat table with the two rules that lead to it, and the addresses of the loopback interface that bear its label. It touches nothing else.
// Both stay when the process ends: whoever was led here must not find itself elsewhere for the length of a restart. Apply is called by one goroutine at a time.
package divert

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/coreos/go-iptables/iptables"
	"github.com/vishvananda/netlink"
)

// A Rule leads TCP connections for From to To, an address that this device is to have. Both are IPv4.
type Rule struct{ From, To netip.AddrPort }

const (
	table = "nat"
	chain = "SKERRY-API"
	// label marks our addresses: that is how a fresh process knows them (ip-address(8)).
	label = "lo:skerry"
)

// hooks are where what arrives, and what the device itself sends, is led to the chain. In front of all others: kube-proxy knows another way to the same address.
func hooks() []string { return []string{"PREROUTING", "OUTPUT"} }

// Driver makes the kernel divert.
type Driver struct{}

// New returns a Driver. It needs the program iptables as soon as there is something to divert.
func New() *Driver { return &Driver{} }

// Apply makes the kernel divert exactly this. Without rules nothing of ours stays, and a device without iptables is as it should be.
func (*Driver) Apply(want []Rule) error {
	for _, r := range want {
		if !r.From.Addr().Is4() || !r.To.Addr().Is4() {
			return fmt.Errorf("diverting %s to %s: only IPv4 can be diverted", r.From, r.To)
		}
	}
	// First the addresses: a rule to one that is not here would lead into the network.
	if err := addresses(want); err != nil {
		return err
	}
	tool, err := iptables.New(iptables.IPFamily(iptables.ProtocolIPv4), iptables.Timeout(10))
	if err != nil {
		if len(want) == 0 {
			return nil // no rule can be there
		}
		return fmt.Errorf("looking for iptables: %w", err)
	}
	if len(want) == 0 {
		return remove(tool)
	}
	return fill(tool, want)
}

func specs(want []Rule) [][]string {
	var all [][]string
	for _, r := range want {
		all = append(all, []string{
			"-d", netip.PrefixFrom(r.From.Addr(), 32).String(), "-p", "tcp", "-m", "tcp", "--dport", strconv.Itoa(int(r.From.Port())),
			"-j", "DNAT", "--to-destination", r.To.String(),
		})
	}
	return all
}

func fill(tool *iptables.IPTables, want []Rule) error {
	exists, err := tool.ChainExists(table, chain)
	if err != nil {
		return fmt.Errorf("looking for chain %s: %w", chain, err)
	}
	all := specs(want)
	if same, err := holds(tool, exists, all); err != nil {
		return err
	} else if !same {
		if err := tool.ClearChain(table, chain); err != nil { // also makes it
			return fmt.Errorf("making chain %s: %w", chain, err)
		}
		for _, rule := range all {
			if err := tool.Append(table, chain, rule...); err != nil {
				return fmt.Errorf("filling chain %s with %q: %w", chain, strings.Join(rule, " "), err)
			}
		}
	}
	var errs []error
	for _, hook := range hooks() {
		rules, err := tool.List(table, hook)
		if err != nil {
			errs = append(errs, fmt.Errorf("listing chain %s: %w", hook, err))
			continue
		}
		// The first line makes the chain, or tells its policy.
		if at := slices.Index(rules, "-A "+hook+" -j "+chain); at == 1 {
			continue
		} else if at > 1 { // somebody came in front: kube-proxy does when it starts
			if err := tool.Delete(table, hook, "-j", chain); err != nil {
				errs = append(errs, fmt.Errorf("leading from %s to %s: %w", hook, chain, err))
				continue
			}
		}
		if err := tool.Insert(table, hook, 1, "-j", chain); err != nil {
			errs = append(errs, fmt.Errorf("leading from %s to %s: %w", hook, chain, err))
		}
	}
	return errors.Join(errs...)
}

// holds reports whether the chain has these rules and no others.
func holds(tool *iptables.IPTables, exists bool, all [][]string) (bool, error) {
	if !exists {
		return false, nil
	}
	have, err := tool.List(table, chain)
	if err != nil {
		return false, fmt.Errorf("listing chain %s: %w", chain, err)
	}
	if len(have) != len(all)+1 {
		return false, nil
	}
	for _, rule := range all {
		if ok, err := tool.Exists(table, chain, rule...); err != nil || !ok {
			return false, nil //nolint:nilerr // a rule that can't be checked is made anew
		}
	}
	return true, nil
}

func remove(tool *iptables.IPTables) error {
	exists, err := tool.ChainExists(table, chain)
	if err != nil {
		return fmt.Errorf("looking for chain %s: %w", chain, err)
	}
	if !exists {
		return nil
	}
	var errs []error
	for _, hook := range hooks() {
		if err := tool.DeleteIfExists(table, hook, "-j", chain); err != nil {
			errs = append(errs, fmt.Errorf("leading from %s to %s no longer: %w", hook, chain, err))
		}
	}
	if err := tool.ClearAndDeleteChain(table, chain); err != nil {
		errs = append(errs, fmt.Errorf("removing chain %s: %w", chain, err))
	}
	return errors.Join(errs...)
}

// addresses gives the loopback interface those that the rules lead to, and takes back what they lead to no longer.
func addresses(want []Rule) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("finding the loopback interface: %w", err)
	}
	have, err := netlink.AddrList(lo, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("listing the addresses of the loopback interface: %w", err)
	}
	wanted := map[netip.Addr]bool{}
	for _, r := range want {
		wanted[r.To.Addr()] = true
	}
	var errs []error
	for _, a := range have {
		ip, ok := netip.AddrFromSlice(a.IP.To4())
		switch {
		case !ok:
		case wanted[ip]:
			delete(wanted, ip)
		case a.Label == label:
			if err := netlink.AddrDel(lo, &a); err != nil {
				errs = append(errs, fmt.Errorf("taking %s from the loopback interface: %w", ip, err))
			}
		}
	}
	for ip := range wanted {
		// Of the host's scope: no other device is told of it.
		a := &netlink.Addr{IPNet: &net.IPNet{IP: ip.AsSlice(), Mask: net.CIDRMask(32, 32)}, Label: label, Scope: int(netlink.SCOPE_HOST)}
		if err := netlink.AddrAdd(lo, a); err != nil {
			errs = append(errs, fmt.Errorf("giving %s to the loopback interface: %w", ip, err))
		}
	}
	return errors.Join(errs...)
}
