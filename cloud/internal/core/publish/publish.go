// Package publish brings objects down to the edges: those of each edge's declared interests, as far
// as Kubernetes lets its node have them.
//
// It owns, for each session, the interests, the comparison with the set that the edge still holds,
// the set of keys that changed and the window of unacknowledged changes. It refuses interests that
// kube-apiserver doesn't allow the node. It keeps no state beyond a session, and never writes to
// kube-apiserver. Delivery is level-triggered: a key that changes ten times before its turn is sent
// once, in its latest state.
//
// A session's loop owns all of its state; messages of other goroutines (changes, acknowledgements,
// decisions) go through its inbox.
//
// How it works: each collection or kind of object that a session concerns is a resourceSync, whose
// way from unsynced to streaming is the pure functions of transition.go. An edge's set is
// replaced by an older version, or taken from it, only where cloudcore's copy is known to be no
// older (order of versions, KEP-5504, or a consistent read): a replica whose watches lag, and a
// cluster that was restored from a backup, look the same otherwise.
//
// How to read it, from the bottom: feed.go and projection.go are shared by sessions; transition.go
// and judge.go are pure; state.go is the state of a session; resource.go, held.go and depend.go
// change it for one collection, one object and the references of pods; compare.go and interest.go
// are the conversation; session.go is its loop.
//
// It is above 2,500 lines because a session's interests, the dependencies of its pods, the
// comparison and the window share one queue.
package publish

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/cloud/internal/core/cloudhub"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// reviewing bounds the interests of all sessions that are under review. After a restart of
// cloudcore every edge declares all its interests at one moment. kube-apiserver's priority and
// fairness refuses requests above its seats, and refusals and pauses then take longer than the
// reviews. At the bound the order is first come, first served, so the sessions are done one after
// another instead of all at the end.
const reviewing = 32

// reviewsInTurn is how many interests of one session are asked about before those of another one
// that waits: more than a usual edge has, so that edges that come at one moment are done one after
// another.
const reviewsInTurn = 32

// New returns a Publisher.
func New(collections Collections, objects ObjectWatches, access Access, quotas Quotas) *Publisher {
	return &Publisher{
		collections: collections, objects: objects, access: access, reviews: kube.NewLimitedQueue(reviewing, reviewsInTurn), quotas: quotas, rates: newRates(quotas),
		feeds: &feeds{
			collections: collections, open: map[feedKey]*feed{}, known: map[schema.GroupVersionResource]*collection{},
			selections: map[selected]*kube.Selection{},
		},
		metrics: newMetrics(),
	}
}

// Project has EndpointSlices made for each site. It is called before the first session.
func (p *Publisher) Project(sites Sites) { p.feeds.sites = sites }

// SitesChanged has the objects that were made for sites made again.
func (p *Publisher) SitesChanged() { p.feeds.sitesChanged() }

// Metrics is for a Prometheus registry.
func (p *Publisher) Metrics() *Metrics { return p.metrics }

// Attach makes a session's way down.
func (p *Publisher) Attach(link cloudhub.Session, mux *message.Mux) cloudhub.Service {
	s := newSession(p, link)
	message.Handle(mux, topic.Interests, func(_ context.Context, _ message.Message, m *topicpb.Interests) error {
		return s.onInterests(m)
	})
	message.Handle(mux, topic.Inventory, func(_ context.Context, _ message.Message, m *topicpb.Inventory) error {
		return s.onInventory(m)
	})
	message.Handle(mux, topic.StateAck, func(_ context.Context, _ message.Message, m *topicpb.StateAck) error {
		s.onAck(m.GetSequence())
		return nil
	})
	return s
}
