package claim_test

import (
	"net/netip"
	"testing"

	"github.com/skerry-io/skerry/common/claim"
)

func TestCounts(t *testing.T) {
	subnets := claim.Prefixes([]string{"10.244.0.0/16", "2001:db8::/48", "nonsense"})
	for text, want := range map[string]bool{
		"10.244.3.0/24": true, "10.244.3.128/25": true, "10.244.0.0/16": false, "10.240.0.0/12": false, "0.0.0.0/0": false, "198.51.100.0/24": false,
		"2001:db8:0:7::/64": true, "2001:db8::/48": false, "::/0": false,
	} {
		if why := claim.Counts(netip.MustParsePrefix(text), subnets); (why == "") != want {
			t.Errorf("%s: %q", text, why)
		}
	}
	for text, want := range map[string]bool{"10.9.0.0/24": true, "0.0.0.0/0": false, "64.0.0.0/2": false, "::/0": false, "fd00::/64": true} {
		if why := claim.Counts(netip.MustParsePrefix(text), nil); (why == "") != want {
			t.Errorf("%s without podSubnets: %q", text, why)
		}
	}
}

func TestOfNode(t *testing.T) {
	lan, all, given := netip.MustParsePrefix("192.168.100.0/24"), netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("10.244.3.0/24")
	subnets := claim.Prefixes([]string{"10.244.0.0/16"})
	for _, test := range []struct {
		r       netip.Prefix
		edge    bool
		subnets []netip.Prefix
		want    bool
	}{
		{lan, true, subnets, false}, {all, true, subnets, false}, {given, true, subnets, true}, {given, true, nil, false},
		{lan, false, subnets, true}, {all, false, subnets, false},
	} {
		if why := claim.OfNode(test.r, test.edge, test.subnets); (why == "") != test.want {
			t.Errorf("%v: %q", test, why)
		}
	}
}

func TestGuards(t *testing.T) {
	g := claim.Standard()
	g.Host(netip.MustParseAddr("::ffff:198.51.100.10"), "the address of cloudcore")
	for text, want := range map[string]bool{"198.51.100.0/24": true, "0.0.0.0/0": true, "198.51.101.0/24": false, "169.254.20.20/32": true, "fe80::/64": true} {
		if _, touched := g.Touched(netip.MustParsePrefix(text)); touched != want {
			t.Errorf("%s: %v", text, touched)
		}
	}
	if _, touched := g.TouchedBy(netip.Addr{}); touched {
		t.Error("no address is touched")
	}
}
