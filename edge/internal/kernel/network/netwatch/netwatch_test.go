package netwatch_test

import (
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/beehivetest"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netwatch"
)

func TestWakesForLinksAddressesAndRoutes(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("making a network namespace needs root")
	}
	// The thread is not given back: it ends with the test's goroutine, and the namespace with it.
	runtime.LockOSThread()
	namespace, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = namespace.Close() }()
	w := netwatch.New(&namespace)
	bench := beehivetest.Run(t, nil, beehive.Entry{Module: w})
	bench.Await(netwatch.Name, beehive.Ready)

	expect := func(what string, change func() error) {
		t.Helper()
		for drained := false; !drained; {
			select {
			case <-w.C():
			default:
				drained = true
			}
		}
		if err := change(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		select {
		case <-w.C():
		case <-time.After(time.Minute):
			t.Errorf("no wake-up for %s", what)
		}
	}
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "a"}, PeerName: "b"}
	check(t, netlink.LinkAdd(veth))
	peer, err := netlink.LinkByName("b")
	check(t, err)
	check(t, netlink.LinkSetUp(peer))
	expect("a link that comes up", func() error { return netlink.LinkSetUp(veth) })
	address, err := netlink.ParseAddr("192.0.2.1/24")
	check(t, err)
	expect("a new address", func() error { return netlink.AddrAdd(veth, address) })
	to, err := netlink.ParseIPNet("198.51.100.0/24")
	check(t, err)
	expect("a new route", func() error {
		return netlink.RouteAdd(&netlink.Route{LinkIndex: veth.Attrs().Index, Dst: to, Gw: net.IPv4(192, 0, 2, 2)})
	})
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
