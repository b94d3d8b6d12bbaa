package app

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// storagePoll is how often storage is read again while it refuses a fail-over.
const storagePoll = 10 * time.Second

// comeback is how long the devices of a site may take to reconnect, one after another: their links
// back off before they dial again.
const comeback = time.Minute

// mostHeard bounds the Leases that one search for another node reads. When the cloud itself was cut
// off every node still is Ready, and no node has a younger Lease.
const mostHeard = 8

// failOver decides for each pod of the application on a node that is lost.
func (p *planner) failOver() error {
	var waiting, refused *problem
	for _, pod := range p.Pods {
		node := pod.Spec.NodeName
		if node == "" || ended(pod) || !p.App.Spec.Active() {
			continue
		}
		after := failoverAfter
		if d := p.App.Spec.Failover.After; d != nil {
			after = d.Duration
		}
		lost, at := p.lost(node, after, p.now)
		if !lost {
			if !at.IsZero() {
				p.again(at.Sub(p.now))
			}
			continue
		}
		if p.App.Spec.Affinity == v1alpha1.AppRequired {
			continue // it never moves
		}
		if p.App.Spec.Fenced() == v1alpha1.FencingNone {
			if pod.DeletionTimestamp != nil {
				continue
			}
			can, err := p.elsewhere(node, after)
			if err != nil {
				return err
			}
			if can {
				p.plan.Delete = append(p.plan.Delete, Deletion{Pod: pod})
			}
			continue
		}
		by, dead := p.dead(node)
		if !dead {
			waiting = &problem{"NotConfirmed", fmt.Sprintf("node %s is NotReady, dead or only cut off: started elsewhere the application might run twice. "+
				"If the device is switched off, confirm that: %s", node, taintCommand(node))}
			continue
		}
		attached, why, err := p.volumesElsewhere(node)
		if err != nil {
			return err
		}
		if why != nil {
			refused = why
			p.again(storagePoll)
			continue
		}
		p.event(true, "NodeConfirmedDead", "node %s is dead, by %s: the application's pod and its volume attachments there are removed", node, by)
		p.plan.Detach = append(p.plan.Detach, attached...)
		p.plan.Delete = append(p.plan.Delete, Deletion{Pod: pod, Force: true})
	}
	p.awaiting(cmp.Or(waiting, p.held()))
	p.refuse(refused)
	return nil
}

// elsewhere reports whether the application has a node to move to: one that matches its node
// affinity, is Ready and schedulable, and was so for as long as the lost one may be NotReady.
// Without one a deletion would only end the copy on a device that is cut off. While devices
// reconnect one after another, the first of them does not get the application of the others; nor
// does, when they are cut off together, the one that becomes NotReady last.
func (p *planner) elsewhere(lost string, after time.Duration) (bool, error) {
	if _, dead := p.dead(lost); dead {
		return true, nil
	}
	if p.siteAway(p.Nodes[lost]) {
		return false, nil
	}
	fits, read := p.fits(), 0
	for name, n := range p.Nodes {
		if name == lost || !n.Edge || !n.Ready || n.Closed || n.OutOfService || !fits(n) {
			continue
		}
		at := n.Since.Add(after)
		if back := n.Back.Add(comeback); !n.Back.IsZero() && back.After(at) {
			at = back
		}
		if p.now.Before(at) {
			p.again(at.Sub(p.now))
			continue
		}
		if read++; read > mostHeard {
			return false, nil // the next look begins at another one: maps have no order
		}
		heard, err := p.heardSince(name, p.Nodes[lost].Since)
		if err != nil || heard {
			return heard, err
		}
		p.again(heardPoll)
	}
	return false, nil
}

// heardSince reports whether a node's Lease was renewed after a moment. Without a Lease the node's
// condition counts.
func (p *planner) heardSince(node string, since time.Time) (bool, error) {
	if p.Heard == nil {
		return true, nil
	}
	at, err := p.Heard(node)
	if err != nil {
		return false, fmt.Errorf("asking for the Lease of node %s: %w", node, err)
	}
	return at.IsZero() || at.After(since), nil
}

// siteAway reports whether all nodes of a node's pool are NotReady: the site lost its uplink.
func (p *planner) siteAway(lost Node) bool {
	if lost.Pool == "" {
		return false
	}
	others := 0
	for name, n := range p.Nodes {
		if name == lost.Name || n.Pool != lost.Pool {
			continue
		}
		if n.Ready {
			return false
		}
		others++
	}
	return others > 0
}

// fits returns a function that reports whether a node's labels match the required node affinity of
// the application's pod.
func (p *planner) fits() func(Node) bool {
	if p.ReplicaSet == nil {
		return func(Node) bool { return true }
	}
	wanted := nodeaffinity.GetRequiredNodeAffinity(&corev1.Pod{Spec: p.ReplicaSet.Spec.Template.Spec})
	return func(n Node) bool {
		set := map[string]string{}
		for line := range strings.Lines(n.Labels) {
			key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
			set[key] = value
		}
		ok, err := wanted.Match(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: set}})
		return err != nil || ok // an invalid selector is the scheduler's to refuse
	}
}

// awaiting sets the condition AwaitingFencing with the reason and the remedy; nil removes it.
func (p *planner) awaiting(why *problem) {
	if why == nil {
		meta.RemoveStatusCondition(&p.status.Conditions, v1alpha1.AppAwaitingFencing)
		return
	}
	p.status.Phase = v1alpha1.PhaseAwaitingFencing
	if p.condition(v1alpha1.AppAwaitingFencing, true, why.reason, why.text) {
		p.event(true, "AwaitingFencing", "%s", why.text)
	}
}

// refuse gives the reason the application can't leave a dead node; nil: there is no such reason.
func (p *planner) refuse(why *problem) {
	if why == nil {
		meta.RemoveStatusCondition(&p.status.Conditions, v1alpha1.AppFailoverRefused)
		return
	}
	p.status.Phase = v1alpha1.PhaseFailoverRefused
	if p.condition(v1alpha1.AppFailoverRefused, true, why.reason, why.text) {
		p.plan.Refused = true
		p.event(true, "FailoverRefused", "%s", why.text)
	}
}

// volumesElsewhere is the application's attachments to a dead node, or why its volumes can't be
// used anywhere else.
func (p *planner) volumesElsewhere(dead string) ([]Attachment, *problem, error) {
	if len(p.App.Spec.Volumes) == 0 {
		return nil, nil, nil
	}
	ours := map[string]bool{}
	var storage Storage
	for _, v := range p.App.Spec.Volumes {
		name := claimName(p.App.Name, v.Name)
		c := p.Claims[name]
		switch {
		case c == nil || c.Spec.VolumeName == "":
			continue // never written to
		case !v.Replicated:
			return nil, &problem{"VolumeLocal", fmt.Sprintf("volume %s is not replicated: its data is on %s alone", v.Name, dead)}, nil
		}
		if storage.Replicas == nil {
			var err error
			if storage, err = p.Storage(); err != nil {
				return nil, nil, fmt.Errorf("asking for the application's volumes: %w", err)
			}
		}
		ours[c.Spec.VolumeName] = true
		nodes, known := storage.Replicas(c.Spec.VolumeName)
		if !known {
			return nil, &problem{"ReplicasUnknown", fmt.Sprintf("it is unknown where the replicas of volume %s (%s) are: Longhorn does not know it", v.Name, c.Spec.VolumeName)}, nil
		}
		if !slices.ContainsFunc(nodes, func(n string) bool { return n != dead && p.Nodes[n].Ready }) {
			return nil, &problem{"NoHealthyReplica", fmt.Sprintf("volume %s (%s) has no healthy replica on a node that is Ready: healthy ones are on [%s]",
				v.Name, c.Spec.VolumeName, strings.Join(nodes, " "))}, nil
		}
	}
	var attached []Attachment
	for _, a := range storage.Attachments {
		if a.Node == dead && ours[a.Volume] {
			attached = append(attached, a)
		}
	}
	return attached, nil, nil
}

// failBack evicts the pod where its designated node is Ready again for a while, once for each
// boot of that node.
func (p *planner) failBack() {
	app := p.App
	home, there := p.Nodes[app.Spec.DesignatedNode]
	if !app.Spec.Failback.Enable || !app.Spec.Active() || app.Spec.Affinity == v1alpha1.AppRequired || p.active == nil ||
		p.active.DeletionTimestamp != nil || p.active.Spec.NodeName == app.Spec.DesignatedNode || !there || !home.Ready || home.OutOfService || home.Closed {
		meta.RemoveStatusCondition(&p.status.Conditions, v1alpha1.AppFailbackBlocked)
		return
	}
	if n := p.Nodes[p.active.Spec.NodeName]; !n.Ready {
		return // that is a fail-over's business
	}
	after := failbackAfter
	if d := app.Spec.Failback.After; d != nil {
		after = d.Duration
	}
	if at := home.Since.Add(after); p.now.Before(at) {
		p.again(at.Sub(p.now))
		return
	}
	if last := p.status.LastFailback; last != nil && last.BootID == home.BootID && last.PodUID != p.active.UID {
		return // tried for this boot
	}
	p.status.LastFailback = &v1alpha1.AppReturn{BootID: home.BootID, PodUID: p.active.UID}
	p.plan.Evict = p.active
}

// Blocked is the status after an eviction for a return that was refused.
func Blocked(app *v1alpha1.EdgeApp, status *v1alpha1.EdgeAppStatus, why string, now time.Time) (changed bool) {
	p := &planner{State: State{App: app}, now: now, plan: &Plan{}, status: status}
	return p.condition(v1alpha1.AppFailbackBlocked, true, "DisruptionBudget", why)
}
