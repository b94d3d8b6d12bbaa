// Package vip serves virtual IPs on this node: it decides in which elections the node may take
// part, and where their traffic is forwarded.
//
// How it works: Roles computes from Facts (objects, pods, interfaces, advertisements on the LAN)
// the node's role for each address. An Agent gathers the facts whenever one of them changes, has
// the drivers keepalived and the data plane apply it, and reports the result.
//
// It owns the desired state of the two drivers, and the node's entry in the status of VirtualIPs.
// It refuses to take part in an address's election while no pod of its Service is ready here, as
// the device's own kubelet reports pods; while another host on the LAN has the address, which it
// probes before it first takes part; while it has no interface on the address's network; and for
// addresses that are the node's, its gateways', the cloud's or another network's (Guard). Losing
// the link withdraws no address, except one whose first claim lost it (trial). Before it knows its
// objects, which are in the device's store, it does not change the state left by an earlier run.
// The Agent's methods may be called from any goroutine; one goroutine of Run does all the work.
package vip

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/balance"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/keepalived"
)

// Roles computes the roles, in the order of the names. Addresses that don't concern the node, and
// those that are deleted, have no role.
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
	if err != nil || address.Zone() != "" {
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
	r.HandingOver = f.Draining && !f.Maintenance && len(pods) > 0 && standby(f.Node, v) && !f.Untaken[v.Name]
	r.Ready = len(pods) > 0 && !f.Maintenance && !r.HandingOver
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

// sourceRanges are the networks of the address's family that are served, nil for all.
func sourceRanges(v *v1alpha1.VirtualIP, address netip.Addr) ([]netip.Prefix, error) {
	if len(v.Spec.SourceRanges) == 0 {
		return nil, nil
	}
	out := []netip.Prefix{}
	for _, text := range v.Spec.SourceRanges {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("source range %.60q is no network: no client is served until it is corrected", text)
		}
		if p.Addr().Is4() == address.Is4() {
			out = append(out, p.Masked())
		}
	}
	return out, nil
}

// standby reports whether another node reported that it holds the address or can take it.
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
