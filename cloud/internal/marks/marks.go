// Package marks is the cloud's side of what nodes collect of Services and Ingresses: their reports
// become the status of a ServiceCollection.
//
// It owns how the reports are merged, and the bounds of that status. It refuses reports that are no
// entry of it. Everything here is pure.
package marks

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/cloud/internal/aggregate"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

const (
	// listed is how many nodes are listed with their entries, and detailed how many with their
	// numbers: above it those that are fine are only named. An object must stay below 1.5 MB
	// (etcd's request limit), an entry below 16 KiB.
	listed   = 60
	detailed = 500
	// quoted is how many nodes a condition's message quotes.
	quoted = 3
)

// Kind is ServiceCollections as the aggregation of reports needs them.
func Kind() aggregate.Kind {
	return aggregate.Of(v1alpha1.Resource(v1alpha1.ServiceCollections), merge, sweep)
}

// merge puts what nodes report into a status.
func merge(o *v1alpha1.ServiceCollection, reports map[string][]byte) (refused map[string]error) {
	refused = map[string]error{}
	entries := map[string]v1alpha1.ServiceCollectionNode{}
	for _, e := range o.Status.Nodes {
		entries[e.Name] = e
	}
	fine := map[string]bool{}
	for _, name := range o.Status.FineNodes {
		fine[name] = true
	}
	for node, body := range reports {
		var e v1alpha1.ServiceCollectionNode
		if body != nil {
			if err := json.Unmarshal(body, &e); err != nil {
				refused[node] = fmt.Errorf("the report is no entry of a ServiceCollection's status: %w", err)
				continue
			}
			if e.Reason == "" {
				refused[node] = errors.New("the report has no reason")
				continue
			}
		}
		delete(fine, node)
		delete(entries, node)
		if body != nil {
			e.Name = node // whatever name it gives: the session knows
			entries[node] = e
		}
	}
	arrange(o, entries, fine)
	return refused
}

// sweep takes the entries of nodes away that don't exist.
func sweep(o *v1alpha1.ServiceCollection, exists func(node string) bool) {
	entries, fine := map[string]v1alpha1.ServiceCollectionNode{}, map[string]bool{}
	for _, e := range o.Status.Nodes {
		if exists(e.Name) {
			entries[e.Name] = e
		}
	}
	for _, name := range o.Status.FineNodes {
		if exists(name) {
			fine[name] = true
		}
	}
	arrange(o, entries, fine)
}

// arrange writes the status: the lists, the numbers and the conditions.
func arrange(o *v1alpha1.ServiceCollection, entries map[string]v1alpha1.ServiceCollectionNode, fine map[string]bool) {
	s := &o.Status
	all := len(entries) + len(fine)
	s.Nodes, s.FineNodes, s.Reporting, s.Applied = nil, nil, int32(all), int32(len(fine))
	var bad, short []string
	for name, e := range entries {
		switch e.Reason {
		case v1alpha1.CollectionApplied:
			s.Applied++
			if all > detailed {
				fine[name] = true
				continue
			}
		case v1alpha1.CollectionLeftOut:
			short = append(short, fmt.Sprintf("%s: %s", name, e.Message))
			bad = append(bad, fmt.Sprintf("%s: %s", name, e.Message))
		default:
			bad = append(bad, fmt.Sprintf("%s: %s", name, e.Message))
		}
		if all > listed {
			e.Entries = nil
		}
		s.Nodes = append(s.Nodes, e)
	}
	slices.SortFunc(s.Nodes, func(a, b v1alpha1.ServiceCollectionNode) int { return cmp.Compare(a.Name, b.Name) })
	for name := range fine {
		s.FineNodes = append(s.FineNodes, name)
	}
	slices.Sort(s.FineNodes)
	condition(o, v1alpha1.ConditionReady, bad, "Applied", "NotApplied", "every node that reports marks all that it has collected")
	condition(o, v1alpha1.ConditionComplete, short, "Complete", "EntriesLeftOut", "no node had to leave entries out")
}

func condition(o *v1alpha1.ServiceCollection, kind string, bad []string, good, reason, message string) {
	c := metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: good, Message: message, ObservedGeneration: o.Generation}
	if len(bad) > 0 {
		slices.Sort(bad)
		c.Status, c.Reason = metav1.ConditionFalse, reason
		c.Message = strings.Join(bad[:min(len(bad), quoted)], "; ")
		if more := len(bad) - quoted; more > 0 {
			c.Message += fmt.Sprintf("; and %d more", more)
		}
	}
	meta.SetStatusCondition(&o.Status.Conditions, c)
}
