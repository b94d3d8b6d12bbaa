package iptables

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/balance"
	"github.com/skerry-io/skerry/tests/golden"
)

// text renders the tables of a set of services in iptables-restore's format, without the jumps to
// our chains.
func text(all []balance.Service) string {
	var b strings.Builder
	for _, s := range balance.Normal(all) {
		for _, l := range append(nat(s), Guard(s, false)...) {
			fmt.Fprintf(&b, "*%s\n-A %s %s -j LEAF\n", l.Base.Table, l.Base.Name, strings.Join(l.Match, " "))
			for _, r := range l.Rules {
				fmt.Fprintf(&b, "-A LEAF %s\n", strings.Join(r, " "))
			}
		}
	}
	return b.String()
}

func TestPlanText(t *testing.T) {
	at := netip.MustParseAddrPort
	web := balance.Service{Address: netip.MustParseAddr("192.168.1.100"), Interface: "lan0", Ports: []balance.Port{
		{Protocol: balance.TCP, Number: 80, Backends: []netip.AddrPort{at("10.244.1.2:8080"), at("10.244.1.3:8080")}},
		{Protocol: balance.UDP, Number: 53},
	}}
	guarded := web
	guarded.Sources, guarded.Affinity, guarded.KeepSource = []netip.Prefix{netip.MustParsePrefix("192.168.1.0/24")}, time.Minute, true
	six := balance.Service{Address: netip.MustParseAddr("2001:db8::100"), Interface: "lan0", Sources: []netip.Prefix{}, Ports: []balance.Port{
		{Protocol: balance.TCP, Number: 443, Backends: []netip.AddrPort{at("[2001:db8:1::2]:8443")}},
	}}
	for name, services := range map[string][]balance.Service{"round_robin": {web}, "ranges_affinity_source": {guarded}, "ipv6_no_range": {six}} {
		t.Run(name, func(t *testing.T) {
			golden.Check(t, filepath.Join("testdata", name+".golden"), text(services))
		})
	}
}
