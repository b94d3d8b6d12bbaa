// Package podrestart decides which pods that the kubelet of a cut-off device has ended run again on
// this device, and when.
//
// A kubelet never starts a pod again whose phase is Failed or Succeeded: a controller in the cloud
// creates another. Without a link no pod is created, so a full disk would cost a device its pods
// until the link is back, and a bare pod forever. metamanager therefore does not report such an end
// while there is no link (see docs/dev/decisions/0094), hides the pod from the kubelet until it has
// forgotten the pod's UID, and shows it again when this package decides so.
//
// It owns the rule by which an end is the node's and not the pod's, the order and the back-off. It
// has no side effects, no clock and no link: those are its caller's. A Queue belongs to one
// goroutine.
package podrestart

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	evicted  = "Evicted"          // pkg/kubelet/eviction: Reason
	deadline = "DeadlineExceeded" // pkg/kubelet/active_deadline.go
	// rejected begins the message of each pod that the kubelet did not admit (Kubelet.rejectPod),
	// whatever the reason.
	rejected = "Pod was rejected: "
	// systemCritical is the least priority of a pod that the kubelet neither evicts nor rejects
	// because of pressure (scheduling.SystemCriticalPriority).
	systemCritical = 2_000_000_000
)

// Terminal reports whether a pod has ended.
func Terminal(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
}

// ByNode reports whether a pod has ended for a reason of its node: the pod is to run always, and
// the kubelet evicted or preempted it, ended it for a shutdown or did not admit it. A pod ended by
// its own containers or its own deadline stays ended, as in Kubernetes.
//
// The kubelet's marks do not always outlast the pod. A pod whose containers exit with 0 on SIGTERM
// is Succeeded without a reason (Kubelet.SyncTerminatingPod); one that ran and is rejected when the
// kubelet starts again has no mark at all once its containers have ended. But if no container has a
// restart rule of its own, only the kubelet ends a pod with restartPolicy Always.
//
// A pod that is above a limit of its own (an emptyDir's sizeLimit, ephemeral-storage) is Evicted
// without the condition. Its controller would create another; a bare pod has ended.
func ByNode(pod *corev1.Pod) bool {
	if !Terminal(pod) || pod.Spec.RestartPolicy != corev1.RestartPolicyAlways || pod.DeletionTimestamp != nil {
		return false
	}
	if pod.Annotations[corev1.MirrorPodAnnotationKey] != "" {
		return false // the kubelet has a static pod from its file
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Reason == corev1.PodReasonTerminationByKubelet {
			return true
		}
	}
	switch {
	case pod.Status.Phase == corev1.PodFailed && strings.HasPrefix(pod.Status.Message, rejected):
		return true
	case pod.Status.Reason == deadline:
		return false
	case pod.Status.Reason == evicted:
		return metav1.GetControllerOfNoCopy(pod) != nil
	}
	return !slices.ContainsFunc(pod.Spec.Containers, ownRule) && !slices.ContainsFunc(pod.Spec.InitContainers, ownRule)
}

// ownRule reports whether a container may end its pod although the pod is to run always (KEP-5307).
func ownRule(c corev1.Container) bool {
	return len(c.RestartPolicyRules) > 0 || c.RestartPolicy != nil && *c.RestartPolicy != corev1.ContainerRestartPolicyAlways
}

// Reason gives the reason a pod has ended, for people.
func Reason(pod *corev1.Pod) string {
	reason, message := pod.Status.Reason, strings.TrimPrefix(pod.Status.Message, rejected)
	for _, c := range pod.Status.Conditions {
		if reason == "" && c.Type == corev1.DisruptionTarget {
			reason, message = c.Reason, c.Message
		}
	}
	switch {
	case reason == "" && message == "":
		return "without a reason; the kubelet did not admit it again" // see ByNode
	case message == "":
		return reason
	}
	return reason + ": " + strings.TrimSpace(message)
}

// Withheld is why the kubelet is not shown a pod that it has ended.
func Withheld(pod *corev1.Pod) string {
	return "was ended by the kubelet while there was no link (" + Reason(pod) + "); runs again here once the reason has passed"
}

// Blocks returns the conditions of the node with which its kubelet would not admit the pod
// (eviction.managerImpl.Admit).
func Blocks(pod *corev1.Pod, node *corev1.Node) (conditions []corev1.NodeConditionType) {
	if node == nil || (pod.Spec.Priority != nil && *pod.Spec.Priority >= systemCritical) {
		return nil
	}
	onlyMemory := true
	for _, c := range node.Status.Conditions {
		switch c.Type {
		case corev1.NodeDiskPressure, corev1.NodePIDPressure, corev1.NodeMemoryPressure:
			if c.Status == corev1.ConditionTrue {
				conditions = append(conditions, c.Type)
				onlyMemory = onlyMemory && c.Type == corev1.NodeMemoryPressure
			}
		}
	}
	if onlyMemory && toleratesMemoryPressure(pod) {
		return nil
	}
	return conditions
}

// toleratesMemoryPressure: only a pod of the lowest class of service is kept away by it.
func toleratesMemoryPressure(pod *corev1.Pod) bool {
	if pod.Status.QOSClass != "" && pod.Status.QOSClass != corev1.PodQOSBestEffort {
		return true
	}
	for _, t := range pod.Spec.Tolerations {
		if (t.Key == corev1.TaintNodeMemoryPressure || t.Key == "") && (t.Effect == "" || t.Effect == corev1.TaintEffectNoSchedule) &&
			(t.Operator == corev1.TolerationOpExists || t.Value == "" && t.Key != "") {
			return true
		}
	}
	return false
}
