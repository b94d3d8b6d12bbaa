package vip

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

const (
	// apartFor is how long two nodes hold one address before they are switched to unicast: at a
	// normal take-over both report it for a moment.
	apartFor = 15 * time.Second
)

// describe writes everything but the claim itself into an object.
func (p *planner) describe(c claim, v *v1alpha1.VirtualIP) {
	s, pool := c.service, c.pool.object
	preferred, _ := annotation(s, v1alpha1.VIPPreferredPrefix+pool.Name)
	preferred = cmp.Or(preferred, pool.Spec.PreferredNode)
	v.Spec.Interface = pool.Spec.Interface
	v.Spec.Selector = maps.Clone(s.Spec.Selector)
	v.Spec.Ports = nil
	for _, port := range s.Spec.Ports {
		target := port.TargetPort
		if target == (intstr.IntOrString{}) {
			target = intstr.FromInt32(port.Port)
		}
		v.Spec.Ports = append(v.Spec.Ports, v1alpha1.VirtualIPPort{
			Name: port.Name, Protocol: cmp.Or(port.Protocol, corev1.ProtocolTCP), Port: port.Port, TargetPort: target,
		})
	}
	v.Spec.PublishNotReady = s.Spec.PublishNotReadyAddresses
	v.Spec.KeepSource = s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
	v.Spec.SourceRanges = slices.Clone(s.Spec.LoadBalancerSourceRanges)
	v.Spec.AffinitySeconds = affinity(s)
	v.Spec.Unicast = pool.Spec.Advertisements == v1alpha1.AdvertiseUnicast || v.Spec.Unicast || p.apart(v)
	v.Spec.AdvertisementInterval = metav1.Duration{Duration: time.Second}
	if d := pool.Spec.AdvertisementInterval; d != nil {
		v.Spec.AdvertisementInterval = *d
	}
	v.Spec.PreferredNode = preferred
	before := v.Spec.Nodes
	v.Spec.Nodes = rank(v.Name, c.pool.nodes, preferred)
	if len(v.Spec.Nodes) == 0 {
		v.Spec.Nodes = nil
	}
	introduce(v, before)
	v.Labels = map[string]string{v1alpha1.VIPPoolLabel: pool.Name}
	for _, n := range c.pool.nodes {
		v.Labels[v1alpha1.VIPNodeLabel(n)] = ""
	}
	if !slices.Contains(v.Finalizers, v1alpha1.VirtualIPFinalizer) {
		v.Finalizers = append(v.Finalizers, v1alpha1.VirtualIPFinalizer)
	}
}

// apart reports whether more than one node has held an address for a while: they don't receive each
// other's multicast, and know each other's addresses.
func (p *planner) apart(v *v1alpha1.VirtualIP) bool {
	c := meta.FindStatusCondition(v.Status.Conditions, v1alpha1.VIPConditionHolders)
	if c == nil || c.Status != "True" {
		return false
	}
	if due := c.LastTransitionTime.Add(apartFor); p.now.Before(due) {
		p.next(due)
		return false
	}
	return true
}

// introduce sends each node of an address the reports of the others: where their advertisements
// come from, and whether they could take the address. The last address of a node stays until it
// reports another one: without that of one node all would send by multicast. No node takes the
// address of another one, or the virtual IP itself.
func introduce(v *v1alpha1.VirtualIP, before []v1alpha1.VirtualIPNode) {
	known, claimed := map[string]v1alpha1.VirtualIPNode{}, map[string]int{}
	for _, n := range before {
		known[n.Name] = n
	}
	reported := make([]string, len(v.Spec.Nodes)) // addresses that a host of a LAN may have
	for i := range v.Spec.Nodes {
		n := &v.Spec.Nodes[i]
		n.Address, n.HardwareAddress = known[n.Name].Address, known[n.Name].HardwareAddress
		for _, r := range v.Status.Nodes {
			if r.Name != n.Name {
				continue
			}
			n.Ready = r.State == v1alpha1.VIPHolder || r.State == v1alpha1.VIPBackup
			n.HardwareAddress = cmp.Or(r.HardwareAddress, n.HardwareAddress)
			if p, err := netip.ParsePrefix(r.Address); err == nil && p.Addr().String() != v.Spec.Address {
				if a, err := parseAddr(p.Addr().String()); err == nil {
					reported[i] = a.String()
				}
			}
		}
		claimed[cmp.Or(reported[i], n.Address)]++
	}
	for i := range v.Spec.Nodes {
		if n := &v.Spec.Nodes[i]; reported[i] != "" && (claimed[reported[i]] == 1 || n.Address == "" && !held(known, reported[i])) {
			n.Address = reported[i]
		}
	}
}

// held reports whether a node has had an address before.
func held(known map[string]v1alpha1.VirtualIPNode, address string) bool {
	for _, n := range known {
		if n.Address == address {
			return true
		}
	}
	return false
}
