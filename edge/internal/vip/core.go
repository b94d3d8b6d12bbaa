// Package vip serves virtual IPs on this node: it decides for which of them the node may stand in the
// election, and where their traffic goes.
//
// How it works: Roles computes from Facts (objects, pods, interfaces, what was heard on the LAN) what the
// node is to do for each address. An Agent gathers the facts whenever one of them changes, has the drivers
// keepalived and the data plane do it, and reports what became of it.
//
// It owns what the two drivers are asked for, and the node's entry in the status of VirtualIPs. It refuses to
// stand for an address while no pod of its Service is ready here, as the device's own kubelet reports pods;
// while another host on the LAN has the address, which it asks before it first stands; where none of its
// interfaces is on the address's network; and for addresses that are the node's, its gateways', the cloud's
// or another network's (Guard). Losing the link withdraws no address, but for one whose first claim lost it
// (trial). Before it knows its objects, which are in the device's store, it leaves alone what an earlier run
// has set up. The Agent's methods may be called from any goroutine; one goroutine of Run does all the work.
package vip

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/kernel/acd"
	"github.com/skerry-io/skerry/edge/internal/kernel/balance"
	"github.com/skerry-io/skerry/edge/internal/kernel/keepalived"
	"github.com/skerry-io/skerry/edge/internal/kernel/netif"
)

// Facts are what a node knows.
type Facts struct {
	Node       string
	VIPs       []*v1alpha1.VirtualIP
	Pods       []*corev1.Pod
	Interfaces []netif.Interface
	// Guards are networks whose addresses the node never claims.
	Guards []Guard
	// PreBootContainers are IDs of containers that ran before the device booted: the store may still say
	// that they are ready.
	PreBootContainers map[string]bool
	// Maintenance: hand everything over. Draining: hand over what another node can take.
	Maintenance, Draining bool
	// Untaken names the VirtualIPs that were handed over and that no other node took.
	Untaken map[string]bool
	// New names the VirtualIPs whose first election this is: the highest priority shall win it, whoever
	// was first.
	New map[string]bool
	// Withheld says why an address is not claimed although it could be: it cut the node off.
	Withheld map[types.UID]string
	// Adverts are the latest advertisements of VRRP that other hosts sent.
	Adverts []acd.Advert
}

// Role is what the node is to do for one address.
type Role struct {
	VIP      *v1alpha1.VirtualIP
	Instance keepalived.Instance // of the VirtualIP whose election it is, where it is shared
	Service  balance.Service
	// Own is the node's own address on the network, and HardwareAddress that of the interface.
	Own             netip.Prefix
	HardwareAddress string
	// Ready: the node may hold the address. Endpoints is how many pods are ready here.
	Ready     bool
	Endpoints int
	// Fault is why the node can't take part, in a sentence.
	Fault string
	// Stranger is the hardware address of a router that advertises the address by VRRP and is no node of
	// the pool, and ForeignRouter the address of one that uses the number for other addresses.
	Stranger      string
	ForeignRouter string
	// Duplicate is the hardware address of another host that has the address. Unasked is why that could not
	// be found out, and Waiting says that it is being found out. In all three cases the node is not Ready
	// although its pods are.
	Duplicate string
	Unasked   string
	Waiting   bool
}

// defaultAdvert is VRRP's own default, RFC 5798 section 5.2.7.
const defaultAdvert = time.Second

// Roles computes what to do, in the order of the names. Addresses that don't concern the node, and those
// that are deleted, have no role.
func Roles(f Facts) []Role {
	var out []Role
	for _, v := range f.VIPs {
		i := slices.IndexFunc(v.Spec.Nodes, func(n v1alpha1.VirtualIPNode) bool { return n.Name == f.Node })
		if i < 0 || v.DeletionTimestamp != nil {
			continue
		}
		out = append(out, role(f, v, v.Spec.Nodes[i]))
	}
	slices.SortFunc(out, func(a, b Role) int { return cmp.Compare(a.VIP.Name, b.VIP.Name) })
	separate(out)
	share(out)
	return out
}

func role(f Facts, v *v1alpha1.VirtualIP, self v1alpha1.VirtualIPNode) Role {
	r := Role{VIP: v}
	address, err := netip.ParseAddr(v.Spec.Address)
	if err != nil {
		r.Fault = fmt.Sprintf("%.60q is no address", v.Spec.Address)
		return r
	}
	if v.Spec.VRID < 1 || v.Spec.VRID > 255 || self.Priority < 1 || self.Priority > 254 {
		r.Fault = fmt.Sprintf("number %d and priority %d can't be", v.Spec.VRID, self.Priority)
		return r
	}
	iface, own, fault := place(f, v.Spec.Interface, address)
	if fault != "" {
		r.Fault = fault
		return r
	}
	r.Own, r.HardwareAddress = own, iface.HardwareAddress
	sources, err := sourceRanges(v, address)
	if err != nil {
		r.Fault = err.Error()
		return r
	}
	if why := f.Withheld[v.UID]; why != "" {
		r.Fault = why
		return r
	}
	r.Instance = keepalived.Instance{
		Name: instanceName(v.Name), Interface: iface.Name, VRID: uint8(v.Spec.VRID), Priority: uint8(self.Priority),
		Advert: cmp.Or(v.Spec.AdvertisementInterval.Duration, defaultAdvert), Address: address,
		Preempt: v.Spec.PreferredNode == f.Node || f.New[v.Name], Unicast: unicast(f.Node, v, own.Addr()),
	}
	r.Stranger, r.ForeignRouter = others(f, v, r.Instance)
	pods := ready(f, v, address)
	r.Endpoints = len(pods)
	handOver := f.Maintenance || f.Draining && standby(f.Node, v) && !f.Untaken[v.Name]
	r.Ready = len(pods) > 0 && !handOver
	r.Service = balance.Service{
		Address: address, Interface: iface.Name, KeepSource: v.Spec.KeepSource, Sources: sources, Affinity: time.Duration(v.Spec.AffinitySeconds) * time.Second,
	}
	for _, p := range v.Spec.Ports {
		port := balance.Port{Protocol: protocol(p.Protocol), Number: uint16(p.Port)}
		for _, pod := range pods {
			if n := target(pod.pod, p); n != 0 {
				port.Backends = append(port.Backends, netip.AddrPortFrom(pod.address, n))
			}
		}
		r.Service.Ports = append(r.Service.Ports, port)
	}
	return r
}

func instanceName(vip string) string { return "vip_" + vip }

// sourceRanges are the networks of the address's family that are served, nil for all.
func sourceRanges(v *v1alpha1.VirtualIP, address netip.Addr) ([]netip.Prefix, error) {
	if len(v.Spec.SourceRanges) == 0 {
		return nil, nil
	}
	out := []netip.Prefix{}
	for _, text := range v.Spec.SourceRanges {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("source range %.60q is no network: nobody is served rather than everybody", text)
		}
		if p.Addr().Is4() == address.Is4() {
			out = append(out, p.Masked())
		}
	}
	return out, nil
}

// standby reports whether another node said that it holds the address or can take it.
func standby(node string, v *v1alpha1.VirtualIP) bool {
	return slices.ContainsFunc(v.Spec.Nodes, func(n v1alpha1.VirtualIPNode) bool { return n.Name != node && n.Ready })
}

func protocol(p corev1.Protocol) balance.Protocol {
	switch p {
	case corev1.ProtocolUDP:
		return balance.UDP
	case corev1.ProtocolSCTP:
		return balance.SCTP
	}
	return balance.TCP
}
