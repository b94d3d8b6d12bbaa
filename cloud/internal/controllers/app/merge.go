package app

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/skerry-io/skerry/cloud/internal/controllers/reports"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

const (
	// mostNodes is how many nodes an application's status lists; a report of a further one is
	// refused.
	mostNodes = 256
	// maxEntry bounds a node's entry, in bytes, so that all of them stay below etcd's limit (1.5
	// MiB); maxMessage the message about one content.
	maxEntry, maxMessage = 5 << 10, 180
	maxContent           = 16 // as in the CRD
)

// Kind is EdgeApps as the aggregation of reports needs them.
func Kind() reports.Kind {
	return reports.Of(v1alpha1.Resource(v1alpha1.EdgeApps), merge, sweep)
}

// read makes an entry of a node's report.
func read(node string, body []byte) (e v1alpha1.EdgeAppNode, err error) {
	if err := json.Unmarshal(body, &e); err != nil {
		return e, fmt.Errorf("the report is no entry of an EdgeApp's status: %w", err)
	}
	e.Name = node // whatever name it gives: the session determines it
	if !slices.Contains([]v1alpha1.AppState{"", v1alpha1.AppRunning, v1alpha1.AppStarting, v1alpha1.AppHalting, v1alpha1.AppHalted, v1alpha1.AppUnknown}, e.State) {
		return e, fmt.Errorf("the report has state %q", e.State)
	}
	if len(e.Content) > maxContent {
		return e, fmt.Errorf("the report has %d contents, at most %d are taken", len(e.Content), maxContent)
	}
	for i := range e.Content {
		e.Content[i].Message = reports.Short(e.Content[i].Message, maxMessage)
	}
	raw, err := json.Marshal(&e)
	if err == nil && len(raw) > maxEntry {
		err = fmt.Errorf("the report has %d bytes, at most %d are taken", len(raw), maxEntry)
	}
	return e, err
}

// merge puts the nodes' reports into a status. The node that reports the statistics is chosen here,
// in the same write: see settle.
func merge(o *v1alpha1.EdgeApp, bodies map[string][]byte) (refused map[string]error) {
	entries := map[string]v1alpha1.EdgeAppNode{}
	for _, e := range o.Status.Nodes {
		entries[e.Name] = e
	}
	refused = reports.Lay(entries, bodies, func(node string, body []byte) (v1alpha1.EdgeAppNode, error) {
		e, err := read(node, body)
		if err != nil {
			return e, err
		}
		have, known := entries[node]
		if !known && len(entries) >= mostNodes {
			return e, fmt.Errorf("the status lists %d nodes already", mostNodes)
		}
		e.IsDesignated = node == o.Spec.DesignatedNode
		e.ReportsStats = have.ReportsStats
		return e, nil
	})
	o.Status.Nodes = nil
	for _, e := range entries {
		o.Status.Nodes = append(o.Status.Nodes, e)
	}
	slices.SortFunc(o.Status.Nodes, func(a, b v1alpha1.EdgeAppNode) int { return cmp.Compare(a.Name, b.Name) })
	settle(&o.Status)
	return refused
}

// sweep takes the entries of nodes away that don't exist.
func sweep(o *v1alpha1.EdgeApp, exists func(node string) bool) {
	before := len(o.Status.Nodes)
	o.Status.Nodes = slices.DeleteFunc(o.Status.Nodes, func(e v1alpha1.EdgeAppNode) bool { return !exists(e.Name) })
	if len(o.Status.Nodes) != before {
		settle(&o.Status)
	}
}

// settle decides whose statistics are the application's: those of the active node once it reports
// that the application is scheduled on it. Until then the node that had them keeps them, so that
// there is exactly one from the first on. Where no node has them the first in the alphabet that
// claims them gets them.
func settle(s *v1alpha1.EdgeAppStatus) {
	first := func(is func(v1alpha1.EdgeAppNode) bool) string {
		if i := slices.IndexFunc(s.Nodes, is); i >= 0 {
			return s.Nodes[i].Name
		}
		return ""
	}
	holder := cmp.Or(
		first(func(e v1alpha1.EdgeAppNode) bool { return e.Name == s.ActiveNode && e.ScheduledOnThisNode }),
		first(func(e v1alpha1.EdgeAppNode) bool { return e.ReportsStats }),
		first(func(e v1alpha1.EdgeAppNode) bool { return e.ScheduledOnThisNode }),
	)
	for i := range s.Nodes {
		s.Nodes[i].ReportsStats = s.Nodes[i].Name == holder
	}
}
