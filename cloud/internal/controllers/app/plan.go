package app

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// Plan makes the plan of an application. It chooses no node: the objects state where the
// application should be, and Kubernetes schedules. The error is storage's.
func (s State) Plan(now time.Time) (*Plan, error) {
	p := &planner{State: s, now: now, plan: &Plan{}, status: s.App.Status.DeepCopy()}
	p.status.ObservedGeneration = s.App.Generation
	p.active = p.activePod()
	if why := p.refusal(); why != nil {
		p.condition(v1alpha1.AppAccepted, false, why.reason, why.text)
		p.status.Phase = v1alpha1.PhaseRefused
		p.finish()
		return p.plan, nil
	}
	p.render()
	p.moved()
	p.look()
	if p.rejected() {
		p.status.Phase = v1alpha1.PhaseRefused // without the fields that are rewritten each time
	} else {
		p.condition(v1alpha1.AppAccepted, true, "Rendered", "the application's objects match its spec")
	}
	if err := p.copies(); err != nil {
		return nil, err
	}
	if err := p.failOver(); err != nil {
		return nil, err
	}
	p.failBack()
	p.replaceOld()
	p.admit()
	p.finish()
	return p.plan, nil
}

// activePod is the application's current pod: one that is bound to a node and not being deleted,
// else one that is: on a node that can't be reached it runs until the device reports otherwise. Of
// several the newest counts.
func (p *planner) activePod() *corev1.Pod {
	var bound []*corev1.Pod
	for _, pod := range p.Pods {
		if pod.Spec.NodeName != "" && !ended(pod) {
			bound = append(bound, pod)
		}
	}
	if len(bound) == 0 {
		return nil
	}
	return slices.MaxFunc(bound, func(a, b *corev1.Pod) int {
		if x, y := a.DeletionTimestamp == nil, b.DeletionTimestamp == nil; x != y {
			if x {
				return 1
			}
			return -1
		}
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
}

// moved notes where the application is now. A move to its designated node is a return, every other
// one a fail-over.
func (p *planner) moved() {
	if p.active == nil {
		return
	}
	from, to := p.status.ActiveNode, p.active.Spec.NodeName
	if from == to {
		return
	}
	p.status.ActiveNode = to
	if from == "" {
		return
	}
	p.status.LastMove = &v1alpha1.AppMove{From: from, To: to, At: timeOf(p.now)}
	if to == p.App.Spec.DesignatedNode {
		p.event(false, "FailedBack", "the application is on its designated node %s again; it was on %s", to, from)
		return
	}
	p.status.Failovers++
	p.plan.Failover = true
	p.event(true, "FailedOver", "the application has moved from %s to %s", from, to)
}

// render makes the objects as they must be. Claims come first: they are made once and
// never changed.
func (p *planner) render() {
	for i := range p.App.Spec.Volumes {
		v := &p.App.Spec.Volumes[i]
		if p.Claims[claimName(p.App.Name, v.Name)] != nil {
			continue
		}
		if c, err := Claim(p.App, v); err == nil { // refusal has looked
			p.plan.Claims = append(p.plan.Claims, c)
		}
	}
	want, err := Render(p.App)
	if err != nil {
		return // refusal has looked
	}
	if have := p.ReplicaSet; have == nil || have.Spec.Replicas == nil || *have.Spec.Replicas != *want.Spec.Replicas ||
		have.Labels[v1alpha1.EdgeAppRevisionLabel] != want.Labels[v1alpha1.EdgeAppRevisionLabel] {
		p.plan.Apply = want
	}
}

// admit lets a new pod be scheduled once no other one can be running.
func (p *planner) admit() {
	if len(p.status.Copies) > 0 {
		return // one of them may run, whether or not its pod is there
	}
	var waiting *corev1.Pod
	for _, pod := range p.Pods {
		gated := slices.ContainsFunc(pod.Spec.SchedulingGates, func(g corev1.PodSchedulingGate) bool { return g.Name == v1alpha1.EdgeAppGate })
		switch {
		case gated && pod.DeletionTimestamp == nil:
			if waiting == nil || pod.Name < waiting.Name {
				waiting = pod
			}
		case !gated && !ended(pod):
			return // wherever it is, and whether or not it is being deleted
		}
	}
	p.plan.Admit = waiting
}

// replaceOld deletes the pod of an older template, where its node answers: one that is deleted on a
// node that does not would be replaced elsewhere while it still runs.
func (p *planner) replaceOld() {
	if p.plan.Apply != nil || p.ReplicaSet == nil {
		return // the ReplicaSet comes first
	}
	now := p.ReplicaSet.Labels[v1alpha1.EdgeAppRevisionLabel]
	for _, pod := range p.Pods {
		n, known := p.Nodes[pod.Spec.NodeName]
		if pod.Labels[v1alpha1.EdgeAppRevisionLabel] != now && pod.DeletionTimestamp == nil && (pod.Spec.NodeName == "" || known && n.Ready) {
			p.plan.Delete = append(p.plan.Delete, Deletion{Pod: pod})
		}
	}
}
