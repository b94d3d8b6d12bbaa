package vip

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

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
		if !selector.Matches(labels.Set(p.Labels)) || !isReady(p) && !v.Spec.PublishNotReady || preBoot(p, f.PreBootContainers) {
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

// isReady reports whether a pod is ready as this node's kubelet reports it. The condition Ready is not that: the cloud's node controller makes it False when it has not heard of
// the node for long, and that comes down with the link. ContainersReady is the kubelet's alone; Ready is what it makes of that and of the pod's readiness gates (KEP-580).
func isReady(p *corev1.Pod) bool {
	is := func(kind corev1.PodConditionType) bool {
		return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind && c.Status == corev1.ConditionTrue })
	}
	return is(corev1.ContainersReady) && !slices.ContainsFunc(p.Spec.ReadinessGates, func(g corev1.PodReadinessGate) bool { return !is(g.ConditionType) })
}

// preBoot reports whether a pod's state is of an earlier boot.
func preBoot(p *corev1.Pod, ids map[string]bool) bool {
	return slices.ContainsFunc(p.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool { return ids[c.ContainerID] })
}

// preBootContainers are those that the pods name and that were started before the device booted.
func preBootContainers(boot time.Time, pods []*corev1.Pod) map[string]bool {
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
