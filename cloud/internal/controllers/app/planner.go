package app

import (
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// defaults for an object that was made before its kind had them.
const (
	failoverAfter = 15 * time.Second
	failbackAfter = 5 * time.Minute
)

// Event is recorded about an application.
type Event struct {
	Warning         bool
	Reason, Message string
}

// Deletion is a pod to delete.
type Deletion struct {
	Pod *corev1.Pod
	// Force removes the object at once: its node is known to be dead.
	Force bool
}

// Plan is the changes to make for one application.
type Plan struct {
	Apply  *appsv1.ReplicaSet // as it must be; nil: it is
	Claims []*corev1.PersistentVolumeClaim
	Detach []Attachment // before Delete
	Delete []Deletion
	Evict  *corev1.Pod
	Admit  *corev1.Pod // from whose gate the pod is let

	Status *v1alpha1.EdgeAppStatus // as it must be, without the nodes' reports; nil: it is
	Events []Event
	// Failover and Refused are counted.
	Failover, Refused bool
	// Next is the time of the next plan without a change; 0: never.
	Next time.Duration
}

// planner makes one plan.
type planner struct {
	State
	now    time.Time
	plan   *Plan
	status *v1alpha1.EdgeAppStatus

	active *corev1.Pod // the pod that counts; nil without one
}

// again asks for a plan in d at the latest.
func (p *planner) again(d time.Duration) {
	d = max(d, 100*time.Millisecond)
	if p.plan.Next == 0 || d < p.plan.Next {
		p.plan.Next = d
	}
}

func (p *planner) event(warning bool, reason, format string, args ...any) {
	p.plan.Events = append(p.plan.Events, Event{warning, reason, fmt.Sprintf(format, args...)})
}

// ended reports whether a pod's containers have ended for good, by its kubelet's status.
func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}
