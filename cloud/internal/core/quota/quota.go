// Package quota bounds the load that one node causes in cloudcore, and builds the refusals.
//
// It owns how much of each quota every node has used lately, over all its sessions: a node that
// connects again has no more. It does not refuse requests itself: callers ask, and answer the node
// with Refusal. Rates may be used by many goroutines at once.
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
	// Heavy is how many nodes' PerSecond all those together have that have used more than a
	// sixteenth of their bursts; the others have a fiftieth of it to themselves, and their bursts.
	// 0: each node has its own PerSecond.
	//
	// A rate that one device needs to send its backlog when it comes back would delay others if
	// fifty devices had it at once. A node that stays just below the bound between both has the
	// fiftieth, so it has no advantage.
	Heavy int
}

// Refusal is the answer to a node over a quota: 429 with a Retry-After in seconds, and the quota's
// name in cloudcore.yaml.
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
	heavy map[types.NodeName]*usage // of nodes, with a Rate that has Heavy
	swept time.Time                 // when heavy was looked through
}

// usage is the used part of a node's burst; it decays by the rate.
type usage struct {
	used float64
	at   time.Time
}

// manyNodes is the number of nodes above which unused entries are dropped. There are never more
// entries than nodes active within the time in which a burst decays.
const manyNodes = 4096

const (
	heavyShare = 16 // of a burst, its part from which on a node is heavy
	lightShare = 50 // of the rate, the part that a node has while it is not
)

// NewRates returns unused Rates. A nil *Rates, and one of a Rate of 0, have no bound.
func NewRates(rate Rate) *Rates {
	return &Rates{rate: rate, nodes: map[types.NodeName]*usage{}, heavy: map[types.NodeName]*usage{}}
}

// Take reports whether a node may do it once more now, else in how many seconds.
func (r *Rates) Take(node types.NodeName) (ok bool, retryAfter int) { return r.TakeN(node, 1) }

// TakeN is Take of so many at once. A single one above the burst is taken where the usage is zero.
func (r *Rates) TakeN(node types.NodeName, n int) (ok bool, retryAfter int) {
	if r == nil || r.rate.PerSecond <= 0 {
		return true, 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	u := r.use(node)
	burst := float64(max(r.rate.Burst, 1))
	if over := u.used + min(float64(n), burst) - burst; over > 0 {
		return false, max(1, int(math.Ceil(min(over/r.of(u), maxRetryAfter))))
	}
	u.used += float64(n)
	r.weigh(node, u)
	return true, 0
}

// Heavy reports whether a node has used more than a sixteenth of its burst.
func (r *Rates) Heavy(node types.NodeName) bool {
	if r == nil || r.rate.PerSecond <= 0 {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.isHeavy(r.use(node))
}

// maxRetryAfter is in seconds; an edge waits no longer than a minute (putoff).
const maxRetryAfter = 60

// Give undoes a Take.
func (r *Rates) Give(node types.NodeName, n int) {
	if r == nil || r.rate.PerSecond <= 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	u := r.use(node)
	u.used = max(0, u.used-float64(n))
	r.weigh(node, u)
}

// Spend uses n whether it fits or not, up to twice the burst, and returns the time until the usage
// is within the burst.
func (r *Rates) Spend(node types.NodeName, n float64) time.Duration {
	if r == nil || r.rate.PerSecond <= 0 {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	u := r.use(node)
	burst := float64(max(r.rate.Burst, 1))
	u.used = min(u.used+n, 2*burst)
	r.weigh(node, u)
	return time.Duration(max(0, u.used-burst) / r.of(u) * float64(time.Second))
}

// use is a node's usage as it is now. The lock is held.
func (r *Rates) use(node types.NodeName) *usage {
	now := time.Now()
	u := r.nodes[node]
	if u == nil {
		r.forget(now)
		u = &usage{at: now}
		r.nodes[node] = u
	}
	r.sweep(now)
	r.decay(u, now)
	r.weigh(node, u)
	return u
}

func (r *Rates) decay(u *usage, now time.Time) {
	u.used = max(0, u.used-r.of(u)*now.Sub(u.at).Seconds())
	u.at = now
}

// of is the rate that a node has now. The lock is held.
func (r *Rates) of(u *usage) float64 {
	if r.rate.Heavy <= 0 {
		return r.rate.PerSecond
	}
	light := r.rate.PerSecond / lightShare
	if !r.isHeavy(u) {
		return light
	}
	return light + r.rate.PerSecond*min(1, float64(r.rate.Heavy)/float64(max(len(r.heavy), 1)))
}

func (r *Rates) isHeavy(u *usage) bool { return u.used > float64(r.rate.Burst)/heavyShare }

func (r *Rates) weigh(node types.NodeName, u *usage) {
	if r.rate.Heavy > 0 && r.isHeavy(u) {
		r.heavy[node] = u
	} else {
		delete(r.heavy, node)
	}
}

// sweep finds, once a second, nodes that have been idle for a while and are heavy no more. The lock
// is held.
func (r *Rates) sweep(now time.Time) {
	if now.Sub(r.swept) < time.Second {
		return
	}
	r.swept = now
	for node, u := range r.heavy {
		r.decay(u, now)
		r.weigh(node, u)
	}
}

// forget drops the nodes with an unused burst. The lock is held.
func (r *Rates) forget(now time.Time) {
	if len(r.nodes) < manyNodes {
		return
	}
	for node, u := range r.nodes {
		if u.used <= r.of(u)*now.Sub(u.at).Seconds() {
			delete(r.heavy, node)
			delete(r.nodes, node)
		}
	}
}

// Bytes bound the memory of cloudcore that one session holds. The zero value has no bound.
type Bytes struct {
	Most int

	mu   sync.Mutex
	held int
}

// Take reports whether so many bytes fit into the bound with those already held, and holds them
// then. A single one above the bound fits while no other is held.
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
