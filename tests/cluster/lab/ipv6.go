package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/coreos/go-iptables/iptables"

	"github.com/skerry-io/skerry/tests/cluster/host"
)

// Uplink6 is edge n's IPv6 address behind the router.
func Uplink6(n int) netip.Prefix {
	return netip.MustParsePrefix(fmt.Sprintf("2001:db8:10:%d::2/64", n))
}

func gateway6(n int) netip.Prefix {
	return netip.MustParsePrefix(fmt.Sprintf("2001:db8:10:%d::1/64", n))
}

// LinkIPv6 gives edge n's uplink IPv6 in addition to IPv4, up to the cloud: the same ports are
// offered by the same rules, and SetCut and SetShape are for both from then on. The edge's address
// is hidden from the cloud, as its IPv4 address is. There is no balancing: an address is that of
// one replica.
func LinkIPv6(router, edge host.Host, ports []Port, n int) error {
	if err := filter6(router, ports); err != nil {
		return err
	}
	return errors.Join(
		address(router, cloudIface, netip.MustParsePrefix("2001:db8:51::1/64")), address(router, upName(n), gateway6(n)), address(edge, uplink, Uplink6(n)),
		defaultRoute(edge, gateway6(n).Addr()),
	)
}

// filter6 sets the rules that Router sets for IPv4.
func filter6(router host.Host, ports []Port) error {
	return router.Do(func() error {
		if err := os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0o644); err != nil {
			return fmt.Errorf("switching forwarding on: %w", err)
		}
		t, err := iptables.New(iptables.IPFamily(iptables.ProtocolIPv6))
		if err != nil {
			return fmt.Errorf("looking for ip6tables: %w", err)
		}
		return filter(t, ports)
	})
}

// families are the packet filters that have the chain: of IPv4, and of IPv6 where LinkIPv6
// was called.
func families(chain string) (all []*iptables.IPTables, err error) {
	for _, family := range []iptables.Protocol{iptables.ProtocolIPv4, iptables.ProtocolIPv6} {
		t, err := iptables.New(iptables.IPFamily(family))
		if err != nil {
			return nil, fmt.Errorf("looking for iptables: %w", err)
		}
		if ok, err := t.ChainExists("filter", chain); err != nil {
			return nil, fmt.Errorf("looking for chain %s: %w", chain, err)
		} else if ok || family == iptables.ProtocolIPv4 {
			all = append(all, t)
		}
	}
	return all, nil
}
