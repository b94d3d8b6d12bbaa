package route_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/agents/route"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netroute"
	"github.com/skerry-io/skerry/tests/netns/wire"
)

// delAddress takes an address from an interface of the node.
func (l *system) delAddress(name, address string) {
	l.t.Helper()
	link, err := l.node.Netlink().LinkByName(name)
	if err != nil {
		l.t.Fatal(err)
	}
	if err := l.node.Netlink().AddrDel(link, &netlink.Addr{IPNet: wire.IPNet(netip.MustParsePrefix(address))}); err != nil {
		l.t.Fatal(err)
	}
}

// The node's network is renumbered: the kernel keeps the route, and its gateway is no longer on any
// network.
func TestTraps_11_GatewayNoLongerOnLinkIsDegraded(t *testing.T) {
	for name, c := range map[string]struct{ subnet, gateway, old, renumbered string }{
		"IPv4": {"172.20.0.0/16", "10.0.1.1", "10.0.1.2/24", "10.99.1.2/24"},
		"IPv6": {"2001:db8:20::/48", "2001:db8:1::1", "2001:db8:1::2/64", "2001:db8:99::2/64"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newSystem(t)
			l.api.route(t, "office", spec(c.subnet, c.gateway))
			l.start(true)
			l.reported("office", v1alpha1.RouteApplied, 1)
			l.node.Address(t, "eth1", c.renumbered)
			l.delAddress("eth1", c.old)
			e := l.reported("office", v1alpha1.RouteDegraded, 1)
			if want := "gateway " + c.gateway + " is on no network of eth1 any more"; !strings.Contains(e.Message, want) {
				t.Errorf("message %q, want %q in it", e.Message, want)
			}
			if e.State == nil || e.Repairs != 0 {
				t.Errorf("the kernel has the route, and no other process touched it: %+v", e)
			}
			l.node.Address(t, "eth1", c.old)
			l.reported("office", v1alpha1.RouteApplied, 1)
		})
	}
}

// flows sends a packet to each of n hosts of a /16 or /48 and counts the packets that leave by eth0
// and eth1: the kernel chooses the hop of a flow by its addresses.
func (l *system) flows(n int, v6 bool) (eth0, eth1 int) {
	l.t.Helper()
	before0, before1 := l.sent("eth0"), l.sent("eth1")
	l.node.Must(l.t, func() error {
		conn, err := net.ListenPacket("udp", ":0")
		if err != nil {
			return err
		}
		defer conn.Close()
		for i := range n {
			to := netip.AddrFrom4([4]byte{172, 20, byte(i >> 8), byte(i)})
			if v6 {
				to = netip.MustParseAddr(fmt.Sprintf("2001:db8:20::%x", i+1))
			}
			if _, err := conn.WriteTo(make([]byte, 8), net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, 9))); err != nil {
				return err
			}
		}
		return nil
	})
	return l.sent("eth0") - before0, l.sent("eth1") - before1
}

func (l *system) sent(name string) int {
	link, err := l.node.Netlink().LinkByName(name)
	if err != nil {
		return 0
	}
	return int(link.Attrs().Statistics.TxPackets)
}

func hop(gateway, link string, weight int32) v1alpha1.NextHop {
	return v1alpha1.NextHop{Gateway: gateway, Interface: link, Weight: weight}
}

// Of two uplinks one fails, in each way an uplink can: the route continues over the other, reports
// that, and is complete again when the uplink is back. An edit in between does not change that.
func TestTraps_12_LivingHopsCarryOn(t *testing.T) {
	for name, c := range map[string]struct {
		subnet, a, b, server, address string
		v6                            bool
	}{
		"IPv4": {"172.20.0.0/16", "10.0.0.1", "10.0.1.1", "172.20.0.1", "10.0.1.2/24", false},
		"IPv6": {"2001:db8:20::/48", "2001:db8::1", "2001:db8:1::1", "2001:db8:20::1", "2001:db8:1::2/64", true},
	} {
		t.Run(name, func(t *testing.T) {
			l := newSystem(t)
			two := v1alpha1.StaticRouteSpec{Subnet: c.subnet, NextHops: []v1alpha1.NextHop{hop(c.a, "", 1), hop(c.b, "", 1)}}
			l.api.route(t, "office", two)
			l.start(true)
			l.reported("office", v1alpha1.RouteApplied, 1)
			l.node.Down(t, "eth1")
			e := l.reported("office", v1alpha1.RouteDegraded, 1)
			if !strings.Contains(e.Message, "1 of 2 next hops") || !strings.Contains(e.Message, c.b) || len(e.State.NextHops) != 1 {
				t.Errorf("%q, %+v", e.Message, e.State)
			}
			l.reach(c.server)
			two.MTU = 1400
			l.api.route(t, "office", two)
			l.reported("office", v1alpha1.RouteDegraded, 2)
			l.reach(c.server)
			if eth0, eth1 := l.flows(100, c.v6); eth0 < 100 || eth1 > 0 {
				t.Errorf("of 100 flows %d over the living hop, %d over the dead one", eth0, eth1)
			}
			l.node.Up(t, "eth1")
			if c.v6 {
				l.node.Address(t, "eth1", c.address) // the kernel takes IPv6 addresses away with the interface
			}
			if e := l.reported("office", v1alpha1.RouteApplied, 2); len(e.State.NextHops) != 2 || e.Repairs != 0 {
				t.Errorf("%+v", e)
			}
			// The network card is pulled out: the kernel flushes the whole route.
			link, err := l.node.Netlink().LinkByName("eth1")
			if err != nil {
				t.Fatal(err)
			}
			if err := l.node.Netlink().LinkDel(link); err != nil {
				t.Fatal(err)
			}
			if e := l.reported("office", v1alpha1.RouteDegraded, 2); e.Repairs != 0 {
				t.Errorf("counts as %d repairs", e.Repairs)
			}
			l.reach(c.server)
		})
	}
}

// guarded starts an agent with surroundings, and expects routes to be refused.
func TestTraps_13_RoutesOverSurroundingsAreRefused(t *testing.T) {
	l := newSystem(t)
	l.tune = func(c *route.Config) {
		c.Surroundings = func() route.Surroundings {
			return route.Surroundings{
				Resolvers: []netip.Addr{netip.MustParseAddr("192.0.2.53")}, Pods: []netip.Prefix{netip.MustParsePrefix("10.88.0.0/16")},
			}
		}
		c.Resolve = func(context.Context) []netip.Addr { return []netip.Addr{netip.MustParseAddr("192.0.2.80")} }
	}
	l.api.unsync("servicecidrs")
	l.api.route(t, "services", spec("10.96.7.0/24", "10.0.1.1"))
	l.start(true)
	l.until("the agent to say what it waits for", func() error {
		if w := l.agent.Summary().Waiting; !strings.Contains(w, "ranges of Services") {
			return fmt.Errorf("it says %q", w)
		}
		return nil
	})
	if got := l.routes(); len(got) > 0 {
		t.Errorf("set before the ranges of Services were known: %v", got)
	}
	l.api.services(t, "10.96.0.0/12")
	l.api.sync("servicecidrs")
	l.api.route(t, "dns", spec("192.0.2.53/32", "10.0.1.1"))
	l.api.route(t, "name", spec("192.0.2.80/32", "10.0.1.1"))
	l.api.route(t, "cni", spec("10.88.3.0/24", "10.0.1.1"))
	l.api.route(t, "others", spec("10.244.3.0/24", "10.0.1.1"), func(o *v1alpha1.StaticRoute) {
		o.Annotations = map[string]string{v1alpha1.RouteCoversAnnotation: "10.244.3.0/24, the pods of node edge7"}
	})
	for name, why := range map[string]string{
		"services": "a range of Services", "dns": "the DNS server", "name": "the address of cloudcore", "cni": "CNI plugin", "others": "the pods of node edge7",
	} {
		if e := l.reported(name, v1alpha1.RouteProtected, 1); !strings.Contains(e.Message, why) {
			t.Errorf("%s: message %q, want %q in it", name, e.Message, why)
		}
	}
	l.have()
}

// A device that is restarted without its default route protects the gateway that it had.
func TestTraps_13_GatewaysAreKept(t *testing.T) {
	l := newSystem(t)
	l.api.route(t, "office", spec("172.20.0.0/16", "10.0.1.1"))
	l.start(true)
	l.reported("office", v1alpha1.RouteApplied, 1)
	l.stop()
	if err := l.node.Netlink().RouteDel(&netlink.Route{Dst: wire.IPNet(netip.MustParsePrefix("0.0.0.0/0")), Gw: net.ParseIP("10.0.0.1")}); err != nil {
		t.Fatal(err)
	}
	l.boot = "second boot"
	l.api.route(t, "evil", v1alpha1.StaticRouteSpec{Subnet: "10.0.0.1/32", Type: v1alpha1.RouteBlackhole})
	l.start(false)
	if e := l.reported("evil", v1alpha1.RouteProtected, 1); !strings.Contains(e.Message, "this node's gateway") {
		t.Errorf("message: %s", e.Message)
	}
	l.have("172.20.0.0/16")
}

// nameServer is a way to the cloud that each new connection needs and the open link does not:
// 172.21.0.1.
func (l *system) nameServer(c *route.Config) {
	c.ProbeTimeout = time.Second
	c.Probes = []route.Probe{{What: "the name of cloudcore", Look: func(ctx context.Context) error {
		return l.kernel.Ping(ctx, netip.MustParseAddr("172.21.0.1"), "")
	}}}
}

// The link that is open lives through the route; the next one could not be opened.
func TestTraps_13_ANewConnectionProvesTheRoute(t *testing.T) {
	l := newSystem(t)
	l.tune = l.nameServer
	l.reach("172.21.0.1") // a target that does not answer before the route is no evidence about it
	l.start(true)
	l.api.route(t, "evil", spec("172.21.0.0/24", "10.0.1.99"))
	if e := l.reported("evil", v1alpha1.RouteRolledBack, 1); !strings.Contains(e.Message, "the name of cloudcore does not answer any more") {
		t.Errorf("message: %s", e.Message)
	}
	l.have()
	l.reach("172.21.0.1")
}

// Routes that were set without a link are watched as soon as there is one: the one that cuts is
// found among those that don't, which stay.
func TestTraps_13_RoutesSetOfflineAreWatchedAtLinkUp(t *testing.T) {
	l := newSystem(t)
	l.tune = l.nameServer
	l.api.route(t, "fine", spec("172.20.0.0/16", "10.0.1.1"))
	l.api.route(t, "evil", spec("172.21.0.0/24", "10.0.1.99"))
	l.api.route(t, "good", spec("172.28.0.0/16", "10.0.1.1"))
	l.start(false)
	l.reported("evil", v1alpha1.RouteApplied, 1) // no request is possible
	l.have("172.20.0.0/16", "172.21.0.0/24", "172.28.0.0/16")
	l.hub.set(true)
	l.reported("evil", v1alpha1.RouteRolledBack, 1)
	l.have("172.20.0.0/16", "172.28.0.0/16")
	l.reported("fine", v1alpha1.RouteApplied, 1)
	l.reported("good", v1alpha1.RouteApplied, 1)
	l.reach("172.21.0.1")
}

// late is a kernel whose events on routes are late: events wait until hold is closed.
type late struct {
	*netroute.Driver
	hold chan struct{}
}

func (k *late) Watch(ctx context.Context, started func(), handle func(netroute.Event)) error {
	return k.Driver.Watch(ctx, started, func(e netroute.Event) {
		select {
		case <-k.hold:
		case <-ctx.Done():
		}
		handle(e)
	})
}

// The link opens between the setting of a route and the kernel's own word on it: the agent has set
// it unwatched, and has not read it back.
func TestTraps_13_RouteIsWatchedThoughTheLinkOpensFirst(t *testing.T) {
	l := newSystem(t)
	kernel := &late{Driver: l.kernel, hold: make(chan struct{})}
	l.tune = func(c *route.Config) {
		l.nameServer(c)
		c.Open = func(context.Context) (route.Kernel, func(), error) { return kernel, func() {}, nil }
		c.FullCheck, c.ConfirmAfter = time.Hour, time.Hour // only the link and the kernel wake the agent
	}
	l.api.route(t, "evil", spec("172.21.0.0/24", "10.0.1.99"))
	l.start(false)
	l.have("172.21.0.0/24")
	var before uint64
	l.until("the agent to rest", func() error {
		syncs := l.agent.State().Syncs
		if before != syncs || syncs == 0 {
			before = syncs
			return fmt.Errorf("%d syncs", syncs)
		}
		return nil
	})
	l.hub.set(true)
	l.until("the agent to take the link in", func() error {
		if l.agent.State().Syncs == before {
			return fmt.Errorf("still %d syncs", before)
		}
		return nil
	})
	close(kernel.hold)
	l.reported("evil", v1alpha1.RouteRolledBack, 1)
	l.have()
	l.reach("172.21.0.1")
}

// cutting is a kernel with a cable: onAdd is called when a route was set.
type cutting struct {
	*netroute.Driver
	mu    sync.Mutex
	onAdd func()
}

func (k *cutting) Add(ctx context.Context, r netroute.Route) error {
	err := k.Driver.Add(ctx, r)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.onAdd != nil {
		k.onAdd()
		k.onAdd = nil
	}
	return err
}

// The cable to the cloud is cut at the moment when a route is set, by coincidence.
func TestTraps_14_ACutCableIsNotTheRoutesFault(t *testing.T) {
	for name, long := range map[string]bool{"it is mended soon": false, "it is mended after the node gave up": true} {
		t.Run(name, func(t *testing.T) {
			l := newSystem(t)
			kernel := &cutting{Driver: l.kernel}
			l.tune = func(c *route.Config) {
				c.ProbeTimeout = time.Second
				c.Open = func(context.Context) (route.Kernel, func(), error) { return kernel, func() {}, nil }
			}
			l.start(true)
			l.api.route(t, "fine", spec("172.20.0.0/16", "10.0.1.1"))
			l.reported("fine", v1alpha1.RouteApplied, 1)
			kernel.mu.Lock()
			kernel.onAdd = func() { l.a.Down(t, "server") } // behind the gateway: the node's own interface stays up
			kernel.mu.Unlock()
			l.api.route(t, "office", spec("172.21.0.0/16", "10.0.1.1"))
			l.until("the route to be taken back", func() error {
				kernel.mu.Lock()
				cut := kernel.onAdd == nil
				kernel.mu.Unlock()
				if got := len(l.routes()); !cut || got != 1 {
					return fmt.Errorf("%d routes, cable cut: %v", got, cut)
				}
				return nil
			})
			if long {
				if e := l.reported("office", v1alpha1.RouteRolledBack, 1); !strings.Contains(e.Message, "applies the route again when the link opens") {
					t.Errorf("message: %s", e.Message)
				}
			}
			l.a.Up(t, "server")
			l.a.Route(t, "198.51.100.0/24", "10.9.0.2")
			if long {
				l.hub.set(true) // another session
			}
			l.reported("office", v1alpha1.RouteApplied, 1)
			l.have("172.20.0.0/16", "172.21.0.0/16")
			for _, e := range l.all("office") {
				if !long && e.Reason == v1alpha1.RouteRolledBack {
					t.Errorf("blamed: %s", e.Message)
				}
			}
		})
	}
}

// Of two StaticRoutes of one second the same one wins on every node and after every restart,
// whatever their names.
func TestTraps_14_TwoOfOneSecondHaveOneWinner(t *testing.T) {
	l := newSystem(t)
	withUID := func(uid string) func(*v1alpha1.StaticRoute) {
		return func(o *v1alpha1.StaticRoute) {
			o.UID, o.CreationTimestamp = types.UID(uid), metav1.Unix(1_000_000_000, 0)
		}
	}
	l.api.route(t, "z", spec("172.20.0.0/16", "10.0.0.1"), withUID("1"))
	l.start(true)
	l.reported("z", v1alpha1.RouteApplied, 1)
	l.api.route(t, "a", spec("172.20.0.0/16", "10.0.1.1"), withUID("2"))
	for range 2 {
		e := l.reported("a", v1alpha1.RouteConflict, 1)
		if want := "StaticRoute z, which was created in the same second and has the lower UID"; !strings.Contains(e.Message, want) {
			t.Errorf("message %q, want %q in it", e.Message, want)
		}
		l.have("via 10.0.0.1 dev eth0")
		l.stop()
		l.boot += ", again"
		l.start(true)
	}
	l.api.remove(t, "staticroutes", "z")
	l.reported("a", v1alpha1.RouteApplied, 1)
	l.have("via 10.0.1.1 dev eth1")
}
