package history

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// A Rule must hold for every history.
type Rule string

const (
	// Newest: no viewer sees an older value of an object after a newer one.
	Newest Rule = "newest"
	// Wanted: no pod is ended that the cloud still has.
	Wanted Rule = "wanted"
	// Dead: a deleted object does not come back, and is in no store at the end.
	Dead Rule = "dead"
	// Kept: no acknowledged write is missing at the end, and every node has the cloud's objects.
	Kept Rule = "kept"
	// Exact: an event has been counted as often as it was reported.
	Exact Rule = "exact"
	// Order: the events about one object are created in the order in which they were reported.
	Order Rule = "order"
	// Answers: a device continues to answer every read that it has answered, whichever cloudcore it
	// is linked to.
	Answers Rule = "answers"
	// Whole: a device that lost a record of its store has all others, also without a link.
	Whole Rule = "whole"
	// Ready: a node is Ready without a fault of its own, at any keepalive.
	Ready Rule = "ready"
	// Bounded: no cloudcore opens watches in a busy loop.
	Bounded Rule = "bounded"
	// Register: the device's own API is linearizable for writes through it, also over restarts.
	Register Rule = "register"
)

// A Violation is a rule that a history breaks, with the fewest records that show it.
type Violation struct {
	Rule    Rule
	Text    string
	Records []Record
	// Faults are those at that time.
	Faults []Record
}

func (v Violation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n", v.Rule, v.Text)
	for _, r := range v.Records {
		fmt.Fprintf(&b, "    %v\n", r)
	}
	for _, r := range v.Faults {
		fmt.Fprintf(&b, "    meanwhile: %v\n", r)
	}
	return b.String()
}

const (
	pods   = "pods"
	events = "events"
)

// reported are the resources of which devices report their state.
func reported(resource string) bool {
	return resource == "nodeoperations" || resource == "staticroutes" || resource == "virtualips"
}

// ordered gives the keys of a map in a fixed order.
func ordered[V any](m map[object]V) []object {
	return slices.SortedFunc(maps.Keys(m), func(a, b object) int {
		return cmp.Or(strings.Compare(a.resource, b.resource), strings.Compare(a.name, b.name), strings.Compare(a.uid, b.uid))
	})
}
