package iptables_test

import (
	"testing"

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
		RoundRobin: true,
	}
}
