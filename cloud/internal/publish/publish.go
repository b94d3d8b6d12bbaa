// Package publish brings objects down to the edges: what each edge declared an interest in, as far as Kubernetes lets its node have it.
//
// It owns, for each session, the interests, the comparison with what the edge still holds, the set of keys that changed and the window of what is
// sent and not acknowledged. It refuses interests that kube-apiserver doesn't allow the node. It keeps nothing beyond a session, and writes
// nothing to kube-apiserver. Delivery is level-triggered: a key that changes ten times before its turn is sent once, as it is then.
//
// A session's loop owns all of its state; what other goroutines tell it (changes, acknowledgements, decisions) goes through its inbox.
//
// How it works: each collection or kind of object that a session concerns is a resourceSync, whose way
// from unsynced to streaming is the pure functions of transition.go. What an edge holds is replaced by an
// older version, or taken from it, only where cloudcore's copy is known to be no older (order of versions,
// KEP-5504, or a consistent read): a replica whose watches lag, and a cluster that was restored from a
// backup, look the same otherwise.
//
// It is above 2,500 lines because a session's interests, what its pods depend on, the comparison and the
// window share one queue.
package publish

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/cloud/internal/hub"
	"github.com/skerry-io/skerry/cloud/internal/kube"
	"github.com/skerry-io/skerry/cloud/internal/quota"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// Collections are shared copies of what kube-apiserver has, followed with cloudcore's own rights.
type Collections interface {
	Open(resource schema.GroupVersionResource) (store *kube.Store, release func())
	// Followable says why a collection can't be followed (refused), or that there is no answer (err).
	Followable(ctx context.Context, resource schema.GroupVersionResource) (refused, err error)
	// CatchUp calls done once the copy is no older than version.
	CatchUp(resource schema.GroupVersionResource, version uint64, done func()) (cancel func())
}

// ObjectWatches are objects that are watched one by one, as the node that needs them.
type ObjectWatches interface {
	Serves(ref kube.Ref) bool
	Watch(ref kube.Ref, node types.NodeName, changed func(kube.ObjectState)) kube.ObjectWatch
}

// Access asks Kubernetes what a node may see.
type Access interface {
	Allowed(ctx context.Context, node types.NodeName, at kube.Attributes) (kube.Decision, error)
	Review(ctx context.Context, node types.NodeName, at kube.Attributes) (kube.Decision, error)
}

// Limits of one session.
const (
	frameBytes   = 256 << 10 // of a State; one object alone may be larger
	windowBytes  = 1 << 20   // sent and not acknowledged
	windowStates = 64        // likewise
	maxInterests = 4096
)

// reviewing bounds the interests of all sessions that Kubernetes is being asked about. After a restart of cloudcore every edge declares all it wants at one
// moment. What kube-apiserver's priority and fairness has no seat for it refuses, and refusals and pauses then take longer than the reviews. At the bound who
// came first goes first, so the sessions are done one after another instead of all at the end.
const reviewing = 32

// Publisher is the part of the hub that serves interests.
type Publisher struct {
	collections Collections
	objects     ObjectWatches
	access      Access
	reviews     *kube.LimitedQueue
	quotas      Quotas
	rates       *quota.Rates
	feeds       *feeds
	metrics     *Metrics
}

// New returns a Publisher. It starts nothing.
func New(collections Collections, objects ObjectWatches, access Access, quotas Quotas) *Publisher {
	return &Publisher{
		collections: collections, objects: objects, access: access, reviews: kube.NewLimitedQueue(reviewing), quotas: quotas, rates: newRates(quotas),
		feeds: &feeds{
			collections: collections, open: map[feedKey]*feed{}, known: map[schema.GroupVersionResource]*collection{},
			selections: map[selected]*kube.Selection{},
		},
		metrics: newMetrics(),
	}
}

// Project has EndpointSlices made for each site. It is called before the first session.
func (p *Publisher) Project(sites Sites) { p.feeds.sites = sites }

// SitesChanged has what was made for sites made again.
func (p *Publisher) SitesChanged() { p.feeds.sitesChanged() }

// Metrics is for a Prometheus registry.
func (p *Publisher) Metrics() *Metrics { return p.metrics }

// Attach makes a session's way down.
func (p *Publisher) Attach(link hub.Session, mux *message.Mux) hub.Service {
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
