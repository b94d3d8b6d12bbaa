package app

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

func timeOf(t time.Time) metav1.Time { return metav1.NewTime(t).Rfc3339Copy() }

// problem is why something is not done.
type problem struct{ reason, text string }

// refusal is why the application can't be rendered; nil: it can.
func (p *planner) refusal() *problem {
	app := p.App
	if _, there := p.Nodes[app.Spec.DesignatedNode]; !there && p.ReplicaSet == nil {
		return &problem{"NodeUnknown", fmt.Sprintf("the cluster has no node %s, which is the designated node", app.Spec.DesignatedNode)}
	}
	if _, err := app.Spec.PodTemplate(); err != nil {
		return &problem{"TemplateInvalid", err.Error()}
	}
	if p.ReplicaSet != nil && !owned(app, p.ReplicaSet) {
		return &problem{"NameTaken", fmt.Sprintf("there is a ReplicaSet %s that is not of this application: delete it, or give the application another name", app.Name)}
	}
	for i := range app.Spec.Volumes {
		v := &app.Spec.Volumes[i]
		if _, err := Claim(app, v); err != nil {
			return &problem{"VolumeInvalid", err.Error()}
		}
		name := claimName(app.Name, v.Name)
		if c := p.Claims[name]; c != nil && !owned(app, c) {
			return &problem{"NameTaken", fmt.Sprintf("there is a claim %s that is not of this application", name)}
		}
	}
	return nil
}

// rejected reports whether kube-apiserver refuses the application's objects, as far as is known.
func (p *planner) rejected() bool {
	c := meta.FindStatusCondition(p.status.Conditions, v1alpha1.AppAccepted)
	return c != nil && c.Reason == reasonRejected && c.ObservedGeneration == p.App.Generation && (p.plan.Apply != nil || len(p.plan.Claims) > 0)
}

// reasonRejected: kube-apiserver, or a policy, refuses the application's objects.
const reasonRejected = "Rejected"

// Rejected is the status after kube-apiserver refused the application's objects.
func Rejected(app *v1alpha1.EdgeApp, status *v1alpha1.EdgeAppStatus, why string, now time.Time) (changed bool) {
	p := &planner{State: State{App: app}, now: now, plan: &Plan{}, status: status}
	status.Phase = v1alpha1.PhaseRefused
	return p.condition(v1alpha1.AppAccepted, false, reasonRejected, why)
}

// condition sets a condition. Its message changes only with its state, so that a status is not
// written for the passing of time.
func (p *planner) condition(kind string, is bool, reason, message string) (changed bool) {
	c := metav1.Condition{
		Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: message, ObservedGeneration: p.App.Generation, LastTransitionTime: timeOf(p.now),
	}
	if is {
		c.Status = metav1.ConditionTrue
	}
	before := meta.FindStatusCondition(p.status.Conditions, kind)
	fresh := before == nil || before.Status != c.Status || before.Reason != c.Reason || before.Message != c.Message
	meta.SetStatusCondition(&p.status.Conditions, c)
	return fresh
}

// look derives the application's phase from its pod and its node.
func (p *planner) look() {
	switch {
	case !p.App.Spec.Active():
		p.status.Phase = v1alpha1.PhaseInactive
	case p.active == nil:
		p.status.Phase = v1alpha1.PhasePending
	case ready(p.active):
		p.status.Phase = v1alpha1.PhaseRunning
	default:
		p.status.Phase = v1alpha1.PhaseStarting
	}
	if p.active == nil {
		meta.RemoveStatusCondition(&p.status.Conditions, v1alpha1.AppCurrent)
		if !p.App.Spec.Active() {
			p.status.ActiveNode = ""
		}
		return
	}
	name := p.active.Spec.NodeName
	n, there := p.Nodes[name]
	switch {
	case !there:
		p.condition(v1alpha1.AppCurrent, false, "NodeUnknown", fmt.Sprintf("the cluster has no node %s any more", name))
	case n.Ready:
		p.condition(v1alpha1.AppCurrent, true, "NodeReady", fmt.Sprintf("node %s reports", name))
	default:
		p.status.Phase = v1alpha1.PhaseNotReady
		p.condition(v1alpha1.AppCurrent, false, "NodeNotReady", fmt.Sprintf(
			"node %s is NotReady since %s, and the application's state is from before that: it probably still runs there", name, n.Since.UTC().Format(time.RFC3339)))
	}
}

func ready(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// finish compares the status with the old one.
func (p *planner) finish() {
	settle(p.status)
	if !equality.Semantic.DeepEqual(p.status, &p.App.Status) {
		p.plan.Status = p.status
	}
}
