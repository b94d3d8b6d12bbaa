package netport_test

import (
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/skerry-io/skerry/edge/internal/kernel/netport"
)

// What the device needs is given to no pod: the port with its default route, the way to the cloud,
// or an address of its own.
func TestClaims_05_PortThatTheDeviceNeeds(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	if _, err := netns.New(); err != nil {
		t.Fatal(err)
	}
	add := func(name, address string) netlink.Link {
		l := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "peer-" + name}
		if err := netlink.LinkAdd(l); err != nil {
			t.Fatal(err)
		}
		a, err := netlink.ParseAddr(address)
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.AddrAdd(l, a); err != nil {
			t.Fatal(err)
		}
		if err := netlink.LinkSetUp(l); err != nil {
			t.Fatal(err)
		}
		peer, err := netlink.LinkByName("peer-" + name)
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.LinkSetUp(peer); err != nil {
			t.Fatal(err)
		}
		return l
	}
	wan := add("wan0", "198.51.100.2/24")
	add("lan0", "192.168.7.2/24")
	add("cloud0", "203.0.113.2/24")
	add("cam0", "192.168.8.2/24")
	if err := netlink.RouteAdd(&netlink.Route{LinkIndex: wan.Attrs().Index, Gw: []byte{198, 51, 100, 1}}); err != nil {
		t.Fatal(err)
	}
	ways, own := []netip.Addr{netip.MustParseAddr("203.0.113.10")}, []netip.Addr{netip.MustParseAddr("192.168.7.2")}
	for port, want := range map[string]string{"wan0": "default route", "lan0": "an address of this node", "cloud0": "cloudcore", "cam0": "", "missing0": ""} {
		why, err := netport.Depends(port, ways, own)
		if err != nil || want == "" && why != "" || !strings.Contains(why, want) {
			t.Errorf("%s: %q, %v; want %q", port, why, err, want)
		}
	}
}
