// Package vip serves virtual IPs on this node: it decides for which of them the node may stand in the election, and where their traffic goes.
//
// It owns what the drivers keepalived and the data plane are told, and the node's entry in the status of VirtualIPs. It refuses to stand for an address while no pod of its
// Service is ready *here*, which it reads from the pods as the device's own kubelet says they are; the cloud is not asked for anything. It refuses, too, while
// somebody else on the LAN has the address, which it asks before it first stands for it. It never withdraws an address
// because the link is down. Before it knows its objects, which are in the device's store, it leaves alone what an earlier run has set up. The Agent's methods may be
// called from any goroutine; one goroutine of Run does all the work.
package vip

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
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
	// Dead are IDs of containers that ran before the device booted: the store may still say that they are ready.
	Dead map[string]bool
	// Maintenance: hand everything over.
	Maintenance bool
	// New names the VirtualIPs whose first election this is: the highest priority shall win it, whoever was first.
	New map[string]bool
}

// Role is what the node is to do for one address.
type Role struct {
	VIP      *v1alpha1.VirtualIP
	Instance keepalived.Instance
	Service  balance.Service
	// Ready: the node may hold the address. Endpoints is how many pods are ready here.
	Ready     bool
	Endpoints int
	// Fault is why the node can't take part, in a sentence.
	Fault string
	// Duplicate is the hardware address of somebody else who has the address. Unasked is why that could not be found out, and Waiting says that it is being found out. In all three
	// cases the node is not Ready although its pods are.
	Duplicate string
	Unasked   string
	Waiting   bool
}

// defaultAdvert is VRRP's own default, RFC 5798 section 5.2.7.
const defaultAdvert = time.Second

// Roles computes what to do, in the order of the names. Addresses that don't concern the node, and those that are deleted, have no role.
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
	return out
}

func role(f Facts, v *v1alpha1.VirtualIP, self v1alpha1.VirtualIPNode) Role {
	r := Role{VIP: v}
	address, err := netip.ParseAddr(v.Spec.Address)
	if err != nil {
		r.Fault = fmt.Sprintf("%q is no address", v.Spec.Address)
		return r
	}
	if v.Spec.VRID < 1 || v.Spec.VRID > 255 || self.Priority < 1 || self.Priority > 254 {
		r.Fault = fmt.Sprintf("number %d and priority %d can't be", v.Spec.VRID, self.Priority)
		return r
	}
	iface, fault := choose(f.Interfaces, v.Spec.Interface, address)
	if fault != "" {
		r.Fault = fault
		return r
	}
	r.Instance = keepalived.Instance{
		Name: instanceName(v), Interface: iface, VRID: uint8(v.Spec.VRID), Priority: uint8(self.Priority),
		Advert: cmp.Or(v.Spec.AdvertisementInterval.Duration, defaultAdvert), Address: address,
		Preempt: v.Spec.PreferredNode == f.Node || f.New[v.Name],
	}
	pods := ready(f, v, address)
	r.Endpoints = len(pods)
	r.Ready = len(pods) > 0 && !f.Maintenance
	r.Service = balance.Service{Address: address, Interface: iface, KeepSource: v.Spec.KeepSource}
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

func instanceName(v *v1alpha1.VirtualIP) string { return "vip_" + v.Name }

// choose finds the interface for an address: the one that is asked for, else the one whose network it is in, else that of the default route.
func choose(all []netif.Interface, asked string, address netip.Addr) (name, fault string) {
	if asked != "" {
		if !slices.ContainsFunc(all, func(i netif.Interface) bool { return i.Name == asked }) {
			return "", "the node has no interface " + asked + ", or it is down"
		}
		return asked, ""
	}
	best := -1
	for _, i := range all {
		for _, p := range i.Prefixes {
			if p.Contains(address) && p.Bits() > best {
				name, best = i.Name, p.Bits()
			}
		}
	}
	if name != "" {
		return name, ""
	}
	if i := slices.IndexFunc(all, func(i netif.Interface) bool { return i.Default }); i >= 0 {
		return all[i].Name, ""
	}
	return "", "no interface of the node is on the network of " + address.String() + ", and there is no default route: set the pool's interface"
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

type endpoint struct {
	pod     *corev1.Pod
	address netip.Addr
}

// ready are the pods of the Service that run here and are ready, with their address of the family.
func ready(f Facts, v *v1alpha1.VirtualIP, vip netip.Addr) []endpoint {
	if len(v.Spec.Selector) == 0 {
		return nil // a Service without selector has no pods of its own
	}
	selector := labels.SelectorFromSet(v.Spec.Selector)
	var out []endpoint
	for _, p := range f.Pods {
		if p.Namespace != v.Spec.Service.Namespace || p.Spec.NodeName != f.Node || p.DeletionTimestamp != nil || p.Status.Phase != corev1.PodRunning {
			continue
		}
		if !selector.Matches(labels.Set(p.Labels)) || !isReady(p) && !v.Spec.PublishNotReady || dead(p, f.Dead) {
			continue
		}
		for _, ip := range p.Status.PodIPs {
			if a, err := netip.ParseAddr(ip.IP); err == nil && a.Is4() == vip.Is4() {
				out = append(out, endpoint{p, a})
				break
			}
		}
	}
	return out
}

// isReady reports whether a pod is ready by the word of this node's kubelet. The condition Ready is not that: the cloud's node controller makes it False when it has not heard of
// the node for long, and that comes down with the link. ContainersReady is the kubelet's alone; Ready is what it makes of that and of the pod's readiness gates (KEP-580).
func isReady(p *corev1.Pod) bool {
	is := func(kind corev1.PodConditionType) bool {
		return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind && c.Status == corev1.ConditionTrue })
	}
	return is(corev1.ContainersReady) && !slices.ContainsFunc(p.Spec.ReadinessGates, func(g corev1.PodReadinessGate) bool { return !is(g.ConditionType) })
}

// dead reports whether a pod's state is of an earlier boot.
func dead(p *corev1.Pod, ids map[string]bool) bool {
	return slices.ContainsFunc(p.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool { return ids[c.ContainerID] })
}

// deadAt are the containers that the pods name and that were started before the device booted.
func deadAt(boot time.Time, pods []*corev1.Pod) map[string]bool {
	out := map[string]bool{}
	for _, p := range pods {
		for _, c := range p.Status.ContainerStatuses {
			// Times in a pod are in whole seconds.
			if r := c.State.Running; r != nil && c.ContainerID != "" && r.StartedAt.Time.Before(boot.Add(-time.Second)) {
				out[c.ContainerID] = true
			}
		}
	}
	return out
}

// target is a pod's port for one of the Service's, 0 where the pod has none of that name.
func target(p *corev1.Pod, port v1alpha1.VirtualIPPort) uint16 {
	if port.TargetPort.Type == intstr.Int {
		return uint16(port.TargetPort.IntVal)
	}
	for _, c := range slices.Concat(p.Spec.Containers, p.Spec.InitContainers) { // sidecars are among the latter
		for _, x := range c.Ports {
			if x.Name == port.TargetPort.StrVal && cmp.Or(x.Protocol, corev1.ProtocolTCP) == port.Protocol {
				return uint16(x.ContainerPort)
			}
		}
	}
	return 0
}

// entry is what the node says of an address.
func entry(node string, r Role, state keepalived.State, programmed error, maintenance bool) v1alpha1.VirtualIPNodeStatus {
	e := v1alpha1.VirtualIPNodeStatus{
		Name: node, Priority: int32(r.Instance.Priority), ReadyEndpoints: int32(r.Endpoints), Programmed: r.Fault == "" && programmed == nil, Message: r.Fault,
	}
	switch {
	case r.Fault != "":
		e.State = v1alpha1.VIPFault
	case r.Duplicate != "":
		e.State, e.DuplicateOf = v1alpha1.VIPFault, r.Duplicate
		e.Message = "somebody with the hardware address " + r.Duplicate + " on " + r.Instance.Interface + " has the address, and is no node of the pool"
	case r.Unasked != "":
		e.State, e.Message = v1alpha1.VIPFault, r.Unasked
	case state == keepalived.Master:
		e.State = v1alpha1.VIPHolder
	case !r.Ready:
		e.State = v1alpha1.VIPNotReady
		e.Message = "no pod of the Service is ready on this node"
		if maintenance {
			e.Message = "the node is under maintenance"
		}
	case state == keepalived.Backup:
		e.State = v1alpha1.VIPBackup
	default:
		e.State = v1alpha1.VIPFault
		e.Message = "keepalived can't take part: interface " + r.Instance.Interface + " has no carrier, or keepalived does not run"
	}
	if programmed != nil {
		e.Message = programmed.Error()
	}
	return e
}
