package table

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// nodeLost is the reason that the node controller gave to pods of an unreachable node
// (k8s.io/kubernetes/pkg/util/node, NodeUnreachablePodReason).
const nodeLost = "NodeLost"

func podColumns() []metav1.TableColumnDefinition {
	return append(named("Ready", "Status", "Restarts", age), columns(1, "IP", "Node", "Nominated Node", "Readiness Gates")...)
}

func podRow(p *corev1.Pod) metav1.TableRow {
	s := summarise(p)
	restarts := strconv.Itoa(s.restarts)
	if s.restarts != 0 && !s.last.IsZero() {
		restarts += fmt.Sprintf(" (%s ago)", since(s.last))
	}
	address := ""
	if len(p.Status.PodIPs) > 0 {
		address = p.Status.PodIPs[0].IP
	}
	row := cells(p.Name, fmt.Sprintf("%d/%d", s.ready, s.total), s.status, restarts, since(p.CreationTimestamp),
		cmp.Or(address, none), cmp.Or(p.Spec.NodeName, none), cmp.Or(p.Status.NominatedNodeName, none), gates(p))
	switch p.Status.Phase {
	case corev1.PodSucceeded:
		row.Conditions = completed(p.Status.Phase, "The pod has completed successfully.")
	case corev1.PodFailed:
		row.Conditions = completed(p.Status.Phase, "The pod failed.")
	}
	return row
}

func completed(phase corev1.PodPhase, message string) []metav1.TableRowCondition {
	return []metav1.TableRowCondition{{Type: metav1.RowCompleted, Status: metav1.ConditionTrue, Reason: string(phase), Message: message}}
}

// starts counts the restarts of containers, and when the last of them ended.
type starts struct {
	restarts int
	last     metav1.Time
}

func (s *starts) add(c corev1.ContainerStatus) {
	s.restarts += int(c.RestartCount)
	if ended := c.LastTerminationState.Terminated; ended != nil && s.last.Before(&ended.FinishedAt) {
		s.last = ended.FinishedAt
	}
}

// A summary has the values of a pod's first columns.
type summary struct {
	starts
	ready, total int
	status       string
}

func summarise(p *corev1.Pod) summary {
	s := summary{total: len(p.Spec.Containers), status: cmp.Or(p.Status.Reason, string(p.Status.Phase))}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonSchedulingGated {
			s.status = corev1.PodReasonSchedulingGated
		}
	}
	// Containers that start first and stay (KEP-753) count with the others.
	sidecars := map[string]bool{}
	for _, c := range p.Spec.InitContainers {
		// Of two with one name, which no API server admits, the later counts.
		sidecars[c.Name] = c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
		if sidecars[c.Name] {
			s.total++
		}
	}
	var all, stay starts
	waits := false
	for i, c := range p.Status.InitContainerStatuses {
		all.add(c)
		if sidecars[c.Name] {
			stay.add(c)
			if started(c) && c.Ready && !succeeded(c) {
				s.ready++
			}
		}
		if state := initState(c, sidecars[c.Name], i, len(p.Spec.InitContainers)); state != "" {
			s.status, waits = "Init:"+state, true
			break
		}
	}
	if s.starts = all; !waits || initialized(p) {
		s.starts = stay
		s.containers(p)
	}
	if p.DeletionTimestamp != nil {
		switch {
		case p.Status.Reason == nodeLost:
			s.status = "Unknown"
		case p.Status.Phase != corev1.PodFailed && p.Status.Phase != corev1.PodSucceeded:
			s.status = "Terminating"
		}
	}
	return s
}

func started(c corev1.ContainerStatus) bool { return c.Started != nil && *c.Started }

func succeeded(c corev1.ContainerStatus) bool {
	return c.State.Terminated != nil && c.State.Terminated.ExitCode == 0
}

// initState returns the reason why a pod waits for its i-th init container of n, or "" when the
// container is done.
func initState(c corev1.ContainerStatus, sidecar bool, i, n int) string {
	switch ended, waiting := c.State.Terminated, c.State.Waiting; {
	case succeeded(c), sidecar && started(c):
		return ""
	case ended != nil:
		return ending(ended)
	case waiting != nil && waiting.Reason != "" && waiting.Reason != "PodInitializing":
		return waiting.Reason
	default:
		return fmt.Sprintf("%d/%d", i, n)
	}
}

func ending(t *corev1.ContainerStateTerminated) string {
	switch {
	case t.Reason != "":
		return t.Reason
	case t.Signal != 0:
		return fmt.Sprintf("Signal:%d", t.Signal)
	default:
		return fmt.Sprintf("ExitCode:%d", t.ExitCode)
	}
}

// initialized uses the first condition of that type.
func initialized(p *corev1.Pod) bool {
	i := slices.IndexFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodInitialized })
	return i >= 0 && p.Status.Conditions[i].Status == corev1.ConditionTrue
}

// containers adds the states of the pod's main containers. The first one with a reason gives the
// status.
func (s *summary) containers(p *corev1.Pod) {
	running, failure := false, ""
	for _, c := range slices.Backward(p.Status.ContainerStatuses) {
		s.add(c)
		switch {
		case c.State.Waiting != nil && c.State.Waiting.Reason != "":
			s.status = c.State.Waiting.Reason
		case c.State.Terminated != nil:
			s.status = ending(c.State.Terminated)
			if c.State.Terminated.ExitCode != 0 {
				failure = s.status
			}
		case c.Ready && c.State.Running != nil:
			running = true
			s.ready++
		}
	}
	if s.status != "Completed" {
		return
	}
	// One container has completed; the others determine the status of the pod.
	ready := slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
	switch {
	case running && ready:
		s.status = "Running"
	case failure != "":
		s.status = failure
	case running:
		s.status = "NotReady"
	}
}

// gates is how many of a pod's readiness gates are open (KEP-580).
func gates(p *corev1.Pod) string {
	if len(p.Spec.ReadinessGates) == 0 {
		return none
	}
	open := 0
	for _, g := range p.Spec.ReadinessGates {
		i := slices.IndexFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == g.ConditionType })
		if i >= 0 && p.Status.Conditions[i].Status == corev1.ConditionTrue {
			open++
		}
	}
	return fmt.Sprintf("%d/%d", open, len(p.Spec.ReadinessGates))
}
