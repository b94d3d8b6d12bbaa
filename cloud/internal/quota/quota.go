// Package quota bounds what one node may ask of cloudcore, and says so to the node.
//
// It owns how much of each quota every node has used lately, over all its sessions: a node that connects again has no
// more. It refuses nothing itself: callers ask, and answer the node with Refusal. Rates may be used by many goroutines
// at once.
package quota

import (
	"fmt"
	"math"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/topic"
)

// Rate is so many a second on average, and Burst at once.
type Rate struct {
	PerSecond float64
	Burst     int
}

// Refusal is what a node is answered: 429 with a Retry-After in seconds, and which quota of cloudcore.yaml it is.
func Refusal(quota string, retryAfter int) *apierrors.StatusError {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests,
		Message: fmt.Sprintf("this node's quota %s of cloudcore is used up", quota),
		Details: &metav1.StatusDetails{Kind: topic.QuotaKind, Name: quota, RetryAfterSeconds: int32(retryAfter)},
	}}
}

// Rates bound how fast each node does one thing.
type Rates struct {
	rate Rate

	mu    sync.Mutex
	nodes map[types.NodeName]*usage
}

// usage is what a node has used of its burst; it decays by the rate.
type usage struct {
	used float64
	at   time.Time
}

// manyNodes is from how many nodes on those are forgotten that have used up nothing. There are never more than have
// done something within the time in which a burst decays.
const manyNodes = 4096

// NewRates returns Rates of which nothing is used. A nil *Rates, and one of a Rate of 0, bound nothing.
func NewRates(rate Rate) *Rates { return &Rates{rate: rate, nodes: map[types.NodeName]*usage{}} }

// Take reports whether a node may do it once more now, else in how many seconds.
func (r *Rates) Take(node types.NodeName) (ok bool, retryAfter int) {
	if r == nil || r.rate.PerSecond <= 0 {
		return true, 0
	}
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	u := r.nodes[node]
	if u == nil {
		r.forget(now)
		u = &usage{at: now}
		r.nodes[node] = u
	}
	u.used = max(0, u.used-r.rate.PerSecond*now.Sub(u.at).Seconds())
	u.at = now
	if over := u.used + 1 - float64(max(r.rate.Burst, 1)); over > 0 {
		return false, max(1, int(math.Ceil(over/r.rate.PerSecond)))
	}
	u.used++
	return true, 0
}

// forget drops the nodes that have used up nothing. The lock is held.
func (r *Rates) forget(now time.Time) {
	if len(r.nodes) < manyNodes {
		return
	}
	for node, u := range r.nodes {
		if u.used <= r.rate.PerSecond*now.Sub(u.at).Seconds() {
			delete(r.nodes, node)
		}
	}
}

// Bytes bound what one session holds of cloudcore's memory. The zero value bounds nothing.
type Bytes struct {
	Most int

	mu   sync.Mutex
	held int
}

// Take reports whether so many bytes fit beside those that are held, and holds them then. What alone is above the
// bound fits where nothing else is held.
func (b *Bytes) Take(n int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.Most > 0 && b.held > 0 && b.held+n > b.Most {
		return false
	}
	b.held += n
	return true
}

// Give ends the holding of so many bytes.
func (b *Bytes) Give(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held -= n
}
