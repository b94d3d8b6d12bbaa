package object

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// PodReady reports whether a pod is ready as its own kubelet reports it. The condition Ready is not
// that: the cloud's node controller sets it to False when it has not heard of the node for long,
// and that is delivered with the link's return. Only the kubelet sets ContainersReady; it derives
// Ready from that and the pod's readiness gates (KEP-580).
func PodReady(p *corev1.Pod) bool {
	is := func(kind corev1.PodConditionType) bool {
		return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind && c.Status == corev1.ConditionTrue })
	}
	return is(corev1.ContainersReady) && !slices.ContainsFunc(p.Spec.ReadinessGates, func(g corev1.PodReadinessGate) bool { return !is(g.ConditionType) })
}
