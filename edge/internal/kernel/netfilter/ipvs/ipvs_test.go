package ipvs_test

import (
	"errors"
	"testing"

	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/balance/balancetest"
	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/ipvs"
)

// TestPlane runs where the kernel has IPVS; tests/uml runs it in a kernel that has.
func TestPlane(t *testing.T) {
	if _, err := ipvs.New(); errors.Is(err, ipvs.ErrUnsupported) {
		t.Skip(err)
	}
	balancetest.Run(t, plane())
}

// Clients that the Service does not allow are not served, and each client stays with its pod.
func TestHostile_03_SourceRangesAndAffinityHold(t *testing.T) {
	if _, err := ipvs.New(); errors.Is(err, ipvs.ErrUnsupported) {
		t.Skip(err)
	}
	balancetest.Hostile(t, plane())
}

func plane() balancetest.Case {
	return balancetest.Case{
		New:  func() (balancetest.Plane, error) { return ipvs.New() },
		Look: "ipvsadm -Sn; for t in nat filter mangle; do iptables-save -t $t; ip6tables-save -t $t; done | grep -v '^#' | sed 's/\\[[0-9:]*\\]//'",
		Foreign: "ipvsadm -A -t 10.9.9.9:99 -s rr; ipvsadm -a -t 10.9.9.9:99 -r 10.9.9.8:99 -m; " +
			"for i in iptables ip6tables; do $i -t nat -N KUBE-SERVICES; $i -t nat -A PREROUTING -j KUBE-SERVICES; $i -t filter -A INPUT -p tcp --dport 9999 -j DROP; " +
			"$i -t mangle -A FORWARD -p udp --dport 9 -j DROP; done",
		RoundRobin: true,
	}
}
