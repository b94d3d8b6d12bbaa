package route_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/agents/route"
	"github.com/skerry-io/skerry/tests/netns/wire"
)

func TestRoutes_07_UnreachableGatewayIsAnErrorAndNoRoute(t *testing.T) {
	l := newSystem(t)
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
	// The address is removed: the kernel keeps the route, and the status reports the error.
	l.delAddress("eth1", "10.7.7.1/24")
	if e := l.reported("far", v1alpha1.RouteDegraded, 1); !strings.Contains(e.Message, "10.7.7.7 is on no network of eth1 any more") {
		t.Errorf("message: %s", e.Message)
	}
	// And an edit sets no route then.
	l.api.route(t, "far", v1alpha1.StaticRouteSpec{Subnet: "172.20.0.0/16", Gateway: "10.7.7.7", MTU: 1400})
	l.reported("far", v1alpha1.RouteGatewayUnreachable, 2)
	l.have()
}

func TestRoutes_08_ProtectedOverlapRefused(t *testing.T) {
	l := newSystem(t)
	l.tune = func(c *route.Config) { c.Cloud = []netip.Addr{netip.MustParseAddr("2001:db8:51::10")} }
	l.api.services(t, "10.96.0.0/12")
	l.node.Route(t, "::/0", "2001:db8::1")
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
		"own in":     {"10.0.1.2/32", "10.0.1.1", "this node's own address on eth1"},
		"own6":       {"2001:db8:1::2/128", "2001:db8:1::1", "this node's own address on eth1"},
		"gateway6":   {"2001:db8::1/128", "2001:db8:1::1", "this node's gateway"},
		"cloud in":   {"198.51.100.10/32", "10.0.1.1", "the address of cloudcore"},
		"cloud6":     {"2001:db8:51::/64", "2001:db8:1::1", "the address of cloudcore"},
		"services":   {"10.96.7.0/24", "10.0.1.1", "a range of Services"},
		"services+":  {"10.0.0.0/8", "10.0.1.1", "overlaps"},
		"pods in":    {"10.244.1.7/32", "10.0.1.1", "the range of this node's pods"},
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

func TestRoutes_10_TableThirtyServesItsRuleAlone(t *testing.T) {
	l := newSystem(t)
	s := spec("172.20.0.0/16", "10.0.1.1")
	s.Table, s.Metric = 30, 5
	l.api.route(t, "office", s)
	l.start(true)
	l.reported("office", v1alpha1.RouteApplied, 1)
	l.have("172.20.0.0/16 table 30 metric 5 via 10.0.1.1 dev eth1")
	// Used by packets that a rule sends to the table. Without a rule packets take the default
	// route, to a router that drops them.
	l.swallow("172.20.0.0/16")
	l.unreached("172.20.0.1")
	rule := netlink.NewRule()
	rule.Dst, rule.Table, rule.Priority = wire.IPNet(netip.MustParsePrefix("172.20.0.0/16")), 30, 100
	if err := l.node.Netlink().RuleAdd(rule); err != nil {
		t.Fatal(err)
	}
	l.reach("172.20.0.1")
	l.api.remove(t, "staticroutes", "office")
	l.have()
	l.unreached("172.20.0.1")
}

func TestRoutes_12_IPv6WithALinkLocalGateway(t *testing.T) {
	l := newSystem(t)
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

// Flows are spread over the hops by their weights; over the one that is left when the other is
// lost, or removed.
func TestRoutes_13_ECMPByWeightsAndWithAHopRemoved(t *testing.T) {
	for name, c := range map[string]struct {
		subnet, a, b, server string
		v6                   bool
	}{
		"IPv4": {"172.20.0.0/16", "10.0.0.1", "10.0.1.1", "172.20.0.1", false},
		"IPv6": {"2001:db8:20::/48", "2001:db8::1", "2001:db8:1::1", "2001:db8:20::1", true},
	} {
		t.Run(name, func(t *testing.T) {
			l := newSystem(t)
			l.start(true)
			two := []v1alpha1.NextHop{hop(c.a, "", 3), hop(c.b, "", 1)}
			l.api.route(t, "office", v1alpha1.StaticRouteSpec{Subnet: c.subnet, NextHops: two})
			e := l.reported("office", v1alpha1.RouteApplied, 1)
			if len(e.State.NextHops) != 2 {
				t.Fatalf("resolved to %+v", e.State)
			}
			for _, h := range e.State.NextHops {
				if want := map[string]int32{c.a: 3, c.b: 1}[h.Gateway]; h.Weight != want {
					t.Errorf("resolved to %+v", e.State)
				}
			}
			const flows = 2000 // 1500 to 500, give or take the chance of a hash: 20 standard deviations
			if eth0, eth1 := l.flows(flows, c.v6); eth0 < 2*eth1 || eth0 > 5*eth1 {
				t.Errorf("of %d flows %d over the hop of weight 3, %d over that of weight 1", flows, eth0, eth1)
			}
			l.node.Down(t, "eth1")
			l.reported("office", v1alpha1.RouteDegraded, 1)
			if eth0, eth1 := l.flows(flows, c.v6); eth0 < flows || eth1 > 0 {
				t.Errorf("with one hop lost: of %d flows %d over the other, %d over it", flows, eth0, eth1)
			}
			l.reach(c.server)
			l.node.Up(t, "eth1")
			if c.v6 {
				l.node.Address(t, "eth1", "2001:db8:1::2/64")
			}
			l.reported("office", v1alpha1.RouteApplied, 1)
			l.api.route(t, "office", v1alpha1.StaticRouteSpec{Subnet: c.subnet, NextHops: two[1:]})
			l.reported("office", v1alpha1.RouteApplied, 2)
			l.have("via " + c.b + " dev eth1")
			l.reach(c.server)
			if eth0, eth1 := l.flows(flows, c.v6); eth1 < flows || eth0 > flows/10 {
				t.Errorf("with one hop removed: of %d flows %d over it, %d over the other", flows, eth0, eth1)
			}
		})
	}
}

func TestRoutes_15_ForeignEqualRouteUntouched(t *testing.T) {
	l := newSystem(t)
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
