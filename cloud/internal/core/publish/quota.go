package publish

import (
	"github.com/skerry-io/skerry/cloud/internal/core/quota"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// Quotas bound the interests of one node. Above them its interests are refused with 429 and a
// Retry-After, and served once there is room.
type Quotas struct {
	Interests             int // declared at once
	NewInterestsPerSecond int // each costs reviews at kube-apiserver; as many as Interests may come at once
	Digests               int // in one message: resources of which the edge holds objects
	SelectorBytes         int // of all its interests: names, namespaces, label and field selectors
}

// exceeded is which quota an interest does not fit into.
type exceeded int

const (
	fits exceeded = iota
	tooManyInterests
	tooFast
	tooManyDigests
	tooLong
	quotaKinds
)

func (e exceeded) String() string {
	return [...]string{"", "interests", "newInterestsPerSecond", "digests", "selectorBytes"}[e]
}

// refusal is the answer to a node: retry is in how many seconds it may have room.
func (e exceeded) refusal(retry int) error {
	return quota.Refusal("publish.quotas."+e.String(), retry)
}

// usage is a session's use of the quotas.
type usage struct{ interests, selectorBytes int }

// admit reports whether another interest of so many bytes fits in addition.
func (q Quotas) admit(u usage, bytes int) exceeded {
	switch {
	case u.interests >= q.Interests:
		return tooManyInterests
	case u.selectorBytes+bytes > q.SelectorBytes:
		return tooLong
	}
	return fits
}

// selectorBytes is the length of an interest's free text.
func selectorBytes(p *topicpb.Interest) int {
	r := p.GetResource()
	return len(p.GetNamespace()) + len(p.GetLabelSelector()) + len(p.GetFieldSelector()) +
		len(r.GetGroup()) + len(r.GetVersion()) + len(r.GetResource())
}

// newRates bounds how fast nodes ask, over all their sessions.
func newRates(q Quotas) *quota.Rates {
	return quota.NewRates(quota.Rate{PerSecond: float64(q.NewInterestsPerSecond), Burst: q.Interests})
}
