package ipvs_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/balance"
	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/iptables"
	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/ipvs"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/lantest"
)

// A device whose data plane is changed while it has an address: the new one serves, the old one's
// state is removed from the kernel, in both directions; foreign state stays.
func TestTraps_07_DataPlaneChangeLeavesNothingOfTheOld(t *testing.T) {
	if _, err := ipvs.New(); errors.Is(err, ipvs.ErrUnsupported) {
		t.Skip(err)
	}
	lan := lantest.New(t)
	node, client := lan.Host("10.83.0.1/24"), lan.Host("10.83.0.200/24")
	address, pod := netip.MustParseAddr("10.83.0.100"), netip.MustParseAddr("10.244.1.2")
	node.Pod(pod).Serve(8080, "one")
	node.Shell("ip addr add 10.83.0.100/32 dev " + lantest.Interface +
		"; ipvsadm -A -t 10.9.9.9:99 -s rr; iptables -t nat -N KUBE-SERVICES; iptables -t nat -A PREROUTING -j KUBE-SERVICES")
	service := balance.Service{Address: address, Interface: lantest.Interface, Ports: []balance.Port{
		{Protocol: balance.TCP, Number: 80, Backends: []netip.AddrPort{netip.AddrPortFrom(pod, 8080)}},
	}}
	byIPTables := func(want ...balance.Service) {
		t.Helper()
		if err := node.Do(func() error {
			p, err := iptables.New()
			if err != nil {
				return err
			}
			old, err := ipvs.New()
			if err != nil {
				return err
			}
			return errors.Join(old.Withdraw(), p.Apply(t.Context(), want))
		}); err != nil {
			t.Fatal(err)
		}
	}
	byIPVS := func(want ...balance.Service) {
		t.Helper()
		if err := node.Do(func() error {
			p, err := ipvs.New()
			if err != nil {
				return err
			}
			return p.Apply(t.Context(), want)
		}); err != nil {
			t.Fatal(err)
		}
	}
	served := func(by string, services, dnat int) {
		t.Helper()
		if word, _, err := client.Ask("tcp", "10.83.0.100:80", 5*time.Second); err != nil || word != "one" {
			t.Errorf("by %s: %q, %v", by, word, err)
		}
		if table := node.Shell("ipvsadm -Sn"); strings.Count(table, "-A -t 10.83.0.100:80 ") != services || !strings.Contains(table, "10.9.9.9:99") {
			t.Errorf("by %s: IPVS has\n%s", by, table)
		}
		if table := node.Shell("iptables-save -t nat"); strings.Count(table, "-j DNAT ") != dnat || !strings.Contains(table, "-A PREROUTING -j KUBE-SERVICES") {
			t.Errorf("by %s: iptables has\n%s", by, table)
		}
	}
	byIPTables(service)
	served("iptables", 0, 2) // for clients, and for the node itself
	byIPVS(service)
	served("ipvs", 1, 0)
	byIPTables(service)
	served("iptables again", 0, 2)
	byIPTables()
	if left := node.Shell("ipvsadm -Sn; iptables-save"); strings.Contains(left, "10.83.0.100") || strings.Contains(left, "DNAT") {
		t.Errorf("after the address has gone:\n%s", left)
	}
}
