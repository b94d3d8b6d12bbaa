package node

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// nodeLostReason is kube-controller-manager's for conditions that it sets to Unknown
// (pkg/controller/nodelifecycle).
const nodeLostReason = "NodeStatusUnknown"

// nodeConditions are the last conditions of the Node written by the kubelet or another client on
// the device.
type nodeConditions map[corev1.NodeConditionType]corev1.NodeCondition

func (said nodeConditions) take(obj runtime.Object, now time.Time) (lost []any) {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return nil
	}
	for _, c := range node.Status.Conditions {
		if c.Status != corev1.ConditionUnknown || c.Reason != nodeLostReason {
			said[c.Type] = c
		} else if before, ok := said[c.Type]; ok {
			before.LastHeartbeatTime = metav1.NewTime(now)
			before.LastTransitionTime = before.LastHeartbeatTime // as the kubelet has it
			lost = append(lost, before)
		}
	}
	return lost
}

func (said nodeConditions) forget(types.UID) { clear(said) }
