package vip

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	ranges "github.com/skerry-io/skerry/common/claim" // claim is a Service's here
)

// readProtected gathers the protected addresses other than those of nodes: those in State
// (cloudcore, kube-apiserver, ranges of Services), the ranges of nodes' pods that count, and the
// addresses of Services, of the cluster and of other load balancers.
func (p *planner) readProtected() {
	p.protected = append(p.protected, p.state.Protected...)
	var subnets []netip.Prefix
	for _, pool := range p.state.Pools {
		subnets = append(subnets, ranges.Prefixes(pool.Spec.PodSubnets)...)
	}
	for _, n := range p.state.Nodes {
		for _, text := range n.Spec.PodCIDRs {
			if prefix, err := netip.ParsePrefix(text); err == nil && ranges.OfNode(prefix.Masked(), v1alpha1.IsEdge(n.Labels), subnets) == "" {
				p.protected = append(p.protected, Protected{prefix.Masked(), "the range of the pods of node " + n.Name})
			}
		}
	}
	for _, s := range p.state.Services {
		for _, text := range s.Spec.ClusterIPs {
			p.protectHost(text, "the address of Service "+s.Namespace+"/"+s.Name)
		}
		if ours(s) || s.Spec.Type != corev1.ServiceTypeLoadBalancer {
			continue
		}
		for _, i := range s.Status.LoadBalancer.Ingress {
			if !p.wroteIngress(i) {
				p.protectHost(i.IP, "the load balancer's address of Service "+s.Namespace+"/"+s.Name)
			}
		}
	}
	for _, x := range p.protected {
		p.protectedSpans = append(p.protectedSpans, span{x.Prefix.Masked().Addr(), last(x.Prefix.Masked())})
	}
	p.protectedSpans = union(p.protectedSpans...)
}

func (p *planner) protectHost(text, why string) {
	if a, err := netip.ParseAddr(text); err == nil { // a headless Service's "None" is no address
		p.protected = append(p.protected, host(a.Unmap(), why))
	}
}

// protects gives the reason an address can't be a virtual IP, or nil.
func (p *planner) protects(a netip.Addr) *problem {
	if node, ok := p.nodeIPs[a]; ok {
		return &problem{ReasonAddressOfNode, fmt.Sprintf("%s is an address of node %s", a, node)}
	}
	if !p.protectedSpans.contains(a) {
		return nil
	}
	for _, x := range p.protected {
		switch {
		case x.Prefix.Addr() == a && x.Prefix.IsSingleIP():
			return &problem{ReasonProtected, fmt.Sprintf("%s is %s", a, x.Why)}
		case x.Prefix.Contains(a):
			return &problem{ReasonProtected, fmt.Sprintf("%s is in %s, %s", a, x.Prefix, x.Why)}
		}
	}
	return nil
}
