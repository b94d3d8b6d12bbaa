package app

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

const (
	// mostCopies is the limit of the CRD. There is more than one copy only where pods are older
	// than fencing Confirmed.
	mostCopies = 16
	// endMargin is how long after a pod's removal and its grace period the node's Lease must be
	// renewed: the deletion has to reach the device, and the kubelet to stop the containers.
	endMargin = 30 * time.Second
	// heardPoll is how often a node's Lease is read while a removed pod of it may run.
	heardPoll = 5 * time.Second
)

// copies updates status.copies, the pods that may be running, of an application with fencing
// Confirmed. The pods in the cluster are not enough: a pod that is deleted by force, or with its
// Node, keeps running on a device that is cut off. A copy is removed when the kubelet has reported
// its end, when the node is confirmed dead, when a person confirms the end, or when the node's
// Lease is renewed long enough after the pod's removal.
func (p *planner) copies() error {
	if p.App.Spec.Fenced() != v1alpha1.FencingConfirmed {
		p.status.Copies = nil
		return nil
	}
	there := map[string]*corev1.Pod{}
	for _, pod := range p.Removed {
		p.bound(pod)
	}
	for _, pod := range slices.Concat(p.Pods, p.Orphans) {
		there[string(pod.UID)] = pod
		p.bound(pod)
	}
	removed := map[string]*corev1.Pod{}
	for _, pod := range p.Removed {
		removed[string(pod.UID)] = pod
	}
	var left []v1alpha1.AppCopy
	for _, c := range p.status.Copies {
		pod := there[string(c.PodUID)]
		last := removed[string(c.PodUID)]
		switch {
		case pod != nil && stopped(pod), pod == nil && last != nil && stopped(last):
			continue
		case pod != nil:
			c.Removed = nil
		default:
			over, err := p.over(&c)
			if err != nil {
				return err
			}
			if over {
				continue
			}
		}
		left = append(left, c)
	}
	p.status.Copies = left
	return nil
}

// bound adds a pod that may run to the copies.
func (p *planner) bound(pod *corev1.Pod) {
	if pod.Spec.NodeName == "" || stopped(pod) || len(p.status.Copies) >= mostCopies ||
		slices.ContainsFunc(p.status.Copies, func(c v1alpha1.AppCopy) bool { return c.PodUID == pod.UID }) {
		return
	}
	p.status.Copies = append(p.status.Copies, v1alpha1.AppCopy{Node: pod.Spec.NodeName, PodUID: pod.UID})
}

// over reports whether a pod that was deleted from the cluster has ended.
func (p *planner) over(c *v1alpha1.AppCopy) (bool, error) {
	if c.Removed == nil {
		at := timeOf(p.now)
		c.Removed = &at
	}
	if by, dead := p.dead(c.Node); dead {
		p.event(true, "NodeConfirmedDead", "node %s is dead, by %s: the copy that ran there (pod UID %s) has ended", c.Node, by, c.PodUID)
		return true, nil
	}
	if p.App.Annotations[v1alpha1.EdgeAppEnded] == string(c.PodUID) {
		p.event(false, "CopyEnded", "the annotation %s confirms that the copy on node %s (pod UID %s) has ended", v1alpha1.EdgeAppEnded, c.Node, c.PodUID)
		return true, nil
	}
	if n, there := p.Nodes[c.Node]; !there || !n.Ready || p.Heard == nil {
		return false, nil
	}
	for _, e := range p.status.Nodes {
		if e.Name == c.Node && e.Running && e.CollectTime != nil && e.CollectTime.After(c.Removed.Time) {
			p.again(heardPoll)
			return false, nil // it runs, by its report
		}
	}
	at, err := p.Heard(c.Node)
	if err != nil {
		return false, fmt.Errorf("asking for the Lease of node %s: %w", c.Node, err)
	}
	// A renewal in the future was written by a cloudcore with a wrong clock, and is no evidence.
	if at.After(p.now.Add(endMargin)) || at.Before(c.Removed.Add(p.grace()+endMargin)) {
		p.again(heardPoll)
		return false, nil
	}
	return true, nil
}

// grace is how long a container of the application may take to end.
func (p *planner) grace() time.Duration {
	seconds := int64(corev1.DefaultTerminationGracePeriodSeconds)
	if t, err := p.App.Spec.PodTemplate(); err == nil && t.Spec.TerminationGracePeriodSeconds != nil {
		seconds = *t.Spec.TerminationGracePeriodSeconds
	}
	return time.Duration(seconds) * time.Second
}

// held returns the reason no new pod may start although the cluster has none left, since a deleted
// one may run, and the remedy; nil if there is no such reason.
func (p *planner) held() *problem {
	if !p.App.Spec.Active() {
		return nil
	}
	for _, c := range p.status.Copies {
		if c.Removed == nil {
			continue
		}
		ended := fmt.Sprintf("kubectl annotate edgeapp -n %s %s --overwrite %s=%s", p.App.Namespace, p.App.Name, v1alpha1.EdgeAppEnded, c.PodUID)
		switch n, there := p.Nodes[c.Node]; {
		case !there:
			return &problem{"NodeDeleted", fmt.Sprintf("the Node %s was deleted, and its device may run the copy that it had (pod UID %s): no other is started before the device is back, "+
				"or you have switched it off and confirm that: %s", c.Node, c.PodUID, ended)}
		case !n.Ready:
			return &problem{"PodRemoved", fmt.Sprintf("the pod on node %s (UID %s) was removed while the node was NotReady, and may run there: no other is started before the node is back, "+
				"or you have switched the device off and confirm that: %s", c.Node, c.PodUID, taintCommand(c.Node))}
		default:
			return &problem{"EndNotReported", fmt.Sprintf("the pod on node %s (UID %s) was removed before its end was reported: another is started once the node has reported for %s after that",
				c.Node, c.PodUID, p.grace()+endMargin)}
		}
	}
	return nil
}

// taintCommand confirms that a device is switched off.
func taintCommand(node string) string {
	return fmt.Sprintf("kubectl taint node %s %s=nodeshutdown:NoExecute", node, corev1.TaintNodeOutOfService)
}

// stopped reports whether a pod's kubelet has reported the end of its containers. The phase alone
// does not: Kubernetes' garbage collector of pods sets it to Failed when the Node was deleted.
func stopped(pod *corev1.Pod) bool {
	if !ended(pod) {
		return false
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Reason == "DeletionByPodGC" {
			return false
		}
	}
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if c.State.Running != nil {
			return false
		}
	}
	return true
}
