package route

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/skerry-io/skerry/cloud/internal/controllers/reports"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

const (
	// listed is how many nodes a status lists with their entries. Above it only failing ones are,
	// at most as many; the others are named. An object must stay below 1.5 MiB (etcd's request
	// limit): 400 KiB for these, the rest for some 30,000 names.
	listed = 200
	// maxMessage and maxEntry bound a node's entry, in bytes. An entry of edgecore has some 400.
	maxMessage, maxEntry = 512, 2 << 10
	// maxReason bounds a reason, in bytes: nodes are named by it.
	maxReason = 64
	// waitingNamed is how many nodes that have not reported are named.
	waitingNamed = 10
	// quoted is how many nodes a condition's message quotes.
	quoted = 3
)

// Kind is StaticRoutes as the aggregation of reports needs them.
func Kind() reports.Kind {
	return reports.Of(v1alpha1.Resource(v1alpha1.StaticRoutes), merge, sweep)
}

func fine(reason string) bool {
	return reason == v1alpha1.RouteApplied || reason == v1alpha1.RouteDryRun
}

// inKernel reports whether a node with that reason has the route in its kernel, as of the
// generation that it observed.
func inKernel(reason string) bool {
	return reason == v1alpha1.RouteApplied || reason == v1alpha1.RouteDegraded
}

// gateway is the next hops of a spec in a few words.
func gateway(s *v1alpha1.StaticRouteSpec) string {
	switch {
	case s.Type != v1alpha1.RouteUnicast && s.Type != "":
		return ""
	case s.Gateway != "":
		return s.Gateway
	case len(s.NextHops) == 0:
		return "detected"
	}
	hops := make([]string, len(s.NextHops))
	for i, h := range s.NextHops {
		hops[i] = cmp.Or(h.Gateway, h.Interface)
	}
	return strings.Join(hops, ",")
}

// read makes an entry of a node's report.
func read(node string, body []byte) (e v1alpha1.StaticRouteNode, err error) {
	if err := json.Unmarshal(body, &e); err != nil {
		return e, fmt.Errorf("the report is no entry of a StaticRoute's status: %w", err)
	}
	switch {
	case e.Reason == "":
		return e, errors.New("the report has no reason")
	case len(e.Reason) > maxReason || strings.ContainsFunc(e.Reason, func(r rune) bool { return !isLetter(r) }):
		return e, fmt.Errorf("the report's reason is no word of at most %d letters", maxReason)
	}
	e.Name = node // whatever name it gives: the session determines it
	e.Message = reports.Short(e.Message, maxMessage)
	if raw, err := json.Marshal(&e); err != nil || len(raw) > maxEntry {
		e.State = nil // the device's own API has it
	}
	return e, nil
}

// isLetter reports whether r may be in a reason. A reason becomes that of a condition, for which
// Kubernetes has a pattern: a status with another one could not be written.
func isLetter(r rune) bool { return 'A' <= r && r <= 'Z' || 'a' <= r && r <= 'z' }

// merge puts the nodes' reports into a status.
func merge(o *v1alpha1.StaticRoute, bodies map[string][]byte) (refused map[string]error) {
	entries := map[string]v1alpha1.StaticRouteNode{}
	for _, e := range o.Status.Nodes {
		entries[e.Name] = e
	}
	named := map[string]group{}
	for _, f := range o.Status.FineNodes {
		for _, name := range f.Names {
			named[name] = group{generation: f.ObservedGeneration}
		}
	}
	for _, f := range o.Status.FailedNodes {
		for _, name := range f.Names {
			named[name] = group{f.ObservedGeneration, f.Reason}
		}
	}
	refused = reports.Lay(entries, bodies, read)
	maps.DeleteFunc(named, func(node string, _ group) bool {
		_, says := bodies[node]
		return says && refused[node] == nil
	})
	arrange(&o.Status, entries, named)
	return refused
}

// group is the state kept of a node that is only named: the generation of its route, or the reason
// of its failure.
type group struct {
	generation int64
	reason     string // "": it is fine
}

// sweep takes the entries of nodes away that don't exist.
func sweep(o *v1alpha1.StaticRoute, exists func(node string) bool) {
	o.Status.Nodes = slices.DeleteFunc(o.Status.Nodes, func(e v1alpha1.StaticRouteNode) bool { return !exists(e.Name) })
	for i := range o.Status.FineNodes {
		f := &o.Status.FineNodes[i]
		f.Names = slices.DeleteFunc(f.Names, func(name string) bool { return !exists(name) })
	}
	o.Status.FineNodes = slices.DeleteFunc(o.Status.FineNodes, func(f v1alpha1.FineNodes) bool { return len(f.Names) == 0 })
	for i := range o.Status.FailedNodes {
		f := &o.Status.FailedNodes[i]
		f.Names = slices.DeleteFunc(f.Names, func(name string) bool { return !exists(name) })
	}
	o.Status.FailedNodes = slices.DeleteFunc(o.Status.FailedNodes, func(f v1alpha1.FailedNodes) bool { return len(f.Names) == 0 })
}

// arrange writes the lists of a status. A node that was named stays named until it reports again:
// its entry is not kept.
func arrange(s *v1alpha1.StaticRouteStatus, entries map[string]v1alpha1.StaticRouteNode, named map[string]group) {
	all := len(entries) + len(named)
	s.Nodes, s.FineNodes, s.FailedNodes = nil, nil, nil
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		e := entries[name]
		switch {
		case all > listed && fine(e.Reason):
			named[name] = group{generation: e.ObservedGeneration}
		case len(s.Nodes) >= listed:
			named[name] = group{e.ObservedGeneration, e.Reason}
		default:
			s.Nodes = append(s.Nodes, e)
		}
	}
	groups := map[group][]string{}
	for name, g := range named {
		groups[g] = append(groups[g], name)
	}
	newest := func(a, b group) int {
		return cmp.Or(cmp.Compare(b.generation, a.generation), cmp.Compare(a.reason, b.reason))
	}
	for _, g := range slices.SortedFunc(maps.Keys(groups), newest) {
		names := slices.Sorted(slices.Values(groups[g]))
		if g.reason == "" {
			s.FineNodes = append(s.FineNodes, v1alpha1.FineNodes{ObservedGeneration: g.generation, Names: names})
		} else {
			s.FailedNodes = append(s.FailedNodes, v1alpha1.FailedNodes{ObservedGeneration: g.generation, Reason: g.reason, Names: names})
		}
	}
}

// allReports are the entries of a status, and for each node that is named as failed an entry with
// the reason alone.
func allReports(s *v1alpha1.StaticRouteStatus) []v1alpha1.StaticRouteNode {
	all := slices.Clone(s.Nodes)
	for _, f := range s.FailedNodes {
		for _, name := range f.Names {
			all = append(all, v1alpha1.StaticRouteNode{Name: name, ObservedGeneration: f.ObservedGeneration, Reason: f.Reason})
		}
	}
	return all
}

// left is the nodes that have, or may have, the route.
func left(s *v1alpha1.StaticRouteStatus) []string {
	var names []string
	for _, e := range allReports(s) {
		names = append(names, e.Name)
	}
	for _, f := range s.FineNodes {
		names = append(names, f.Names...)
	}
	slices.Sort(names)
	return names
}

// selector returns the nodes that a StaticRoute is for, as every node's agent computes them too.
// members are of its pool, if it names one.
func selector(o *v1alpha1.StaticRoute, members v1alpha1.PoolMembers) (func(labels.Set) bool, error) {
	inPool := func(labels.Set) bool { return true }
	if o.Spec.NodePool != "" {
		var err error
		if inPool, err = members.Selector(); err != nil {
			return nil, err
		}
	}
	chosen, err := o.Spec.NodeSelector.Selector()
	if err != nil {
		return nil, err
	}
	return func(l labels.Set) bool {
		return v1alpha1.IsEdge(l) && inPool(l) && chosen.Matches(l)
	}, nil
}

// summarize writes the counts and the conditions of a status, from the nodes' reports and the nodes
// that should have the route.
func summarize(o *v1alpha1.StaticRoute, desired []string, problem error) {
	s := &o.Status
	s.Gateway = gateway(&o.Spec)
	s.ObservedGeneration, s.Desired, s.Applied, s.Failed, s.Waiting = o.Generation, int32(len(desired)), 0, 0, nil
	wanted := sets.New(desired...)
	reported := sets.New[string]()
	var bad, conflicts []v1alpha1.StaticRouteNode
	for _, e := range allReports(s) {
		if e.Reason == v1alpha1.RouteConflict {
			conflicts = append(conflicts, e)
		}
		switch {
		case !wanted.Has(e.Name):
		case !fine(e.Reason):
			reported.Insert(e.Name)
			s.Failed++
			bad = append(bad, e)
		case e.ObservedGeneration == o.Generation:
			reported.Insert(e.Name)
		default:
			continue
		}
		if wanted.Has(e.Name) && inKernel(e.Reason) && e.ObservedGeneration == o.Generation {
			s.Applied++
		}
	}
	for _, f := range s.FineNodes {
		for _, name := range f.Names {
			if wanted.Has(name) && f.ObservedGeneration == o.Generation {
				reported.Insert(name)
				if !o.Spec.DryRun {
					s.Applied++
				}
			}
		}
	}
	waiting := sets.List(wanted.Difference(reported))
	s.Waiting = waiting[:min(len(waiting), waitingNamed)]
	set := func(kind string, status metav1.ConditionStatus, reason, message string) {
		const most = 1024
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message[:min(len(message), most)],
			ObservedGeneration: o.Generation})
	}
	if len(conflicts) > 0 {
		set(v1alpha1.ConditionConflict, metav1.ConditionTrue, v1alpha1.RouteConflict, quote(conflicts))
	} else {
		set(v1alpha1.ConditionConflict, metav1.ConditionFalse, "NoConflict", "no other route is in the way on any node")
	}
	switch {
	case o.DeletionTimestamp != nil:
		set(v1alpha1.ConditionReady, metav1.ConditionFalse, "Deleting", "waits until the route is gone from "+someOf(left(s)))
	case problem != nil:
		set(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.RouteInvalid, problem.Error())
	case len(bad) > 0:
		set(v1alpha1.ConditionReady, metav1.ConditionFalse, bad[0].Reason, quote(bad))
	case len(waiting) > 0:
		set(v1alpha1.ConditionReady, metav1.ConditionFalse, "Waiting", "not reported since the route was written: "+someOf(waiting))
	case len(desired) == 0:
		set(v1alpha1.ConditionReady, metav1.ConditionTrue, "NoNodes", "no edge node matches nodeSelector and nodePool")
	case o.Spec.DryRun:
		set(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.RouteDryRun, fmt.Sprintf("all of %d nodes could set the route", len(desired)))
	default:
		set(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.RouteApplied, fmt.Sprintf("all of %d nodes have the route", len(desired)))
	}
}

// quote lists the first nodes' messages.
func quote(entries []v1alpha1.StaticRouteNode) string {
	var parts []string
	for _, e := range entries[:min(len(entries), quoted)] {
		parts = append(parts, fmt.Sprintf("%s: %s: %s", e.Name, e.Reason, e.Message))
	}
	text := strings.Join(parts, "; ")
	if more := len(entries) - quoted; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return text
}

func someOf(names []string) string {
	text := strings.Join(names[:min(len(names), quoted)], ", ")
	if more := len(names) - quoted; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
