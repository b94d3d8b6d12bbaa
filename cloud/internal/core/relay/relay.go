// Package relay makes the writes and requests of the edges at kube-apiserver, each as the node that
// sent it: Kubernetes' own authorizer and admission judge them.
//
// It owns the order of each object's writes, the retries and their back-off, and the Lease of each
// node while its kubelet is alive. It refuses requests that no node may make: watches and upgrades
// (the edge API serves watches itself), events about other nodes' pods, impersonation headers. It
// keeps no state beyond a session: an edge keeps each write until it has the result. Each topic has
// its own file.
//
// It is above 2,500 lines because each topic is judged in its own way, and all share the queue, the
// fence and the Lease.
package relay

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/cloud/internal/core/quota"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

const (
	// renewEvery is half of a Lease's duration; a kubelet renews four times in that.
	renewEvery = 20 * time.Second
	// heavyAtOnce is how many writes of heavy nodes are at kube-apiserver at once, of all such
	// nodes together: with bursts alone fifty of them keep it busy for a minute, and rates don't
	// depend on its speed. One device that comes back with a thousand events is hardly slower by
	// it.
	heavyAtOnce = 2
	// eventRest bounds the pause after an event of a heavy node, in multiples of the time it took.
	// With eight such nodes waiting the pause is that time once: a few devices that come back with
	// a backlog are as quick as they were, and fifty that flood have kube-apiserver busy for a
	// fifth of what they could.
	eventRest, eventShare = 4, 8
	// largeRest is the same of large bodies, for each node that waits: one of half a megabyte is as
	// much work as fifty usual ones, and other writes wait behind it in etcd.
	largeRest = 4
)

// Quotas bound the relay's work for one node. Above them it is answered 429 with a Retry-After; an
// edge keeps its writes until then.
type Quotas struct {
	Events quota.Rate // a second and at once, made or patched
	// Statuses are all other writes: of pods, their last deletion, and of the node. StatusBytes are
	// those of their bodies.
	Statuses, StatusBytes quota.Rate

	Requests quota.Rate // of the node and of its pods
	// CertificateRequests are those among the requests that make a CertificateSigningRequest: each
	// stays in etcd for an hour or a day, and an approver judges it.
	CertificateRequests quota.Rate
	// Bytes of the writes, requests and answers that cloudcore holds for one session. A single one
	// above it is held alone.
	Bytes int
}

type quotas struct {
	events, statuses, statusBytes, requests, certificates *quota.Rates

	bytes int
}

// Relay serves the requests and writes that come up the link.
type Relay struct {
	client   Client
	pods     *Pods
	instance string
	announce func(types.NodeName) string                                                             // set before anything is attached, or nil
	serve    func(context.Context, types.NodeName, *topicpb.APIRequest) (*topicpb.APIResponse, bool) // likewise
	leases   *leaseQueue
	// renewEvery is between two renewals of a Lease; set before anything is attached.
	renewEvery time.Duration
	// Writes of heavy nodes that are no events; their events; large bodies of any node, and of
	// events.
	heavy, heavyEvents, large, largeEvents *turns

	hide    bool // the IP addresses of nodes; set before anything is attached
	quotas  quotas
	metrics *Metrics
	nodes   *Nodes
}

// New returns a Relay. instance names this replica of cloudcore.
func New(client Client, pods *Pods, instance string) *Relay {
	return &Relay{
		client: client, pods: pods, instance: instance, leases: newLeaseQueue(client), renewEvery: renewEvery, metrics: newMetrics(), nodes: newNodes(),
		heavy:       newTurns(heavyAtOnce, 0, 0),
		heavyEvents: newTurns(heavyAtOnce, eventRest, eventShare),
		large:       newTurns(1, largeRest, 1),
		largeEvents: newTurns(1, largeRest, 1),
	}
}

// Advertise has the Leases name the address of this replica, for streams to the nodes whose links
// it holds. It is called before the first Attach; announce is called for each renewal.
func (r *Relay) Advertise(announce func(types.NodeName) string) { r.announce = announce }

// Serve has requests that are not for kube-apiserver as the node answered by serve, which returns
// false for those that are. It is called before the first Attach.
func (r *Relay) Serve(serve func(context.Context, types.NodeName, *topicpb.APIRequest) (*topicpb.APIResponse, bool)) {
	r.serve = serve
}

// RenewEvery sets the time between two renewals of a node's Lease; it is 20 s without it. It is
// called before the first Attach.
func (r *Relay) RenewEvery(d time.Duration) { r.renewEvery = d }

// Nodes returns a collector for a Prometheus registry, with series for at most so many nodes. It is
// called once, before the first Attach.
func (r *Relay) Nodes(most int) *Nodes {
	r.nodes.most = most
	return r.nodes
}

// Metrics is for a Prometheus registry.
func (r *Relay) Metrics() *Metrics { return r.metrics }

// Limit sets the quotas; the default is unlimited. It is called before the first Attach.
func (r *Relay) Limit(q Quotas) {
	r.quotas = quotas{
		quota.NewRates(q.Events), quota.NewRates(q.Statuses), quota.NewRates(q.StatusBytes), quota.NewRates(q.Requests), quota.NewRates(q.CertificateRequests), q.Bytes,
	}
}
