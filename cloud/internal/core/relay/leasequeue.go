package relay

import (
	"container/heap"
	"context"
	"net/http"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/recovery"
)

const (
	// leaseWrites is how many sessions read or write their Leases at once. After a restart of
	// cloudcore all want to, and each takes some 50 kB for that. A renewal takes milliseconds,
	// so that is enough for thousands of renewals a second; it is kube-apiserver that has not.
	// With 256 two replicas had more requests there than it takes at once (400, and 200 that
	// write): 3,000 nodes were in step again after 36 and 45 s, and not after 15 to 19.
	leaseWrites = 64
	// manyUnread is how many sessions wait to read their Leases before those of all nodes are read
	// with one request. Below it most of such a list would be of nodes that don't move.
	manyUnread = leaseWrites
	// listEvery bounds how often Leases are listed, and how long a list serves new sessions.
	listEvery = 15 * time.Second
	// leaseListLimit bounds a list's answer, in bytes: some 60,000 Leases.
	leaseListLimit = 64 << 20
	// ranOut is how old a Lease is that nobody can save any more: its node is NotReady
	// (kube-controller-manager's --node-monitor-grace-period, 50 s, and how often it looks, 5 s).
	ranOut = time.Minute
)

// leaseQueue lets the steps of leaseWrites Leases run at once. Of those that wait the Lease that
// was renewed longest ago is first, since its node is the first that would be NotReady. When
// thousands of devices come back at once, half of them are in step before it is their Lease's turn.
//
// Only kube-apiserver has the age of a returning device's Lease. Where many wait, all are read at
// once from its cache, by cloudcore itself; that also saves each of them a request. Those not in
// the cache, and those that have expired, are served in the order in which they came.
type leaseQueue struct {
	client Client

	mu      sync.Mutex
	free    int
	waiting leaseHeap
	unread  int // of those that wait: to be acquired, and not in found
	listing bool
	listed  time.Time // when the last list began
	found   map[types.NodeName]*coordinationv1.Lease
	written []types.NodeName // since the list began
}

// waitingLease is a step that waits for its turn.
type waitingLease struct {
	node   types.NodeName
	came   time.Time
	order  time.Time // the earliest is first
	unread bool
	run    func()
}

func newLeaseQueue(client Client) *leaseQueue { return &leaseQueue{client: client, free: leaseWrites} }

// do runs f in a goroutine when its turn has come. renewed is when the Lease was renewed, or zero
// if this session did not yet; a session waits with one step at most.
func (q *leaseQueue) do(node types.NodeName, renewed time.Time, f func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	q.forget(now)
	w := &waitingLease{node: node, came: now, run: f}
	if renewed.IsZero() {
		renewed = renewTime(q.found[node])
		w.unread = q.found[node] == nil
	}
	w.order = dueBy(renewed, now)
	if w.unread {
		q.unread++
	}
	heap.Push(&q.waiting, w)
	if q.free > 0 {
		q.free--
		go q.work()
	}
}

// dueBy is the time by which a step that was queued at came is ordered.
func dueBy(renewed, came time.Time) time.Time {
	if renewed.Before(came.Add(-ranOut)) || renewed.After(came) {
		return came
	}
	return renewed
}

func renewTime(l *coordinationv1.Lease) time.Time {
	if l == nil || l.Spec.RenewTime == nil {
		return time.Time{}
	}
	return l.Spec.RenewTime.Time
}

// work runs the queued steps until the queue is empty.
func (q *leaseQueue) work() {
	for {
		f := q.take()
		if f == nil {
			return
		}
		recovery.Call(context.Background(), "relay.leaseQueue", f)
	}
}

// take returns the next step, or nil and gives its place back.
func (q *leaseQueue) take() func() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == 0 {
		q.waiting = nil
		q.free++
		return nil
	}
	w := q.waiting[0]
	heap.Pop(&q.waiting)
	if w.unread {
		q.unread--
	}
	return w.run
}

// read is the node's Lease as it was in kube-apiserver's cache a moment ago, or nil: then it is to
// be read by itself. It is the caller's: no other session gets the same one.
func (q *leaseQueue) read(ctx context.Context, node types.NodeName) *coordinationv1.Lease {
	if q.begin() {
		found, err := q.list(ctx)
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Info("Failed to list the Leases of all nodes, reading each one", "err", err)
		}
		q.end(found, ctx.Err() != nil)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.forget(time.Now())
	l := q.found[node]
	delete(q.found, node)
	return l
}

// wrote invalidates the node's listed Lease: its next session reads it again.
func (q *leaseQueue) wrote(node types.NodeName) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.found, node)
	if q.listing {
		q.written = append(q.written, node)
	}
}

// begin reports whether the caller is to read all Leases.
func (q *leaseQueue) begin() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	if q.listing || q.unread < manyUnread || now.Sub(q.listed) < listEvery {
		return false
	}
	q.listing, q.listed = true, now
	return true
}

// end stores the Leases of a list, and orders the waiting steps by them. If the session that listed
// has ended, the next one may list at once.
func (q *leaseQueue) end(found map[types.NodeName]*coordinationv1.Lease, ended bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.listing = false
	for _, node := range q.written {
		delete(found, node)
	}
	q.written = nil
	if found == nil {
		if ended {
			q.listed = time.Time{}
		}
		return
	}
	q.found = found
	for _, w := range q.waiting {
		if l := found[w.node]; w.unread && l != nil {
			w.unread = false
			q.unread--
			w.order = dueBy(renewTime(l), w.came)
		}
	}
	heap.Init(&q.waiting)
}

// forget drops expired lists. mu is held.
func (q *leaseQueue) forget(now time.Time) {
	if q.found != nil && now.Sub(q.listed) >= listEvery {
		q.found = nil
	}
}

// list reads the Leases of all nodes. It asks as cloudcore: a node may only read its own.
func (q *leaseQueue) list(ctx context.Context) (map[types.NodeName]*coordinationv1.Lease, error) {
	p, err := pathTo(leaseResource(), corev1.NamespaceNodeLease, "", "")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	resp, err := q.client.Do(ctx, kube.Identity{}, kube.Request{Method: http.MethodGet, Path: p, Query: cached, Accept: leaseTypes, Limit: leaseListLimit})
	if err != nil {
		return nil, err
	}
	if err := resp.Err(); err != nil {
		return nil, err
	}
	var all coordinationv1.LeaseList
	if err := decodeLeases(resp.Body, "LeaseList", &all); err != nil {
		return nil, err
	}
	found := make(map[types.NodeName]*coordinationv1.Lease, len(all.Items))
	for i := range all.Items {
		l := &all.Items[i]
		l.ManagedFields = nil
		found[types.NodeName(l.Name)] = l
	}
	return found, nil
}

// leaseHeap is for container/heap.
type leaseHeap []*waitingLease

func (h leaseHeap) Len() int           { return len(h) }
func (h leaseHeap) Less(i, j int) bool { return h[i].order.Before(h[j].order) }
func (h leaseHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *leaseHeap) Push(w any)        { *h = append(*h, w.(*waitingLease)) }

func (h *leaseHeap) Pop() any {
	last := len(*h) - 1
	w := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return w
}
