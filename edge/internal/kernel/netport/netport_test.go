package netport_test

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/skerry-io/skerry/edge/internal/kernel/netport"
	"github.com/skerry-io/skerry/tests/netns/wire"
)

// What the device needs is given to no pod: the port with its default route, the way to the cloud,
// or an address of its own.
func TestClaims_05_PortThatTheDeviceNeeds(t *testing.T) {
	device, lan := wire.NewHost(t), wire.NewHost(t)
	for name, address := range map[string]string{"wan0": "198.51.100.2/24", "lan0": "192.168.7.2/24", "cloud0": "203.0.113.2/24", "cam0": "192.168.8.2/24"} {
		wire.Cable(t, device, name, lan, "peer-"+name)
		device.Address(t, name, address)
	}
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}
	if err := netlink.LinkAdd(bridge); err != nil {
		t.Fatal(err)
	}
	if err := netlink.AddrAdd(bridge, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(192, 168, 9, 2), Mask: net.CIDRMask(24, 32)}}); err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetMaster(add("slave0", "192.168.10.2/24"), bridge); err != nil {
		t.Fatal(err)
	}
	ways, own := []netip.Addr{netip.MustParseAddr("203.0.113.10")}, []netip.Addr{netip.MustParseAddr("192.168.7.2"), netip.MustParseAddr("192.168.9.2")}
	for port, want := range map[string]string{"wan0": "default route", "lan0": "an address of this node", "cloud0": "cloudcore", "cam0": "", "missing0": "", "slave0": "part of br0"} {
		why, err := netport.Depends(port, ways, own)
		if err != nil || want == "" && why != "" || !strings.Contains(why, want) {
			t.Errorf("%s: %q, %v; want %q", port, why, err, want)
		}
		return nil
	})
}
