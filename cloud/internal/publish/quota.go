package publish

import (
	"fmt"
	"math"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// Quotas bound what one node may ask for. Above them its interests are refused with 429 and a
// Retry-After, and served once there is room.
type Quotas struct {
	Interests             int // declared at once
	NewInterestsPerSecond int // each costs reviews at kube-apiserver; as many as Interests may come at once
	Digests               int // in one message: resources of which the edge holds objects
	SelectorBytes         int // of all its interests: names, namespaces, label and field selectors
}

// DefaultQuotas are several times what a kubelet with 110 pods and some agents need.
func DefaultQuotas() Quotas {
	return Quotas{Interests: 1024, NewInterestsPerSecond: 16, Digests: 256, SelectorBytes: 64 << 10}
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

// refusal is what a node hears: retry is in how many seconds it may have room.
func (e exceeded) refusal(retry int) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests,
		Message: fmt.Sprintf("this node's quota publish.%s of cloudcore is used up", e),
		Details: &metav1.StatusDetails{RetryAfterSeconds: int32(retry)},
	}}
}

// usage is what a session uses of the quotas.
type usage struct{ interests, selectorBytes int }

// admit reports whether another interest of so many bytes fits beside what is used.
func (q Quotas) admit(u usage, bytes int) exceeded {
	switch {
	case u.interests >= q.Interests:
		return tooManyInterests
	case u.selectorBytes+bytes > q.SelectorBytes:
		return tooLong
	}
	return fits
}

// selectorBytes is how much of an interest is the node's own words.
func selectorBytes(p *topicpb.Interest) int {
	r := p.GetResource()
	return len(p.GetNamespace()) + len(p.GetLabelSelector()) + len(p.GetFieldSelector()) +
		len(r.GetGroup()) + len(r.GetVersion()) + len(r.GetResource())
}

// rates bound how fast nodes ask, over all their sessions: a node that comes again has no more.
type rates struct {
	perSecond, burst float64

	mu    sync.Mutex
	nodes map[types.NodeName]*rate
}

type rate struct {
	used float64 // decays by perSecond
	at   time.Time
}

// manyRates is from how many nodes on those are forgotten that have asked for nothing lately.
const manyRates = 4096

func newRates(q Quotas) *rates {
	return &rates{perSecond: float64(q.NewInterestsPerSecond), burst: float64(q.Interests), nodes: map[types.NodeName]*rate{}}
}

// take reports whether a node may ask once more now, else in how many seconds.
func (r *rates) take(node types.NodeName) (ok bool, retry int) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.nodes[node]
	if n == nil {
		r.forget(now)
		n = &rate{at: now}
		r.nodes[node] = n
	}
	n.used = max(0, n.used-r.perSecond*now.Sub(n.at).Seconds())
	n.at = now
	if n.used+1 > r.burst {
		return false, max(1, int(math.Ceil((n.used+1-r.burst)/r.perSecond)))
	}
	n.used++
	return true, 0
}

// forget drops the nodes that have used up nothing. The lock is held.
func (r *rates) forget(now time.Time) {
	if len(r.nodes) < manyRates {
		return
	}
	for node, n := range r.nodes {
		if n.used <= r.perSecond*now.Sub(n.at).Seconds() {
			delete(r.nodes, node)
		}
	}
}
