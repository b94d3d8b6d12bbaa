package lab

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"

	"github.com/skerry-io/skerry/tests/cluster/host"
)

// Lease is an edge's address and routes in the network of its uplink, as a DHCP server gives them.
// The zero Lease is that of ConnectEdge.
type Lease struct {
	// Last is the last byte of its address; 0: that of Uplink.
	Last byte `json:"last,omitempty"`
	// NoRoute leaves the default route out.
	NoRoute bool `json:"noRoute,omitempty"`
	// None leaves address and routes out: there is the LAN alone.
	None bool `json:"none,omitempty"`
}

// SetLease gives edge n's uplink its IPv4 address and its default route, replacing the previous
// ones.
func SetLease(edge host.Host, n int, lease Lease) error {
	links, err := edge.Netlink()
	if err != nil {
		return err
	}
	defer links.Close()
	wan, err := links.LinkByName(uplink)
	if err != nil {
		return fmt.Errorf("finding %s: %w", uplink, err)
	}
	want := Uplink(n)
	if lease.Last != 0 {
		bytes := want.Addr().As4()
		bytes[3] = lease.Last
		want = netip.PrefixFrom(netip.AddrFrom4(bytes), want.Bits())
	}
	have, err := links.AddrList(wan, nl.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("listing the addresses of %s: %w", uplink, err)
	}
	for _, a := range have {
		if ones, _ := a.Mask.Size(); lease.None || a.IP.String() != want.Addr().String() || ones != want.Bits() {
			if err := links.AddrDel(wan, &a); err != nil { // and its routes
				return fmt.Errorf("removing an address of %s: %w", uplink, err)
			}
		}
	}
	if lease.None {
		return nil
	}
	if err := address(edge, uplink, want); err != nil {
		return err
	}
	if !lease.NoRoute {
		return defaultRoute(edge, gateway(n).Addr())
	}
	routes, err := links.RouteList(wan, nl.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("listing the routes of %s: %w", uplink, err)
	}
	for _, r := range slices.DeleteFunc(routes, func(r netlink.Route) bool { return r.Gw == nil }) {
		if err := links.RouteDel(&r); err != nil {
			return fmt.Errorf("removing the default route: %w", err)
		}
	}
	return nil
}
