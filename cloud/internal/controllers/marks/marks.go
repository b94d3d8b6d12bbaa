// Package marks is the cloud's side of the nodes' collections of Services and Ingresses: their
// reports become the status of a ServiceCollection.
//
// It owns how the reports are merged, and the bounds of that status. It refuses reports that are no
// entry of it. Everything here is pure.
package marks

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

	"github.com/skerry-io/skerry/cloud/internal/controllers/reports"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

const (
	// listed is how many nodes are listed with their entries, and detailed how many with their
	// numbers: above it those that are fine are only named, and so are the others beyond it. An
	// object must stay below 1.5 MiB (etcd's request limit), an entry below 16 KiB.
	listed   = 60
	detailed = 500
	// maxMessage and maxReason bound the texts of a node's entry, and maxEntry all of it, in bytes
	// of the object.
	maxMessage, maxReason, maxEntry = 512, 64, 16 << 10
	// quoted is how many nodes a condition's message quotes.
	quoted = 3
)

// Kind is ServiceCollections as the aggregation of reports needs them.
func Kind() reports.Kind {
	return reports.Of(v1alpha1.Resource(v1alpha1.ServiceCollections), merge, sweep)
}

// merge puts the nodes' reports into a status.
func merge(o *v1alpha1.ServiceCollection, bodies map[string][]byte) (refused map[string]error) {
	entries := map[string]v1alpha1.ServiceCollectionNode{}
	for _, e := range o.Status.Nodes {
		entries[e.Name] = e
	}
	named := namedIn(o)
	refused = reports.Lay(entries, bodies, read)
	maps.DeleteFunc(named, func(node, _ string) bool {
		_, says := bodies[node]
		return says && refused[node] == nil
	})
	arrange(o, entries, named)
	return refused
}

// read makes an entry of a node's report.
func read(node string, body []byte) (e v1alpha1.ServiceCollectionNode, err error) {
	if err := json.Unmarshal(body, &e); err != nil {
		return e, fmt.Errorf("the report is no entry of a ServiceCollection's status: %w", err)
	}
	switch {
	case e.Reason == "":
		return e, errors.New("the report has no reason")
	case reports.Short(e.Reason, maxReason) != e.Reason:
		return e, fmt.Errorf("the report's reason is longer than %d bytes", maxReason)
	}
	e.Name = node // whatever name it gives: the session determines it
	e.Message = reports.Short(e.Message, maxMessage)
	if raw, err := json.Marshal(&e); err != nil || len(raw) > maxEntry {
		e.Entries = nil // the device's own API has them
	}
	return e, nil
}

// namedIn is the nodes that a status only names, with their reason.
func namedIn(o *v1alpha1.ServiceCollection) map[string]string {
	named := map[string]string{}
	for _, name := range o.Status.FineNodes {
		named[name] = v1alpha1.CollectionApplied
	}
	for _, f := range o.Status.FailedNodes {
		for _, name := range f.Names {
			named[name] = f.Reason
		}
	}
	return named
}

// sweep takes the entries of nodes away that don't exist.
func sweep(o *v1alpha1.ServiceCollection, exists func(node string) bool) {
	entries := map[string]v1alpha1.ServiceCollectionNode{}
	for _, e := range o.Status.Nodes {
		if exists(e.Name) {
			entries[e.Name] = e
		}
	}
	named := namedIn(o)
	maps.DeleteFunc(named, func(name, _ string) bool { return !exists(name) })
	arrange(o, entries, named)
}

// arrange writes the status: the lists, the numbers and the conditions. A node that was named stays
// named until it reports again.
func arrange(o *v1alpha1.ServiceCollection, entries map[string]v1alpha1.ServiceCollectionNode, named map[string]string) {
	s := &o.Status
	all := len(entries) + len(named)
	s.Nodes, s.FineNodes, s.FailedNodes, s.Reporting, s.Applied = nil, nil, nil, int32(all), 0
	var bad, short []string
	count := func(name, reason, message string) {
		said := name + ": " + cmp.Or(message, reason)
		switch reason {
		case v1alpha1.CollectionApplied:
			s.Applied++
			return
		case v1alpha1.CollectionLeftOut:
			short = append(short, said)
		}
		bad = append(bad, said)
	}
	for name, reason := range named {
		count(name, reason, "")
	}
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		e := entries[name]
		count(name, e.Reason, e.Message)
		if all > listed {
			e.Entries = nil
		}
		if all > detailed && e.Reason == v1alpha1.CollectionApplied || len(s.Nodes) >= detailed {
			named[name] = e.Reason
		} else {
			s.Nodes = append(s.Nodes, e)
		}
	}
	by := map[string][]string{}
	for name, reason := range named {
		by[reason] = append(by[reason], name)
	}
	for _, reason := range slices.Sorted(maps.Keys(by)) {
		names := slices.Sorted(slices.Values(by[reason]))
		if reason == v1alpha1.CollectionApplied {
			s.FineNodes = names
		} else {
			s.FailedNodes = append(s.FailedNodes, v1alpha1.FailedNodes{Reason: reason, Names: names})
		}
	}
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
