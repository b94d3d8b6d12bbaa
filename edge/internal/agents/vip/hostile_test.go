package vip_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
	"github.com/skerry-io/skerry/tests/cluster/poll"
)

// mac is the hardware address of a host on the LAN.
func mac(h interface{ Shell(string) string }) string {
	return strings.Fields(h.Shell("ip -o link show dev lan0 2>/dev/null | sed 's/.*link.ether //'"))[0]
}

// at is a VirtualIP of the site with another address and number.
func (s *system) at(address string, vrid int32) *v1alpha1.VirtualIP {
	v := s.vip()
	v.Spec.Address, v.Spec.VRID = address, vrid
	v.Name, v.UID = v1alpha1.VirtualIPName(netip.MustParseAddr(address), ""), types.UID(address)
	return v
}

// A node that is assigned an address of another host does not claim it, reports why, and serves the
// rest.
func TestHostile_03_DeviceClaimsNoAddressOfAnotherHost(t *testing.T) {
	s := newSystem(t, 1)
	n := s.nodes[0]
	n.host.Shell("ip route add default via 10.79.0.254; ip link add cni0 type bridge; ip addr add 10.244.1.1/24 dev cni0; ip link set cni0 up")
	n.guards = []netip.Prefix{netip.MustParsePrefix("10.79.0.66/32")}
	bad := map[string]string{
		"10.79.0.254": "gateway", "10.79.0.1": "own address", "10.79.0.66": "cloudcore", "10.79.0.255": "broadcast", "10.80.0.9": "no interface",
		"10.244.1.77": "no interface", "169.254.20.20": "link-local",
	}
	vrid := int32(60)
	for address := range bad {
		s.give(s.at(address, vrid))
		vrid++
	}
	s.give(s.vip())
	s.start()
	s.one()
	for address, why := range bad {
		poll.True(t, address+" is refused", func() bool {
			e := n.report(address)
			return e.State == v1alpha1.VIPFault && !e.Programmed && strings.Contains(e.Message, why)
		})
	}
	if conf := n.host.Shell("cat " + n.dir + "/run/keepalived.conf"); strings.Count(conf, "vrrp_instance") != 1 {
		t.Errorf("keepalived was asked for more than one address:\n%s", conf)
	}
	// The interface that the pool names is not on the address's network.
	v := s.at("10.80.0.9", 99)
	v.Spec.Interface = "lan0"
	s.give(v)
	poll.True(t, "the interface is refused", func() bool {
		return strings.Contains(n.report("10.80.0.9").Message, "interface lan0 is not on the network")
	})
}

// If cloudcore has a name, the address of a link is not claimed, nor after a restart without a
// link.
func TestHostile_03_AddressOfACloudWithANameIsNotClaimed(t *testing.T) {
	s := newSystem(t, 1)
	n := s.nodes[0]
	s.lan.Host("10.79.0.67/24").Serve(8443, "cloud")
	n.cloud = "10.79.0.67:8443"
	n.link = linkstate.Link{Remote: "cloud.example.com:10000", Address: netip.MustParseAddr("10.79.0.66")}
	s.give(s.vip())
	s.give(s.at("10.79.0.66", 77)) // no host on the LAN has it
	s.start()
	s.one()
	refused := func() bool {
		e := n.report("10.79.0.66")
		return e.State == v1alpha1.VIPFault && strings.Contains(e.Message, "the address of cloudcore")
	}
	poll.True(t, "it is refused", refused)
	n.stop()
	if err := os.Remove(filepath.Join(n.dir, "report-10.79.0.66")); err != nil {
		t.Fatal(err)
	}
	n.cloud = ""
	n.start()
	s.one()
	poll.True(t, "it is refused without a link", refused)
	if n.has("10.79.0.66") {
		t.Error("the node has it")
	}
}

// An address with which the node loses the cloud, and which no guard has, is released permanently.
func TestHostile_03_AddressThatCutsTheNodeOffIsGivenUp(t *testing.T) {
	s := newSystem(t, 1)
	n := s.nodes[0]
	cloud := s.lan.Host("10.79.0.66/24")
	cloud.Serve(8443, "cloud")
	cloud.Shell("echo 8 > /proc/sys/net/ipv4/conf/all/arp_ignore") // a probe finds no host
	n.host.Shell("ip neigh replace 10.79.0.66 lladdr " + mac(cloud) + " nud permanent dev lan0")
	n.cloud, n.times.Answer = "10.79.0.66:8443", 4*time.Second // three times: for both addresses, then for each
	s.give(s.vip())
	s.give(s.at("10.79.0.66", 77))
	s.start()
	s.one() // another address is served, and proves harmless
	cutOff := func() bool {
		return strings.Contains(n.report("10.79.0.66").Message, "lost the cloud when it took the address")
	}
	t.Cleanup(func() { t.Logf("%+v", n.report("10.79.0.66")) })
	poll.True(t, "the address is given up", cutOff)
	if n.has("10.79.0.66") || n.report("10.79.0.66").State != v1alpha1.VIPFault {
		t.Errorf("it is %+v", n.report("10.79.0.66"))
	}
	if _, _, err := n.host.Ask("tcp", n.cloud, patience); err != nil {
		t.Errorf("the cloud: %v", err)
	}
	// Also after a restart, and the other address is still served.
	n.stop()
	n.start()
	s.one()
	poll.True(t, "it stays given up", cutOff)
	if n.has("10.79.0.66") {
		t.Error("it was claimed again")
	}
}
