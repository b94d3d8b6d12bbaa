package netif_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/skerry-io/skerry/edge/internal/kernel/network/netif"
	"github.com/skerry-io/skerry/tests/netns/wire"
)

// A port that the device needs is not given to a pod: that of its default route, of the route to
// the cloud, or of an address of its own.
func TestClaims_05_PortThatTheDeviceNeeds(t *testing.T) {
	device, lan := wire.NewHost(t), wire.NewHost(t)
	for name, address := range map[string]string{"wan0": "198.51.100.2/24", "lan0": "192.168.7.2/24", "cloud0": "203.0.113.2/24", "cam0": "192.168.8.2/24"} {
		wire.Cable(t, device, name, lan, "peer-"+name)
		device.Address(t, name, address)
	}
	device.Route(t, "0.0.0.0/0", "198.51.100.1")
	wire.Cable(t, device, "slave0", lan, "peer-slave0")
	device.Must(t, func() error {
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}
		if err := netlink.LinkAdd(bridge); err != nil {
			return err
		}
		slave, err := netlink.LinkByName("slave0")
		if err != nil {
			return err
		}
		return netlink.LinkSetMaster(slave, bridge)
	})
	device.Address(t, "br0", "192.168.9.2/24")
	ways, own := []netip.Addr{netip.MustParseAddr("203.0.113.10")}, []netip.Addr{netip.MustParseAddr("192.168.7.2"), netip.MustParseAddr("192.168.9.2")}
	device.Must(t, func() error {
		for port, want := range map[string]string{"wan0": "default route", "lan0": "an address of this node", "cloud0": "cloudcore", "cam0": "", "missing0": "", "slave0": "part of br0"} {
			why, err := netif.Depends(port, ways, own)
			if err != nil || want == "" && why != "" || !strings.Contains(why, want) {
				t.Errorf("%s: %q, %v; want %q", port, why, err, want)
			}
		}
		return nil
	})
}
