package vip

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// serviceStatus writes the result into the Services: one ingress for each pool and family, and why
// something is missing.
func (p *planner) serviceStatus() {
	for _, s := range p.state.Services {
		if s.DeletionTimestamp != nil {
			continue
		}
		out := s.DeepCopy()
		if ours(s) {
			p.describeService(out)
		} else if meta.FindStatusCondition(s.Status.Conditions, v1alpha1.VIPAllocated) != nil {
			// It was ours: another implementation, if any, writes its own status.
			meta.RemoveStatusCondition(&out.Status.Conditions, v1alpha1.VIPAllocated)
			out.Status.LoadBalancer.Ingress = slices.DeleteFunc(out.Status.LoadBalancer.Ingress, p.wroteIngress)
			if len(out.Status.LoadBalancer.Ingress) == 0 {
				out.Status.LoadBalancer.Ingress = nil
			}
		}
		if !equality.Semantic.DeepEqual(s.Status, out.Status) {
			p.plan.Services = append(p.plan.Services, out)
		}
	}
}

// wroteIngress recognises the ingress of describeService: no other implementation names a NodePool
// as the host.
func (p *planner) wroteIngress(i corev1.LoadBalancerIngress) bool {
	if p.pools[i.Hostname] != nil {
		return true
	}
	for _, v := range p.state.VIPs {
		if v.Spec.Address == i.IP && v.Spec.Pool == i.Hostname {
			return true
		}
	}
	return false
}

func (p *planner) describeService(s *corev1.Service) {
	held := slices.Clone(p.held[s.UID])
	slices.SortFunc(held, func(a, b *v1alpha1.VirtualIP) int {
		x, _ := netip.ParseAddr(a.Spec.Address)
		y, _ := netip.ParseAddr(b.Spec.Address)
		return cmp.Or(cmp.Compare(a.Spec.Pool, b.Spec.Pool), x.Compare(y))
	})
	// Proxy: kube-proxy in the cluster must not take the address for one of its own (KEP-1860); the
	// holder is where it ends.
	mode := corev1.LoadBalancerIPModeProxy
	s.Status.LoadBalancer.Ingress = nil
	var unheld []string
	for _, v := range held {
		if pool := p.pools[v.Spec.Pool]; pool != nil && len(pool.nodes) == 0 {
			unheld = append(unheld, "no node holds "+v.Spec.Address+": pool "+v.Spec.Pool+" has no nodes")
		} else if why := refusals(v); why != "" {
			unheld = append(unheld, v.Spec.Address+" is not shown: "+why)
			continue
		}
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{Hostname: v.Spec.Pool, IP: v.Spec.Address, IPMode: &mode})
	}
	c := metav1.Condition{
		Type: v1alpha1.VIPAllocated, Status: metav1.ConditionTrue, Reason: ReasonAllocated, ObservedGeneration: s.Generation,
		Message: "the Service has an address in each pool that it chooses",
	}
	if bad := p.problems[s.UID]; len(bad) > 0 {
		words := make([]string, len(bad))
		for i, b := range bad {
			words[i] = b.message
		}
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, bad[0].reason, short(strings.Join(words, "; "))
	}
	if len(unheld) > 0 {
		c.Message = short(c.Message + "; " + strings.Join(unheld, "; "))
	}
	setCondition(&s.Status.Conditions, p.now, c)
}

// refusals gives the reason no node can hold an address: all of them reported, and each refuses it.
// Clients would wait at EXTERNAL-IP for an answer. An address that has not been reported yet, or
// whose pods are not ready, is shown, as those of other load balancers are.
func refusals(v *v1alpha1.VirtualIP) string {
	refuses := func(n v1alpha1.VirtualIPNodeStatus) bool { return n.State == v1alpha1.VIPFault }
	if n := len(v.Status.Nodes); n == 0 || n < len(v.Spec.Nodes) || len(slices.DeleteFunc(slices.Clone(v.Status.Nodes), refuses)) > 0 {
		return ""
	}
	return findings(v.Status.Nodes).announced()
}
