package object

import (
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// OnlyHeartbeat reports whether two states of a Node differ only in the heartbeat times of its
// conditions.
func OnlyHeartbeat(a, b runtime.Object) bool {
	x, ok := a.(*corev1.Node)
	y, ok2 := b.(*corev1.Node)
	if !ok || !ok2 {
		return false
	}
	still := func(n *corev1.Node) *corev1.Node {
		n = n.DeepCopy()
		n.ResourceVersion = ""
		for i := range n.Status.Conditions {
			n.Status.Conditions[i].LastHeartbeatTime = metav1.Time{}
		}
		return n
	}
	return apiequality.Semantic.DeepEqual(still(x), still(y))
}
