package route_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

func TestRoutes_07_UnreachableGateway(t *testing.T) {
	l := newLab(t)
	l.start(true)
	l.api.route(t, "far", spec("172.20.0.0/16", "10.7.7.7"))
	l.api.route(t, "self", spec("172.21.0.0/16", "10.0.0.2"))
	if e := l.reported("far", v1alpha1.RouteGatewayUnreachable, 1); !strings.Contains(e.Message, "10.7.7.7 is on no network") {
		t.Errorf("message: %s", e.Message)
	}
	if e := l.reported("self", v1alpha1.RouteGatewayUnreachable, 1); !strings.Contains(e.Message, "this node's own address on eth0") {
		t.Errorf("message: %s", e.Message)
	}
	l.have()
	// The network appears: so does the route.
	l.node.Address(t, "eth1", "10.7.7.1/24")
	l.reported("far", v1alpha1.RouteApplied, 1)
	l.have("172.20.0.0/16 table 254 metric 0 via 10.7.7.7 dev eth1")
}

func TestRoutes_08_ProtectedOverlapRefused(t *testing.T) {
	l := newLab(t)
	l.start(true)
	l.api.route(t, "fine", spec("172.20.0.0/16", "10.0.1.1"))
	l.reported("fine", v1alpha1.RouteApplied, 1) // the link is up, so the cloud's address is known
	for name, c := range map[string]struct{ subnet, gateway, why string }{
		"configured": {"203.0.113.128/25", "10.0.1.1", "which edgecore.yaml protects"},
		"wider":      {"203.0.0.0/8", "10.0.1.1", "which edgecore.yaml protects"},
		"ipv6":       {"2001:db8:bad:1::/64", "2001:db8:1::1", "which edgecore.yaml protects"},
		"cloud":      {"198.51.100.0/24", "10.0.1.1", "the address of cloudcore"},
		"own":        {"10.0.0.0/30", "10.0.1.1", "this node's"},
		"gateway":    {"10.0.0.1/32", "10.0.1.1", "this node's gateway"},
		"pods":       {"10.244.0.0/16", "10.0.1.1", "the range of this node's pods"},
		"default":    {"0.0.0.0/0", "10.0.1.1", "overlaps"},
		"default6":   {"::/0", "2001:db8:1::1", "overlaps"},
		"loopback":   {"127.8.0.0/16", "10.0.1.1", "the loopback network"},
		"multicast6": {"ff05::/16", "2001:db8:1::1", "the multicast networks"},
	} {
		s := spec(c.subnet, c.gateway)
		if name == "default" {
			s.Table = 30 // in no table
		}
		l.api.route(t, name, s)
		if e := l.reported(name, v1alpha1.RouteProtected, 1); !strings.Contains(e.Message, c.why) {
			t.Errorf("%s: message %q, want %q in it", name, e.Message, c.why)
		}
	}
	l.have("172.20.0.0/16")
}

func TestRoutes_10_TableThirty(t *testing.T) {
	l := newLab(t)
	s := spec("172.20.0.0/16", "10.0.1.1")
	s.Table, s.Metric = 30, 5
	l.api.route(t, "office", s)
	l.start(true)
	l.reported("office", v1alpha1.RouteApplied, 1)
	l.have("172.20.0.0/16 table 30 metric 5 via 10.0.1.1 dev eth1")
}

func TestRoutes_12_IPv6(t *testing.T) {
	l := newLab(t)
	l.start(true)
	l.api.route(t, "office", spec("2001:db8:20::/48", "2001:db8::1"))
	l.reported("office", v1alpha1.RouteApplied, 1)
	l.reach("2001:db8:20::1")
	fe80 := l.b.LinkLocal(t, "node")
	l.api.route(t, "office", v1alpha1.StaticRouteSpec{Subnet: "2001:db8:20::/48", NextHops: []v1alpha1.NextHop{{Gateway: fe80.String(), Interface: "eth1"}}})
	l.reported("office", v1alpha1.RouteApplied, 2)
	l.have("2001:db8:20::/48 table 254 metric 1024 via " + fe80.String() + " dev eth1")
	l.reach("2001:db8:20::1")
}

func TestRoutes_13_ECMP(t *testing.T) {
	l := newLab(t)
	l.start(true)
	two := []v1alpha1.NextHop{{Gateway: "10.0.0.1", Weight: 3}, {Gateway: "10.0.1.1", Weight: 1}}
	l.api.route(t, "office", v1alpha1.StaticRouteSpec{Subnet: "172.20.0.0/16", NextHops: two})
	e := l.reported("office", v1alpha1.RouteApplied, 1)
	if len(e.State.NextHops) != 2 || e.State.NextHops[0].Weight != 3 {
		t.Errorf("resolved to %+v", e.State)
	}
	l.reach("172.20.0.1")
	l.api.route(t, "office", v1alpha1.StaticRouteSpec{Subnet: "172.20.0.0/16", NextHops: two[1:]})
	l.reported("office", v1alpha1.RouteApplied, 2)
	l.have("172.20.0.0/16 table 254 metric 0 via 10.0.1.1 dev eth1")
	l.reach("172.20.0.1")
}

func TestRoutes_15_ForeignEqualRouteUntouched(t *testing.T) {
	l := newLab(t)
	l.node.Route(t, "172.20.0.0/16", "10.0.0.1")
	l.start(true)
	l.api.route(t, "office", spec("172.20.0.0/16", "10.0.1.1"))
	if e := l.reported("office", v1alpha1.RouteConflict, 1); !strings.Contains(e.Message, "a route that Skerry didn't make (protocol 3, via 10.0.0.1)") {
		t.Errorf("message: %s", e.Message)
	}
	l.have()
	s := spec("172.20.0.0/16", "10.0.1.1")
	s.OnConflict = v1alpha1.ConflictAdopt
	l.api.route(t, "office", s)
	l.reported("office", v1alpha1.RouteApplied, 2)
	l.have("172.20.0.0/16 table 254 metric 0 via 10.0.1.1 dev eth1")
	h, err := l.kernel.NextHop(netip.MustParseAddr("172.20.0.1"))
	if err != nil || h.Interface != "eth1" {
		t.Errorf("the way is %v, %v", h, err)
	}
}
