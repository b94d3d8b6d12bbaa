package iptables_test

import (
	"fmt"
	"net/netip"

	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/balance/balancetest"
	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/iptables"
)

func TestPlane(t *testing.T) {
	balancetest.Run(t, plane())
}

// Clients that the Service does not allow are not served, and each client stays with its pod.
func TestHostile_03_SourceRangesAndAffinityHold(t *testing.T) {
	balancetest.Hostile(t, plane())
}

func plane() balancetest.Case {
	return balancetest.Case{
		New:  func() (balancetest.Plane, error) { return iptables.New() },
		Look: "for t in nat filter mangle; do iptables-save -t $t; ip6tables-save -t $t; done | grep -v '^#' | sed 's/\\[[0-9:]*\\]//'",
		Foreign: "for i in iptables ip6tables; do $i -t nat -N KUBE-SERVICES; $i -t nat -A PREROUTING -j KUBE-SERVICES; $i -t filter -A INPUT -p tcp --dport 9999 -j DROP; " +
			"$i -t nat -A KUBE-SERVICES -p tcp --dport 9998 -j RETURN; $i -t mangle -A FORWARD -p udp --dport 9 -j DROP; $i -t filter -A FORWARD -p tcp --dport 9 -j DROP; " +
			"$i -t nat -A POSTROUTING -p udp --dport 9 -j RETURN; $i -t nat -A OUTPUT -p udp --dport 9 -j RETURN; done",
		Busy: busy, RoundRobin: true,
	}
}

// busy makes flows of a busy node: looking through them takes long enough for connections to be
// established meanwhile.
func busy() error {
	for n := range 20_000 {
		from := netip.AddrFrom4([4]byte{192, 0, 2, byte(n >> 14)})
		to := netip.AddrFrom4([4]byte{198, 51, 100, 1})
		there := netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: from.AsSlice(), DstIP: to.AsSlice(), SrcPort: uint16(1024 + n&0x3fff), DstPort: 53}
		back := netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: there.DstIP, DstIP: there.SrcIP, SrcPort: there.DstPort, DstPort: there.SrcPort}
		flow := &netlink.ConntrackFlow{FamilyType: unix.AF_INET, TimeOut: 600, Forward: there, Reverse: back}
		if err := netlink.ConntrackCreate(netlink.ConntrackTable, unix.AF_INET, flow); err != nil {
			return fmt.Errorf("making flow %d: %w", n, err)
		}
	}
	return nil
}
