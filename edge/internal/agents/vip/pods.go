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
	"github.com/skerry-io/skerry/edge/internal/core/object"
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
		if !selector.Matches(labels.Set(p.Labels)) || !object.PodReady(p) && !v.Spec.PublishNotReady || preBoot(p, f.PreBootContainers) {
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

// target returns a pod's port for one of the Service's, 0 if the pod has no port of that name.
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
