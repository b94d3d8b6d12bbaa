package netroute_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/skerry-io/skerry/edge/internal/kernel/network/netroute"
	"github.com/skerry-io/skerry/tests/netns/wire"
)

const protocol = 158

var compare = cmp.Options{cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}), cmpopts.EquateEmpty()}

func open(t *testing.T, h *wire.Host) *netroute.Driver {
	t.Helper()
	var d *netroute.Driver
	h.Must(t, func() (err error) {
		d, err = netroute.Open(netroute.Config{Protocol: protocol})
		return err
	})
	t.Cleanup(d.Close)
	return d
}

func ours(t *testing.T, d *netroute.Driver) map[netroute.Key]netroute.Found {
	t.Helper()
	var all map[netroute.Key]netroute.Found
	err := d.Routes(t.Context(), func() { all = map[netroute.Key]netroute.Found{} }, func(f netroute.Found) {
		if d.Ours(f) {
			all[f.Key] = f
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func key(table uint32, prefix string, metric uint32) netroute.Key {
	return netroute.NewKey(table, netip.MustParsePrefix(prefix), metric)
}

func via(gateway string) netroute.Hop { return netroute.Hop{Gateway: netip.MustParseAddr(gateway)} }

// system is a node with two networks, a router on each, and a server behind both.
type system struct {
	node, a, b, server *wire.Host
	driver             *netroute.Driver
}

func newSystem(t *testing.T) system {
	t.Helper()
	s := system{node: wire.NewHost(t), a: wire.NewHost(t), b: wire.NewHost(t), server: wire.NewHost(t)}
	for n, r := range []*wire.Host{s.a, s.b} {
		name := fmt.Sprintf("eth%d", n)
		wire.Cable(t, s.node, name, r, "node")
		s.node.Address(t, name, fmt.Sprintf("10.0.%d.2/24", n))
		r.Address(t, "node", fmt.Sprintf("10.0.%d.1/24", n))
		s.node.Address(t, name, fmt.Sprintf("2001:db8:%d::2/64", n))
		r.Address(t, "node", fmt.Sprintf("2001:db8:%d::1/64", n))
		wire.Cable(t, s.server, name, r, "server")
		s.server.Address(t, name, fmt.Sprintf("10.9.%d.2/24", n))
		r.Address(t, "server", fmt.Sprintf("10.9.%d.1/24", n))
		s.server.Address(t, name, fmt.Sprintf("2001:db8:9%d::2/64", n))
		r.Address(t, "server", fmt.Sprintf("2001:db8:9%d::1/64", n))
		r.Route(t, "172.20.0.0/16", fmt.Sprintf("10.9.%d.2", n))
		r.Route(t, "2001:db8:20::/48", fmt.Sprintf("2001:db8:9%d::2", n))
		s.server.Route(t, fmt.Sprintf("10.0.%d.0/24", n), fmt.Sprintf("10.9.%d.1", n))
		s.server.Route(t, fmt.Sprintf("2001:db8:%d::/64", n), fmt.Sprintf("2001:db8:9%d::1", n))
	}
	s.server.Address(t, "lo", "172.20.0.1/32")
	s.server.Address(t, "lo", "2001:db8:20::1/128")
	s.driver = open(t, s.node)
	return s
}

func (s system) reach(t *testing.T, to string) error {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	return s.driver.Ping(ctx, netip.MustParseAddr(to), "")
}

func (s system) unreached(t *testing.T, to string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 600*time.Millisecond)
	defer cancel()
	if err := s.driver.Ping(ctx, netip.MustParseAddr(to), ""); err == nil {
		t.Errorf("%s answers", to)
	}
}

func TestDriver_Routes(t *testing.T) {
	s := newSystem(t)
	fe80 := s.a.LinkLocal(t, "node")
	for name, c := range map[string]struct {
		route netroute.Route
		want  []netroute.Hop // as read back
		ping  string
	}{
		"a gateway":         {netroute.Route{Key: key(0, "172.20.0.0/16", 0), Hops: []netroute.Hop{via("10.0.0.1")}}, []netroute.Hop{{netip.MustParseAddr("10.0.0.1"), "eth0", 1, false}}, "172.20.0.1"},
		"an IPv6 gateway":   {netroute.Route{Key: key(0, "2001:db8:20::/48", 0), Hops: []netroute.Hop{via("2001:db8::1")}}, []netroute.Hop{{netip.MustParseAddr("2001:db8::1"), "eth0", 1, false}}, "2001:db8:20::1"},
		"a link-local one":  {netroute.Route{Key: key(0, "2001:db8:20::/48", 0), Hops: []netroute.Hop{{Gateway: fe80, Interface: "eth0"}}}, []netroute.Hop{{fe80, "eth0", 1, false}}, "2001:db8:20::1"},
		"a metric, an mtu":  {netroute.Route{Key: key(0, "172.20.0.0/16", 7), MTU: 1400, Hops: []netroute.Hop{via("10.0.1.1")}}, []netroute.Hop{{netip.MustParseAddr("10.0.1.1"), "eth1", 1, false}}, "172.20.0.1"},
		"a source":          {netroute.Route{Key: key(0, "172.20.0.0/16", 0), Source: netip.MustParseAddr("10.0.1.2"), Hops: []netroute.Hop{via("10.0.1.1")}}, []netroute.Hop{{netip.MustParseAddr("10.0.1.1"), "eth1", 1, false}}, "172.20.0.1"},
		"an interface":      {netroute.Route{Key: key(0, "172.29.0.0/16", 0), Hops: []netroute.Hop{{Interface: "eth1"}}}, []netroute.Hop{{netip.Addr{}, "eth1", 1, false}}, ""},
		"on link":           {netroute.Route{Key: key(0, "172.29.0.0/16", 0), Hops: []netroute.Hop{{Gateway: netip.MustParseAddr("192.0.2.1"), Interface: "eth1", OnLink: true}}}, []netroute.Hop{{netip.MustParseAddr("192.0.2.1"), "eth1", 1, true}}, ""},
		"a table":           {netroute.Route{Key: key(30, "172.20.0.0/16", 0), Hops: []netroute.Hop{via("10.0.0.1")}}, []netroute.Hop{{netip.MustParseAddr("10.0.0.1"), "eth0", 1, false}}, ""},
		"a high table":      {netroute.Route{Key: key(100000, "172.20.0.0/16", 0), Hops: []netroute.Hop{via("10.0.0.1")}}, []netroute.Hop{{netip.MustParseAddr("10.0.0.1"), "eth0", 1, false}}, ""},
		"the default route": {netroute.Route{Key: key(30, "0.0.0.0/0", 0), Hops: []netroute.Hop{via("10.0.0.1")}}, []netroute.Hop{{netip.MustParseAddr("10.0.0.1"), "eth0", 1, false}}, ""},
		"the IPv6 default":  {netroute.Route{Key: key(30, "::/0", 5), Hops: []netroute.Hop{via("2001:db8::1")}}, []netroute.Hop{{netip.MustParseAddr("2001:db8::1"), "eth0", 1, false}}, ""},
		"weights":           {netroute.Route{Key: key(0, "172.20.0.0/16", 0), Hops: []netroute.Hop{{Gateway: netip.MustParseAddr("10.0.0.1"), Weight: 3}, via("10.0.1.1")}}, []netroute.Hop{{netip.MustParseAddr("10.0.0.1"), "eth0", 3, false}, {netip.MustParseAddr("10.0.1.1"), "eth1", 1, false}}, "172.20.0.1"},
		"IPv6 weights":      {netroute.Route{Key: key(0, "2001:db8:20::/48", 0), Hops: []netroute.Hop{{Gateway: netip.MustParseAddr("2001:db8::1"), Weight: 3}, via("2001:db8:1::1")}}, []netroute.Hop{{netip.MustParseAddr("2001:db8::1"), "eth0", 3, false}, {netip.MustParseAddr("2001:db8:1::1"), "eth1", 1, false}}, "2001:db8:20::1"},
		"a blackhole":       {netroute.Route{Key: key(0, "172.20.0.0/16", 0), Type: netroute.Blackhole}, nil, ""},
		"unreachable":       {netroute.Route{Key: key(0, "2001:db8:20::/48", 0), Type: netroute.Unreachable}, nil, ""},
		"prohibited":        {netroute.Route{Key: key(0, "172.20.0.0/16", 9), Type: netroute.Prohibit}, nil, ""},
		"an IPv6 blackhole": {netroute.Route{Key: key(0, "2001:db8:20::/48", 0), Type: netroute.Blackhole}, nil, ""},
		"a host":            {netroute.Route{Key: key(0, "172.20.0.1/32", 0), Hops: []netroute.Hop{via("10.0.0.1")}}, []netroute.Hop{{netip.MustParseAddr("10.0.0.1"), "eth0", 1, false}}, "172.20.0.1"},
	} {
		t.Run(name, func(t *testing.T) {
			r := c.route
			if r.Type == 0 {
				r.Type = netroute.Unicast
			}
			if err := s.driver.Add(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			got, want := ours(t, s.driver), r
			want.Hops = c.want
			if diff := cmp.Diff(map[netroute.Key]netroute.Found{r.Key: {Route: want, Protocol: protocol}}, got, compare); diff != "" {
				t.Errorf("read back (-want +got):\n%s", diff)
			}
			if !got[r.Key].Satisfies(r) {
				t.Error("what was read back does not satisfy what was written")
			}
			if c.ping != "" {
				if err := s.reach(t, c.ping); err != nil {
					t.Error(err)
				}
			}
			if err := s.driver.Add(t.Context(), r); !errors.Is(err, netroute.ErrExists) {
				t.Errorf("a second time: %v, want %v", err, netroute.ErrExists)
			}
			if err := s.driver.Replace(t.Context(), r); err != nil {
				t.Errorf("replaced by itself: %v", err)
			}
			for range 2 { // the second time the route is missing, which is no error
				if err := s.driver.Delete(t.Context(), r); err != nil {
					t.Error(err)
				}
			}
			if got := ours(t, s.driver); len(got) != 0 {
				t.Errorf("left after the deletion: %v", got)
			}
		})
	}
}

func TestRoutes_07_UnreachableGatewayIsAnErrorAndNoRoute(t *testing.T) {
	s := newSystem(t)
	s.node.Down(t, "eth1")
	for name, c := range map[string]struct {
		route netroute.Route
		want  error
	}{
		"on no network":             {netroute.Route{Key: key(0, "172.20.0.0/16", 0), Hops: []netroute.Hop{via("10.7.7.7")}}, netroute.ErrNoGateway},
		"IPv6, on no network":       {netroute.Route{Key: key(0, "2001:db8:20::/48", 0), Hops: []netroute.Hop{via("2001:db8:7::7")}}, netroute.ErrNoGateway},
		"in another table":          {netroute.Route{Key: key(30, "172.20.0.0/16", 0), Hops: []netroute.Hop{via("10.7.7.7")}}, netroute.ErrNoGateway},
		"one hop of two":            {netroute.Route{Key: key(0, "172.20.0.0/16", 0), Hops: []netroute.Hop{via("10.0.0.1"), via("10.7.7.7")}}, netroute.ErrNoGateway},
		"on another interface":      {netroute.Route{Key: key(0, "172.20.0.0/16", 0), Hops: []netroute.Hop{{Gateway: netip.MustParseAddr("10.7.7.7"), Interface: "eth0"}}}, netroute.ErrNoGateway},
		"no interface of the name":  {netroute.Route{Key: key(0, "172.20.0.0/16", 0), Hops: []netroute.Hop{{Interface: "wlan7"}}}, netroute.ErrNoLink},
		"an interface that is down": {netroute.Route{Key: key(0, "172.20.0.0/16", 0), Hops: []netroute.Hop{{Interface: "eth1"}}}, netroute.ErrLinkDown},
		"a source of elsewhere":     {netroute.Route{Key: key(0, "172.20.0.0/16", 0), Source: netip.MustParseAddr("10.7.7.7"), Hops: []netroute.Hop{via("10.0.0.1")}}, netroute.ErrNoSource},
	} {
		t.Run(name, func(t *testing.T) {
			c.route.Type = netroute.Unicast
			if err := s.driver.Add(t.Context(), c.route); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
	if got := ours(t, s.driver); len(got) != 0 {
		t.Errorf("routes were made all the same: %v", got)
	}
}

func TestRoutes_13_ECMPByWeightsAndWithAHopRemoved(t *testing.T) {
	for name, c := range map[string]struct{ key, a, b, server string }{
		"IPv4": {"172.20.0.0/16", "10.0.0.1", "10.0.1.1", "172.20.0.1"},
		"IPv6": {"2001:db8:20::/48", "2001:db8::1", "2001:db8:1::1", "2001:db8:20::1"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSystem(t)
			two := netroute.Route{Key: key(0, c.key, 0), Type: netroute.Unicast, Hops: []netroute.Hop{{Gateway: netip.MustParseAddr(c.a), Weight: 2}, via(c.b)}}
			if err := s.driver.Add(t.Context(), two); err != nil {
				t.Fatal(err)
			}
			if err := s.reach(t, c.server); err != nil {
				t.Fatal(err)
			}
			for _, next := range []netroute.Route{
				{Key: two.Key, Type: netroute.Unicast, Hops: []netroute.Hop{via(c.b)}}, // one hop removed
				two, // and put back
				{Key: two.Key, Type: netroute.Unicast, Hops: []netroute.Hop{via(c.a), {Gateway: netip.MustParseAddr(c.b), Weight: 5}}},
				{Key: two.Key, Type: netroute.Blackhole},
				{Key: two.Key, Type: netroute.Unicast, Hops: []netroute.Hop{via(c.a)}},
			} {
				if err := s.driver.Replace(t.Context(), next); err != nil {
					t.Fatal(err)
				}
				if got := ours(t, s.driver)[two.Key]; !got.Satisfies(next) {
					t.Errorf("got %v, want %v", got, next)
				}
				if next.Type != netroute.Unicast {
					s.unreached(t, c.server)
				} else if err := s.reach(t, c.server); err != nil {
					t.Errorf("with %v: %v", next, err)
				}
			}
		})
	}
}

// Deleting ours leaves another process' route of the same subnet alone, whatever it looks like.
func TestRoutes_15_ForeignStays(t *testing.T) {
	s := newSystem(t)
	for _, subnet := range []string{"172.20.0.0/16", "2001:db8:20::/48"} {
		gateway := map[bool]string{true: "10.0.0.1", false: "2001:db8::1"}[subnet[0] == '1']
		s.node.Route(t, subnet, gateway)
		ours := netroute.Route{Key: key(0, subnet, 0), Type: netroute.Unicast, Hops: []netroute.Hop{via(gateway)}}
		if err := s.driver.Add(t.Context(), ours); !errors.Is(err, netroute.ErrExists) {
			t.Errorf("%s: added beside the foreign one: %v", subnet, err)
		}
		if err := s.driver.Delete(t.Context(), ours); err != nil {
			t.Error(err)
		}
		n := 0
		if err := s.driver.Routes(t.Context(), func() { n = 0 }, func(f netroute.Found) {
			if f.Key == ours.Key && !s.driver.Ours(f) {
				n++
			}
		}); err != nil || n != 1 {
			t.Errorf("%s: %d foreign routes, %v; want it untouched", subnet, n, err)
		}
	}
}

func TestDriver_Watch(t *testing.T) {
	s := newSystem(t)
	events := make(chan netroute.Event, 100)
	ctx, cancel := context.WithCancel(t.Context())
	started, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- s.driver.Watch(ctx, func() { close(started) }, func(e netroute.Event) { events <- e })
	}()
	select {
	case <-started:
	case err := <-ended:
		t.Fatal(err)
	}
	r := netroute.Route{Key: key(30, "172.20.0.0/16", 0), Type: netroute.Unicast, Hops: []netroute.Hop{via("10.0.0.1")}}
	next := func(what string, is func(netroute.Event) bool) {
		t.Helper()
		timeout := time.NewTimer(10 * time.Second)
		defer timeout.Stop()
		for {
			select {
			case e := <-events:
				if is(e) {
					return
				}
			case <-timeout.C:
				t.Fatalf("no event: %s", what)
			}
		}
	}
	if err := s.driver.Add(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	next("added", func(e netroute.Event) bool {
		return e.Route != nil && !e.Gone && e.Route.Satisfies(r) && s.driver.Ours(*e.Route)
	})
	if err := s.driver.Delete(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	next("deleted", func(e netroute.Event) bool { return e.Route != nil && e.Gone && e.Route.Key == r.Key })
	s.node.Down(t, "eth0")
	next("link", func(e netroute.Event) bool { return e.Links })
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("the watch ended with %v", err)
	}
}

func TestRoutes_21_LostEventsAreNoticed(t *testing.T) {
	h := wire.NewHost(t)
	var d *netroute.Driver
	h.Must(t, func() (err error) {
		d, err = netroute.Open(netroute.Config{Protocol: protocol, Buffer: 4096})
		return err
	})
	t.Cleanup(d.Close)
	started, ended := make(chan struct{}), make(chan error, 1)
	block := make(chan struct{})
	go func() {
		ended <- d.Watch(t.Context(), func() { close(started) }, func(netroute.Event) { <-block })
	}()
	<-started
	for i := range 1000 {
		r := &netlink.Route{Dst: wire.IPNet(netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)}), 32)), Type: unix.RTN_BLACKHOLE}
		if err := h.Netlink().RouteAdd(r); err != nil {
			t.Fatal(err)
		}
	}
	close(block)
	if err := <-ended; !errors.Is(err, netroute.ErrLost) {
		t.Errorf("got %v, want %v", err, netroute.ErrLost)
	}
}

func TestNextHop(t *testing.T) {
	s := newSystem(t)
	s.node.Route(t, "0.0.0.0/0", "10.0.1.1")
	for to, want := range map[string]netroute.Hop{
		"203.0.113.9": {netip.MustParseAddr("10.0.1.1"), "eth1", 1, false},
		"10.0.0.77":   {netip.Addr{}, "eth0", 1, false},
	} {
		got, err := s.driver.NextHop(netip.MustParseAddr(to))
		if diff := cmp.Diff(want, got, compare); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", to, err, diff)
		}
	}
}
