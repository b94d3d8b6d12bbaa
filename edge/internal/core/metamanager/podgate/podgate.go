// Package podgate is the gate between the pods that a device holds and the pods that its kubelet is
// shown.
//
// It owns the order of the rules and their limits: a pod that is being deleted is always shown,
// since only the kubelet can end it. It refuses to keep state: a rule does that, and has its pods
// evaluated again with Manager.Recorrect when it would answer differently. All other clients of the
// edge API see a withheld pod unchanged.
//
// To the kubelet a pod that is withheld after it was shown is a pod that was removed: it ends its
// containers and forgets its UID. A rule that does not mean that never withholds a pod whose
// containers may run.
//
// A Gate is never changed. metamanager's core calls it for each version of a pod from the cloud or
// the disk, for each change of its pending writes, and for Recorrect; not for a status that is
// written on the device.
package podgate

import (
	"encoding/json"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A Rule returns why the kubelet is not shown a pod now; "" where it may be. The pod is in its
// visible form, and must not be changed. A Rule is called by metamanager's core: it must be quick,
// and must not call metamanager.
type Rule func(pod *corev1.Pod) (reason string)

// Gate is the list of rules, any of which can withhold a pod. The zero value withholds no pod.
type Gate []Rule

// Withholds returns the reason of the first rule that withholds the pod; "" where it is shown.
func (g Gate) Withholds(pod *corev1.Pod) (reason string) {
	if pod.DeletionTimestamp != nil {
		return ""
	}
	for _, rule := range g {
		if reason := rule(pod); reason != "" {
			return reason
		}
	}
	return ""
}

// Withheld is a pod that the kubelet is not shown.
type Withheld struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	Reason    string    `json:"reason"`
}

// NotReady is a strategic merge patch that sets a pod's status to not Ready: the kubelet does not
// have a withheld pod, and does not write its status.
func NotReady(now time.Time, reason, message string) []byte {
	condition := func(kind corev1.PodConditionType) map[string]any {
		return map[string]any{
			"type": kind, "status": corev1.ConditionFalse, "reason": reason, "message": message, "lastTransitionTime": metav1.NewTime(now),
		}
	}
	body, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []any{condition(corev1.PodReady), condition(corev1.ContainersReady)}}})
	if err != nil {
		panic(err) // strings and a time
	}
	return body
}
