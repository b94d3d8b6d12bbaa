package podnet_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/claim"
	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/masquerade"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/lan"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netroute"
	"github.com/skerry-io/skerry/edge/internal/site/contact"
	"github.com/skerry-io/skerry/edge/internal/site/peers"
	"github.com/skerry-io/skerry/edge/internal/site/podnet"
)

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, t := range texts {
		all = append(all, netip.MustParsePrefix(t))
	}
	return all
}

func member(node, address string, ranges ...string) peers.Member {
	return peers.Member{Node: node, Addresses: []netip.Addr{netip.MustParseAddr(address)}, PodCIDRs: prefixes(ranges...)}
}

func state(edit func(*podnet.State)) podnet.State {
	s := podnet.State{
		Self: "a",
		Node: &corev1.Node{Spec: corev1.NodeSpec{PodCIDRs: []string{"10.1.0.0/24"}}},
		Site: &peers.Site{PodNetwork: "Auto", Members: []peers.Member{member("a", "192.168.1.1", "10.1.0.0/24"), member("b", "192.168.1.2", "10.1.1.0/24")}},
		Networks: []lan.Network{
			{Interface: "lan0", Prefix: netip.MustParsePrefix("192.168.1.1/24"), Carrier: true, MTU: 1500},
			{Interface: "wan0", Prefix: netip.MustParsePrefix("10.10.1.2/24"), Carrier: true, MTU: 1400},
		},
	}
	if edit != nil {
		edit(&s)
	}
	return s
}

// text is a plan as a person would write it down.
func text(p podnet.Plan) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n", p.Reason, p.Message)
	if p.Routes == nil {
		fmt.Fprintln(&b, "routes and tunnel stay")
	}
	var lines []string
	for key, r := range p.Routes {
		line := fmt.Sprintf("route %s via %s dev %s", key.Prefix, r.Hops[0].Gateway, r.Hops[0].Interface)
		if !r.Hops[0].Gateway.IsValid() {
			line = fmt.Sprintf("route %s dev %s src %s", key.Prefix, r.Hops[0].Interface, r.Source)
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	for _, l := range lines {
		fmt.Fprintln(&b, l)
	}
	if p.Tunnel != nil {
		fmt.Fprintf(&b, "tunnel port %d mtu %d address %v\n", p.Tunnel.Port, p.Tunnel.MTU, p.Tunnel.Addresses)
		for _, x := range p.Tunnel.Peers {
			fmt.Fprintf(&b, "peer %d at %s takes %v\n", x.Key[0], x.Endpoint, x.Allowed)
		}
		if !strings.Contains(string(p.Conflist), fmt.Sprintf(`"mtu": %d,`, p.Tunnel.MTU)) {
			fmt.Fprintf(&b, "pods have another mtu: %s\n", p.Conflist)
		}
	}
	if len(p.PodCIDRs) > 0 {
		fmt.Fprintf(&b, "take %v\n", p.PodCIDRs)
	}
	if p.HandsOff {
		fmt.Fprintln(&b, "hands off")
	}
	if p.Conflist != nil {
		fmt.Fprintln(&b, "conflist")
	}
	return b.String()
}

// Routes follow the neighbours' current reports, of each family; the cases of that are scenario
// claims 26.
func TestClaims_26_RoutesFollowWhatNeighboursSay(t *testing.T) {
	for name, tc := range map[string]struct {
		edit func(*podnet.State)
		want string
	}{
		"a site": {nil, "Ready: pods of this device are in 10.1.0.0/24\nroute 10.1.1.0/24 via 192.168.1.2 dev lan0\nconflist\n"},
		"a device has moved, as its connection shows": {func(s *podnet.State) {
			s.At = func(string) netip.Addr { return netip.MustParseAddr("192.168.1.77") }
		}, "Ready: pods of this device are in 10.1.0.0/24\nroute 10.1.1.0/24 via 192.168.1.77 dev lan0\nconflist\n"},
		"a device has moved, as it reports by another family": {func(s *podnet.State) {
			s.At = func(string) netip.Addr { return netip.MustParseAddr("2001:db8:100::12") }
			s.Said = func(string) []netip.Addr {
				return []netip.Addr{netip.MustParseAddr("2001:db8:100::12"), netip.MustParseAddr("192.168.1.77")}
			}
		}, "Ready: pods of this device are in 10.1.0.0/24\nroute 10.1.1.0/24 via 192.168.1.77 dev lan0\nconflist\n"},
		"a device reports no address of the family": {func(s *podnet.State) {
			s.Said = func(string) []netip.Addr { return []netip.Addr{netip.MustParseAddr("2001:db8:100::12")} }
		}, "NotOnLink: on no network of this device, and there is no tunnel to b (this kernel has no WireGuard)\nconflist\n"},
		"pods from before": {func(s *podnet.State) {
			s.Pods = []netip.Addr{netip.MustParseAddr("10.1.0.7"), netip.MustParseAddr("10.222.0.3"), netip.MustParseAddr("10.222.0.2")}
		}, "PodsInOldRange: other devices can't reach the pods at 10.222.0.2, 10.222.0.3, which started before this device had 10.1.0.0/24: delete them, and their controllers recreate them\n" +
			"route 10.1.1.0/24 via 192.168.1.2 dev lan0\nconflist\n"},
		"another CNI":  {func(s *podnet.State) { s.Foreign = []string{"10-calico.conflist"} }, "Foreign: the pod network is made by 10-calico.conflist\nhands off\n"},
		"switched off": {func(s *podnet.State) { s.Site.PodNetwork = "None" }, "Off: the NodePool says podNetwork: None\nhands off\n"},
		"no range yet": {func(s *podnet.State) { s.Node.Spec.PodCIDRs = nil },
			"NoPodCIDR: the Node has no podCIDR yet\n"},
		"an offer": {func(s *podnet.State) {
			s.Node.Spec.PodCIDRs = nil
			s.Node.ObjectMeta = metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.PodCIDROfferAnnotation: "10.1.7.0/24,2001:db8::/64"}}
		}, "NoPodCIDR: the Node has no podCIDR yet\ntake [10.1.7.0/24 2001:db8::/64]\n"},
		"an offer that comes too late": {func(s *podnet.State) {
			s.Node.ObjectMeta = metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.PodCIDROfferAnnotation: "10.1.7.0/24"}}
		}, "Ready: pods of this device are in 10.1.0.0/24\nroute 10.1.1.0/24 via 192.168.1.2 dev lan0\nconflist\n"},
		"a peer with our range": {func(s *podnet.State) { s.Site.Members[1] = member("b", "192.168.1.2", "10.1.0.128/25") },
			"PodCIDRConflict: device b has 10.1.0.128/25 too\nconflist\n"},
		"a peer that says our LAN is its pods'": {func(s *podnet.State) { s.Site.Members[1] = member("b", "192.168.1.2", "192.168.0.0/16") },
			"PodCIDRConflict: 192.168.0.0/16, of device b, is a network that this device is on\nconflist\n"},
		"a peer behind a router": {func(s *podnet.State) { s.Site.Members[1] = member("b", "172.16.0.2", "10.1.1.0/24") },
			"NotOnLink: on no network of this device, and there is no tunnel to b (this kernel has no WireGuard)\nconflist\n"},
		"a site that is not known yet": {func(s *podnet.State) { s.Site = nil }, "Ready: pods of this device are in 10.1.0.0/24\nroutes and tunnel stay\nconflist\n"},
		"no site":                      {func(s *podnet.State) { s.Site = &peers.Site{} }, "Ready: pods of this device are in 10.1.0.0/24\nconflist\n"},
	} {
		if diff := cmp.Diff(tc.want, text(podnet.Make(state(tc.edit)))); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
}

// Before the Site is read, packets go as they did with the routes that an edgecore before has left:
// its masquerading follows from the Site, and pods that start have room for its tunnel.
func TestMake_restart(t *testing.T) {
	before := state(func(s *podnet.State) {
		s.Site.Members = []peers.Member{member("b", "172.16.0.2", "10.1.1.0/24"), member("c", "192.168.1.3", "10.1.2.0/24")}
		s.Tunnels, s.TunnelPort = true, 10553
		s.Tunnel = func(node string) contact.Tunnel { return contact.Tunnel{Key: [32]byte{node[0]}, Port: 10553} }
		s.At = func(node string) netip.Addr {
			return map[string]netip.Addr{"b": netip.MustParseAddr("172.16.0.2")}[node]
		}
	})
	known := podnet.Make(before)
	after := before
	after.Site = nil
	for _, prefix := range prefixes("10.1.1.0/24", "10.1.2.0/24") {
		after.Made = append(after.Made, known.Routes[netroute.NewKey(0, prefix, 0)])
	}
	p := podnet.Make(after)
	for _, rules := range []*masquerade.Rules{&known.Rules, &p.Rules} {
		slices.SortFunc(rules.Inside, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	}
	if diff := cmp.Diff(known.Rules, p.Rules, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" || len(p.Rules.Inside) != 3 {
		t.Errorf("what is masqueraded (-known +unknown)\n%s", diff)
	}
	if !strings.Contains(string(p.Conflist), `"mtu": 1320,`) {
		t.Errorf("pods have no room for the tunnel: %s", p.Conflist)
	}
}

// A device on no network of this one is reached by WireGuard, with the keys that the devices send;
// all are where the NodePool requires it.
func TestMake_tunnels(t *testing.T) {
	tunnels := map[string]contact.Tunnel{"b": {Key: [32]byte{2}, Port: 10553}, "c": {Key: [32]byte{3}, Port: 4711}}
	at := map[string]netip.Addr{"b": netip.MustParseAddr("172.16.0.2"), "c": netip.MustParseAddr("192.168.1.3")}
	for name, tc := range map[string]struct {
		edit func(*podnet.State)
		want string
	}{
		"one behind a router, one here": {nil, "Ready: pods of this device are in 10.1.0.0/24; by WireGuard: b\nroute 10.1.1.0/24 dev skerry-wg src 10.1.0.1\n" +
			"route 10.1.2.0/24 via 192.168.1.3 dev lan0\ntunnel port 10553 mtu 1340 address [10.1.0.1]\npeer 2 at 172.16.0.2:10553 takes [10.1.1.0/24]\nconflist\n"},
		"all": {func(s *podnet.State) { s.Site.PodNetwork = "WireGuard" }, "Ready: pods of this device are in 10.1.0.0/24; by WireGuard: b, c\nroute 10.1.1.0/24 dev skerry-wg src 10.1.0.1\n" +
			"route 10.1.2.0/24 dev skerry-wg src 10.1.0.1\ntunnel port 10553 mtu 1340 address [10.1.0.1]\npeer 2 at 172.16.0.2:10553 takes [10.1.1.0/24]\n" +
			"peer 3 at 192.168.1.3:4711 takes [10.1.2.0/24]\nconflist\n"},
		"its key is not known yet: its own is to be made": {func(s *podnet.State) { delete(tunnels, "b") }, "NotOnLink: on no network of this device, and there is no tunnel to b (it has not said its key)\n" +
			"route 10.1.2.0/24 via 192.168.1.3 dev lan0\ntunnel port 10553 mtu 1340 address [10.1.0.1]\nconflist\n"},
		"none in the kernel, and all are to be encrypted: nothing goes in the clear": {func(s *podnet.State) { s.Tunnels, s.Site.PodNetwork = false, "WireGuard" },
			"NoWireGuard: the NodePool says podNetwork: WireGuard, and there is no tunnel to b (this kernel has no WireGuard), c (this kernel has no WireGuard)\nconflist\n"},
		"over IPv6, two ranges": {func(s *podnet.State) {
			s.Node.Spec.PodCIDRs = []string{"10.1.0.0/24", "2001:db8:1::/64"}
			s.Site.Members[1].PodCIDRs = prefixes("10.1.1.0/24", "2001:db8:2::/64")
			at["b"] = netip.MustParseAddr("2001:db8:ff::2")
		}, "Ready: pods of this device are in 10.1.0.0/24, 2001:db8:1::/64; by WireGuard: b\nroute 10.1.1.0/24 dev skerry-wg src 10.1.0.1\n" +
			"route 10.1.2.0/24 via 192.168.1.3 dev lan0\nroute 2001:db8:2::/64 dev skerry-wg src 2001:db8:1::1\ntunnel port 10553 mtu 1320 address [10.1.0.1 2001:db8:1::1]\n" +
			"peer 2 at [2001:db8:ff::2]:10553 takes [10.1.1.0/24 2001:db8:2::/64]\nconflist\n"},
		"none is away": {func(s *podnet.State) { s.Site.Members = s.Site.Members[:1] }, "Ready: pods of this device are in 10.1.0.0/24\nconflist\n"},
	} {
		tunnelsBefore, atBefore := maps.Clone(tunnels), maps.Clone(at)
		s := state(func(s *podnet.State) {
			s.Site.Members = []peers.Member{member("a", "192.168.1.1", "10.1.0.0/24"), member("b", "172.16.0.2", "10.1.1.0/24"), member("c", "192.168.1.3", "10.1.2.0/24")}
			s.Tunnels, s.TunnelPort = true, 10553
			s.Tunnel = func(node string) contact.Tunnel { return tunnels[node] }
			s.At = func(node string) netip.Addr { return at[node] }
		})
		if tc.edit != nil {
			tc.edit(&s)
		}
		if diff := cmp.Diff(tc.want, text(podnet.Make(s))); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
		tunnels, at = tunnelsBefore, atBefore
	}
}

// A device to which the cluster gives no range takes the first free one of its list, and keeps it:
// without the cloud, since only this device uses it.
func TestMake_local(t *testing.T) {
	const first, second, none = "10.222.0.0/24", "172.28.222.0/24", ""
	for name, tc := range map[string]struct {
		edit func(*podnet.State)
		want string // empty: it has no range
	}{
		"nothing in the way": {func(*podnet.State) {}, first},
		"in no site":         {func(s *podnet.State) { s.Site = nil }, first},
		"a network of the device": {func(s *podnet.State) {
			s.Networks = append(s.Networks, lan.Network{Interface: "vpn0", Prefix: netip.MustParsePrefix("10.222.0.9/16"), MTU: 1500})
		}, second},
		"a route to it":        {func(s *podnet.State) { s.Taken = prefixes("10.192.0.0/10") }, second},
		"a route to a part":    {func(s *podnet.State) { s.Taken = prefixes("10.222.0.7/32") }, second},
		"the way out alone":    {func(s *podnet.State) { s.Taken = prefixes("0.0.0.0/0") }, first},
		"all are covered":      {func(s *podnet.State) { s.Taken = prefixes("10.0.0.0/8", "172.16.0.0/12") }, none},
		"the cluster has time": {func(s *podnet.State) { s.Waited = false }, none},
		"what it has stays": {func(s *podnet.State) {
			s.Waited, s.Current = false, netip.MustParsePrefix(second)
		}, second},
		"what it has is covered now": {func(s *podnet.State) {
			s.Current, s.Taken = netip.MustParsePrefix(first), prefixes("10.222.0.0/16")
		}, second},
		"what it had from the cluster stays": {func(s *podnet.State) { s.Current = netip.MustParsePrefix("10.1.0.0/24") }, "10.1.0.0/24"},
		"an offer comes first": {func(s *podnet.State) {
			s.Node.Annotations = map[string]string{v1alpha1.PodCIDROfferAnnotation: "10.1.7.0/24"}
		}, none},
	} {
		s := state(func(s *podnet.State) {
			s.Node.Spec.PodCIDRs, s.Site.Members = nil, s.Site.Members[:1]
			s.Subnets, s.Waited = prefixes(first, second), true
		})
		tc.edit(&s)
		p := podnet.Make(s)
		got := none
		if p.Conflist != nil {
			got = p.Rules.Pods[0].String()
			if !strings.Contains(string(p.Conflist), `"subnet": "`+got+`"`) || p.Reason != podnet.ReasonReady {
				t.Errorf("%s: %s %s\n%s", name, p.Reason, p.Message, p.Conflist)
			}
		}
		if got != tc.want {
			t.Errorf("%s: it has %q, want %q (%s)", name, got, tc.want, p.Message)
		}
	}
}

// The configuration that the container runtime gets: the least MTU, and addresses that a
// reboot gives back.
func TestMake_conflist(t *testing.T) {
	want := `{
  "cniVersion": "0.4.0",
  "name": "skerry",
  "plugins": [
    {
      "ipMasq": false,
      "ipam": {
        "dataDir": "/run/skerry/cni",
        "ranges": [
          [
            {
              "subnet": "10.1.0.0/24"
            }
          ]
        ],
        "routes": [
          {
            "dst": "0.0.0.0/0"
          }
        ],
        "type": "host-local"
      },
      "mtu": 1400,
      "type": "ptp"
    },
    {
      "capabilities": {
        "portMappings": true
      },
      "type": "portmap"
    }
  ]
}
`
	p := podnet.Make(state(nil))
	if diff := cmp.Diff(want, string(p.Conflist)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if p.Addresses != "10.10.1.2/24,192.168.1.1/24" {
		t.Errorf("addresses: %s", p.Addresses)
	}
}

// Whatever a Site contains, also one that was stored before cloudcore judged it: there is no route
// for a range that has the cloud, a gateway or another device in it, is larger than a device's
// range, or overlaps another device's.
func TestClaims_01_RangesOfOthersAreNeverRouted(t *testing.T) {
	guards := claim.Standard()
	guards.Host(netip.MustParseAddr("198.51.100.10"), "an address of cloudcore")
	guards.Host(netip.MustParseAddr("172.20.9.1"), "a gateway of this device")
	for _, r := range []string{
		"198.51.100.0/24", "0.0.0.0/0", "64.0.0.0/2", "169.254.20.20/32", "224.0.0.0/4", "127.0.0.0/8", "172.20.9.0/24", "203.0.113.0/24", "10.1.2.0/23", "2001:db8::/32",
	} {
		p := podnet.Make(state(func(s *podnet.State) {
			s.Guards = guards
			s.At = func(node string) netip.Addr {
				if node == "d" {
					return netip.MustParseAddr("203.0.113.7")
				}
				return netip.Addr{}
			}
			s.Site.Members[1] = member("b", "192.168.1.2", "10.1.2.0/24")
			s.Site.Members = append(s.Site.Members, member("c", "192.168.1.3", r), member("d", "203.0.113.7"))
		}))
		if len(p.Routes) != 1 || p.Reason != podnet.ReasonConflict || !strings.Contains(p.Message, "device c") && !strings.Contains(p.Message, "device b") {
			t.Errorf("%s: %s", r, text(p))
		}
		if slices.Contains(p.Rules.Others, netip.MustParsePrefix(r)) {
			t.Errorf("%s is taken for pods: %v", r, p.Rules.Others)
		}
	}
}

// A device reports an address among the pods of another one: the others are still routed to. Where
// it is connected it really is.
func TestClaims_03_AddressThatADeviceSaysTakesNoPods(t *testing.T) {
	p := podnet.Make(state(func(s *podnet.State) {
		s.At = func(string) netip.Addr { return netip.Addr{} }
		s.Site.Members[1] = member("b", "192.168.1.2", "10.1.2.0/24")
		s.Site.Members = append(s.Site.Members, member("c", "10.1.2.5"))
		s.Site.Members[2].Addresses = append(s.Site.Members[2].Addresses, netip.MustParseAddr("10.1.2.6"))
	}))
	if len(p.Routes) != 1 || strings.Contains(p.Message, "10.1.2.5") {
		t.Errorf("%s", text(p))
	}
}
