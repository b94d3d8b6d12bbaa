package protect_test

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"testing"

	"github.com/skerry-io/skerry/common/claim"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netif"
	"github.com/skerry-io/skerry/edge/internal/site/protect"
)

// store is a device's.
type store map[string][]byte

func (s store) Load() (map[string][]byte, error) { return maps.Clone(s), nil }

func (s store) Save(_ context.Context, changes map[string][]byte) error {
	maps.Copy(s, changes)
	return nil
}

// After a boot without a link and without a default route the device still protects the addresses
// on the path to the cloud: a stored Site or Service that takes one is refused.
func TestClaims_01_ProtectedAddressesOutliveABoot(t *testing.T) {
	kept := store{}
	c := protect.Config{
		Memory: kept, Fixed: func() []claim.Guard {
			return []claim.Guard{{Prefix: netip.MustParsePrefix("9.9.9.9/32"), Why: "a name server"}}
		},
		Interfaces: func() ([]netif.Interface, error) {
			return []netif.Interface{{
				Name: "wan0", Default: true, Prefixes: []netip.Prefix{netip.MustParsePrefix("10.10.1.2/24")}, Gateways: []netip.Addr{netip.MustParseAddr("10.10.1.1")},
			}}, nil
		},
	}
	touched := func(g claim.Guards, want bool, texts ...string) {
		t.Helper()
		for _, text := range texts {
			if _, is := g.Touched(netip.MustParsePrefix(text)); is != want {
				t.Errorf("%s is protected: %v", text, is)
			}
		}
	}
	linked := protect.New(c).Guards(netip.MustParseAddr("198.51.100.10"))
	touched(linked, true, "198.51.100.0/24", "10.10.1.0/30", "10.10.1.2/32", "9.9.9.0/24", "127.0.0.0/8")
	touched(linked, false, "10.244.1.0/24", "198.51.101.0/24")

	c.Interfaces = func() ([]netif.Interface, error) { return nil, errors.New("no network yet") }
	booted := protect.New(c).Guards(netip.Addr{})
	touched(booted, true, "198.51.100.0/24", "10.10.1.1/32")
	touched(booted, false, "10.244.1.0/24")
}
