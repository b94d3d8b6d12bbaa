package acd_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/skerry-io/skerry/edge/internal/kernel/network/acd"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/lantest"
)

func TestPasses(t *testing.T) {
	lan := lantest.New(t)
	h := lan.Host("10.81.0.1/24", "2001:db8:81::1/64")
	other := lan.Host("10.81.0.2/24", "2001:db8:81::2/64")
	// The other one counts packets of protocol 112.
	other.Shell("iptables -t raw -A PREROUTING -p 112; ip6tables -t raw -A PREROUTING -p 112")
	passes := func(family string) error {
		return h.Do(func() error { return acd.Passes(t.Context(), lantest.Interface, netip.MustParseAddr(family)) })
	}
	const four, six = "0.0.0.0", "::"
	for _, family := range []string{four, six} {
		if err := passes(family); err != nil {
			t.Errorf("nothing is filtered: %v", err)
		}
	}
	for _, c := range []struct{ name, rule, family string }{
		{"out", "iptables %s OUTPUT -o lan0 -p 112 -j DROP", four},
		{"in", "iptables %s INPUT -i lan0 -p 112 -j DROP", four},
		{"all that is not known", "iptables %s INPUT -i lan0 ! -p tcp -j DROP", four},
		{"IPv6 in", "ip6tables %s INPUT -i lan0 -p 112 -j DROP", six},
	} {
		t.Run(c.name, func(t *testing.T) {
			h.Shell(strings.Replace(c.rule, "%s", "-A", 1))
			if err := passes(c.family); !errors.Is(err, acd.ErrFiltered) {
				t.Errorf("%v, want ErrFiltered", err)
			}
			h.Shell(strings.Replace(c.rule, "%s", "-D", 1))
			if err := passes(c.family); err != nil {
				t.Errorf("without the rule: %v", err)
			}
		})
	}
	for _, command := range []string{"iptables", "ip6tables"} {
		if seen := other.Shell(command + " -t raw -vnxL PREROUTING"); !strings.Contains(seen, "       0        0") {
			t.Errorf("another host has seen the packets:\n%s", seen)
		}
	}
	err := h.Do(func() error { return acd.Passes(t.Context(), "none0", netip.MustParseAddr(four)) })
	if !errors.Is(err, acd.ErrNoCarrier) {
		t.Errorf("no such interface: %v", err)
	}
}
