package node

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// podReadiness has the conditions Ready of pods whose last value was True.
type podReadiness map[types.UID]corev1.PodCondition

// take recognises kube-controller-manager's change by its form
// (pkg/controller/util/node.MarkPodsNotReady): Ready becomes False, no other field changes. A
// kubelet that sets False gives a reason. The condition is restored with its original time: the
// kubelet then finds its own state, and does not write.
func (said podReadiness) take(obj runtime.Object, _ time.Time) (lost []any) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return nil
	}
	var ready, containers corev1.PodCondition
	for _, c := range pod.Status.Conditions {
		switch c.Type {
		case corev1.PodReady:
			ready = c
		case corev1.ContainersReady:
			containers = c
		}
	}
	before, known := said[pod.UID]
	switch {
	case ready.Status == corev1.ConditionTrue:
		said[pod.UID] = ready
	case known && ready.Status == corev1.ConditionFalse && ready.Reason == "" && containers.Status == corev1.ConditionTrue:
		lost = append(lost, before)
	default:
		delete(said, pod.UID)
	}
	return lost
}

func (said podReadiness) forget(uid types.UID) { delete(said, uid) }
