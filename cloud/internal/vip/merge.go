package vip

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/cloud/internal/aggregate"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// Kind is VirtualIPs as the aggregation of reports needs them.
func Kind() aggregate.Kind {
	return aggregate.Of(v1alpha1.Resource(v1alpha1.VirtualIPs), merge, func(v *v1alpha1.VirtualIP, exists func(string) bool) {
		n := len(v.Status.Nodes)
		v.Status.Nodes = slices.DeleteFunc(v.Status.Nodes, func(e v1alpha1.VirtualIPNodeStatus) bool { return !exists(e.Name) })
		if len(v.Status.Nodes) != n {
			Merge(v, nil, time.Now())
		}
	})
}

// merge lays what nodes report over a status.
func merge(v *v1alpha1.VirtualIP, reports map[string][]byte) (refused map[string]error) {
	refused = map[string]error{}
	var entries []v1alpha1.VirtualIPNodeStatus
	for node, body := range reports {
		if body == nil {
			v.Status.Nodes = slices.DeleteFunc(v.Status.Nodes, func(e v1alpha1.VirtualIPNodeStatus) bool { return e.Name == node })
			continue
		}
		var e v1alpha1.VirtualIPNodeStatus
		if err := json.Unmarshal(body, &e); err != nil {
			refused[node] = fmt.Errorf("the report is no entry of a VirtualIP's status: %w", err)
			continue
		}
		if !slices.Contains([]v1alpha1.VirtualIPState{v1alpha1.VIPHolder, v1alpha1.VIPBackup, v1alpha1.VIPNotReady, v1alpha1.VIPFault, v1alpha1.VIPReleased}, e.State) {
			refused[node] = fmt.Errorf("the report has state %q", e.State)
			continue
		}
		e.Name = node // whoever it says it is: the session knows
		e.Message = short(e.Message)
		entries = append(entries, e)
	}
	Merge(v, entries, time.Now())
	return refused
}

// Merge takes the entries that nodes have reported into the status of a VirtualIP, drops those of nodes that it does not concern any more, and says what follows of
// all of them. It reports whether anything changed. Two holders can be in the reports for a moment, since a node that lost the address may be the later one to
// say so: the one that has it for the shorter time is the holder.
func Merge(v *v1alpha1.VirtualIP, entries []v1alpha1.VirtualIPNodeStatus, now time.Time) bool {
	before := v.Status.DeepCopy()
	s := &v.Status
	for _, e := range entries {
		if i := slices.IndexFunc(s.Nodes, func(n v1alpha1.VirtualIPNodeStatus) bool { return n.Name == e.Name }); i >= 0 {
			s.Nodes[i] = e
		} else {
			s.Nodes = append(s.Nodes, e)
		}
	}
	s.Nodes = slices.DeleteFunc(s.Nodes, func(n v1alpha1.VirtualIPNodeStatus) bool {
		return !slices.ContainsFunc(v.Spec.Nodes, func(c v1alpha1.VirtualIPNode) bool { return c.Name == n.Name })
	})
	slices.SortFunc(s.Nodes, func(a, b v1alpha1.VirtualIPNodeStatus) int { return cmp.Compare(a.Name, b.Name) })

	var holder *v1alpha1.VirtualIPNodeStatus
	var bad, duplicates []string
	s.ReadyNodes = 0
	for i := range s.Nodes {
		n := &s.Nodes[i]
		if n.State == v1alpha1.VIPHolder && (holder == nil || since(holder).Before(since(n))) {
			holder = n
		}
		if n.State == v1alpha1.VIPHolder || n.State == v1alpha1.VIPBackup {
			s.ReadyNodes++
		}
		if n.DuplicateOf != "" {
			duplicates = append(duplicates, n.Name+": "+n.Message)
		}
		if !n.Programmed {
			bad = append(bad, n.Name+": "+n.Message)
		}
	}
	s.Holder = ""
	if holder != nil {
		s.Holder = holder.Name
	}
	condition := func(kind string, is bool, yes, no, message string) {
		c := metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: no, Message: message}
		if is {
			c.Status, c.Reason = metav1.ConditionTrue, yes
		}
		setCondition(&s.Conditions, now, c)
	}
	programmed := "every node that reported has its rules"
	if len(bad) > 0 {
		programmed = short(strings.Join(bad, "; "))
	}
	condition(v1alpha1.VIPConditionProgrammed, len(s.Nodes) > 0 && len(bad) == 0, "Programmed", map[bool]string{true: "NoReport", false: "NotProgrammed"}[len(s.Nodes) == 0], programmed)
	announced := "no node holds the address: on none is a pod of the Service ready"
	if len(duplicates) > 0 {
		announced = "no node holds the address: somebody else on the LAN has it"
	}
	if holder != nil {
		announced = "node " + holder.Name + " holds the address"
	}
	condition(v1alpha1.VIPConditionAnnounced, holder != nil, "Held", "NoHolder", announced)
	duplicate := "no node found the address with somebody else"
	if len(duplicates) > 0 {
		duplicate = short(strings.Join(duplicates, "; "))
	}
	condition(v1alpha1.VIPConditionDuplicate, len(duplicates) > 0, "Answered", "NobodyElse", duplicate)
	return !equalStatus(before, s)
}

func since(n *v1alpha1.VirtualIPNodeStatus) time.Time {
	if n.Since == nil {
		return time.Time{}
	}
	return n.Since.Time
}

func equalStatus(a, b *v1alpha1.VirtualIPStatus) bool {
	return a.Holder == b.Holder && a.ReadyNodes == b.ReadyNodes && slices.Equal(a.Conditions, b.Conditions) &&
		slices.EqualFunc(a.Nodes, b.Nodes, func(x, y v1alpha1.VirtualIPNodeStatus) bool {
			same := x.Since.Equal(y.Since)
			x.Since, y.Since = nil, nil
			return same && x == y
		})
}
