package route

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/skerry-io/skerry/cloud/internal/aggregate"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

const (
	// listed is how many nodes a status lists with all they say; above it only those that are not
	// fine are, and the others are named.
	listed = 200
	// waitingNamed is how many nodes that have not reported are named.
	waitingNamed = 10
	// quoted is how many nodes a condition's message quotes.
	quoted = 3
)

// Kind is StaticRoutes as the aggregation of reports needs them.
func Kind() aggregate.Kind {
	return aggregate.Of(v1alpha1.Resource(v1alpha1.StaticRoutes), merge, sweep)
}

func fine(reason string) bool {
	return reason == v1alpha1.RouteApplied || reason == v1alpha1.RouteDryRun
}

// inKernel reports whether a node with that reason has the route in its kernel, as the generation
// that it observed wants it.
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

// merge puts what nodes report into a status.
func merge(o *v1alpha1.StaticRoute, reports map[string][]byte) (refused map[string]error) {
	refused = map[string]error{}
	entries := map[string]v1alpha1.StaticRouteNode{}
	for _, e := range o.Status.Nodes {
		entries[e.Name] = e
	}
	named := map[string]int64{} // fine, by generation
	for _, f := range o.Status.FineNodes {
		for _, name := range f.Names {
			named[name] = f.ObservedGeneration
		}
	}
	for node, body := range reports {
		if body == nil {
			delete(entries, node)
			delete(named, node)
			continue
		}
		var e v1alpha1.StaticRouteNode
		if err := json.Unmarshal(body, &e); err != nil {
			refused[node] = fmt.Errorf("the report is no entry of a StaticRoute's status: %w", err)
			continue
		}
		if e.Reason == "" {
			refused[node] = fmt.Errorf("the report has no reason")
			continue
		}
		e.Name = node // whatever name it gives: the session knows
		delete(named, node)
		entries[node] = e
	}
	arrange(&o.Status, entries, named)
	return refused
}

// sweep takes the entries of nodes away that don't exist.
func sweep(o *v1alpha1.StaticRoute, exists func(node string) bool) {
	o.Status.Nodes = slices.DeleteFunc(o.Status.Nodes, func(e v1alpha1.StaticRouteNode) bool { return !exists(e.Name) })
	for i := range o.Status.FineNodes {
		f := &o.Status.FineNodes[i]
		f.Names = slices.DeleteFunc(f.Names, func(name string) bool { return !exists(name) })
	}
	o.Status.FineNodes = slices.DeleteFunc(o.Status.FineNodes, func(f v1alpha1.FineNodes) bool { return len(f.Names) == 0 })
}

// arrange writes the lists of a status. A node that was named stays named until it says something
// again: its entry is not kept.
func arrange(s *v1alpha1.StaticRouteStatus, entries map[string]v1alpha1.StaticRouteNode, named map[string]int64) {
	if len(entries)+len(named) > listed {
		for name, e := range entries {
			if fine(e.Reason) {
				named[name] = e.ObservedGeneration
				delete(entries, name)
			}
		}
	}
	s.Nodes, s.FineNodes = nil, nil
	for _, e := range entries {
		s.Nodes = append(s.Nodes, e)
	}
	slices.SortFunc(s.Nodes, func(a, b v1alpha1.StaticRouteNode) int { return cmp.Compare(a.Name, b.Name) })
	by := map[int64][]string{}
	for name, generation := range named {
		by[generation] = append(by[generation], name)
	}
	for generation, names := range by {
		slices.Sort(names)
		s.FineNodes = append(s.FineNodes, v1alpha1.FineNodes{ObservedGeneration: generation, Names: names})
	}
	slices.SortFunc(s.FineNodes, func(a, b v1alpha1.FineNodes) int { return cmp.Compare(b.ObservedGeneration, a.ObservedGeneration) })
}

// left is the nodes that have, or may have, the route.
func left(s *v1alpha1.StaticRouteStatus) []string {
	var names []string
	for _, e := range s.Nodes {
		names = append(names, e.Name)
	}
	for _, f := range s.FineNodes {
		names = append(names, f.Names...)
	}
	slices.Sort(names)
	return names
}

// selector is whom a StaticRoute is for, as every node's agent reads it too. members are of its
// pool, if it names one.
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

// summarize writes the counts and the conditions of a status, from what nodes said and which nodes
// should have the route.
func summarize(o *v1alpha1.StaticRoute, desired []string, problem error) {
	s := &o.Status
	s.Gateway = gateway(&o.Spec)
	s.ObservedGeneration, s.Desired, s.Applied, s.Failed, s.Waiting = o.Generation, int32(len(desired)), 0, 0, nil
	wanted := sets.New(desired...)
	reported := sets.New[string]()
	var bad, conflicts []v1alpha1.StaticRouteNode
	for _, e := range s.Nodes {
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

// quote is what the first nodes say.
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
