// Package balance shares the sessions of devices out evenly among the replicas of cloudcore: one
// that is new, or has lost its sessions, gets its share from those that have more.
//
// It owns the Lease cloudcore-replicas, in which each replica reports its number of sessions in an
// annotation, and how many of its own sessions a replica ends so that their devices dial another
// one. The hub selects the sessions. It refuses to act on missing or old data: with one replica,
// before this one is ready, or when the data of the others is older than their last renewals, no
// session is ended. Plan is pure. A Balancer runs on one goroutine; Elsewhere may be called by any.
// Bounds: a request each 10 s; 1 % of the surplus in a second, at least 1 and at most 50
// (docs/dev/decisions/0026-sessions-are-shared-out.md).
package balance

import (
	"context"
	"encoding/json"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/rerun"
)

const (
	// Lease is the name of the Lease that all replicas write.
	Lease = "cloudcore-replicas"

	// settle is the time from the end of a round's last session until its device has dialled: an
	// older count doesn't show the effect of the round.
	settle = 5 * time.Second
	// leaveTimeout bounds the last request of a replica that stops.
	leaveTimeout = 2 * time.Second
)

// Config configures a Balancer. All of it must be set.
type Config struct {
	Leases   coordination.LeaseInterface // of cloudcore's own namespace
	Instance string
	Max      int // sessions that this replica takes
	// Ready gives the reason devices should not come here; nil: they should.
	Ready func() error
	// Sessions is how many there are. End ends at most n of them, and returns how many it did end.
	Sessions func() int
	End      func(n int) int
}

// Balancer ends sessions of a replica that has more than its share. It is a prometheus.Collector.
type Balancer struct {
	config Config
	ended  prometheus.Counter
	known  prometheus.Gauge
	room   atomic.Pointer[room]

	// Owned by Run.
	others  replicas
	plan    Plan
	read    time.Time // when the request was made whose answer is in others; zero: not yet
	written bool      // the annotation may be there
	round   round
	rest    time.Time // no round before
}

// room is the data of Elsewhere.
type room struct {
	read     time.Time
	sessions int // that others take
}

// round is a number of sessions to end in a period.
type round struct {
	left  int
	part  int       // of it in a second
	ended int       // so far
	last  time.Time // when one was ended
}

// New makes a Balancer.
func New(c Config) *Balancer {
	return &Balancer{
		config: c, others: replicas{own: Key(c.Instance), of: map[string]*replica{}},
		ended: prometheus.NewCounter(prometheus.CounterOpts{Namespace: "skerry", Subsystem: "balance", Name: "ended_total",
			Help: "Sessions closed to move them to another replica."}),
		known: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "skerry", Subsystem: "balance", Name: "replicas",
			Help: "Serving replicas known to this one, including itself; 0 if unknown."}),
	}
}

// Run shares sessions out until ctx ends, and then removes its annotation.
func (b *Balancer) Run(ctx context.Context) error {
	loop := rerun.New(b.step, rerun.Config{RetryMax: 2 * time.Minute, Failed: func(ctx context.Context, err error, retry time.Duration) {
		klog.FromContext(ctx).Info("Failed to write the replicas' Lease, not balancing sessions until the next try", "lease", Lease, "err", err, "retryIn", retry)
	}})
	b.forget() // of an earlier Run
	loop.Run(ctx)
	b.forget()
	if !b.written {
		return nil
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	if _, err := b.patch(last, map[string]any{b.others.own: nil}); err != nil {
		klog.FromContext(ctx).V(2).Info("Failed to remove this replica from the Lease, other replicas will", "lease", Lease, "err", err)
	}
	b.written = false
	return nil
}

// Elsewhere reports whether another replica takes a session.
func (b *Balancer) Elsewhere() bool {
	r := b.room.Load()
	return r != nil && r.sessions > 0 && apart(r.read, time.Now()) < lifetime
}

// forget drops all that is known of others: it is taken for true again when it has been
// seen to change.
func (b *Balancer) forget() {
	clear(b.others.of)
	b.plan, b.round, b.rest, b.read = Plan{}, round{}, time.Time{}, time.Time{}
	b.room.Store(nil)
	b.known.Set(0)
}

// step makes a request when one is due, and starts ending sessions of the time until the next step.
func (b *Balancer) step(ctx context.Context) (time.Duration, error) {
	now := time.Now()
	if !b.read.IsZero() && apart(b.read, now) >= lifetime {
		b.forget() // requests have failed, or this process was suspended
	}
	if b.config.Ready() != nil {
		b.forget() // the others forget this replica likewise, as it doesn't renew
		return period, nil
	}
	if b.read.IsZero() || apart(b.read, now) >= period {
		if err := b.exchange(ctx, now); err != nil {
			return 0, err
		}
		b.begin(ctx, now)
	}
	b.end()
	wait := time.Until(b.read.Add(period))
	if b.round.left > 0 {
		wait = min(wait, time.Second)
	}
	return max(wait, time.Millisecond), nil
}

// exchange writes the number of sessions, and reads those of others. Their time is that of the
// request: where this process is suspended in between, the answer is old from the start.
func (b *Balancer) exchange(ctx context.Context, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, period/2)
	defer cancel()
	own, err := json.Marshal(struct {
		Count
		At string `json:"at"` // for people and package history, and so that each renewal is another text
	}{Count{b.config.Sessions(), b.config.Max}, now.UTC().Format(time.RFC3339Nano)})
	if err != nil {
		return fmt.Errorf("encoding a count: %w", err)
	}
	annotations := map[string]any{b.others.own: string(own)}
	for _, k := range b.others.gone(now) {
		annotations[k] = nil
	}
	b.written = true
	all, err := b.patch(ctx, annotations)
	if err != nil {
		return err
	}
	b.others.observe(all, now)
	b.read = now
	return nil
}

// patch changes annotations of the Lease, creating it if absent, and returns all of them.
func (b *Balancer) patch(ctx context.Context, annotations map[string]any) (map[string]string, error) {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	if err != nil {
		return nil, fmt.Errorf("encoding a patch: %w", err)
	}
	lease, err := b.config.Leases.Patch(ctx, Lease, types.MergePatchType, body, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		if _, err = b.config.Leases.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: Lease}}, metav1.CreateOptions{}); err == nil || apierrors.IsAlreadyExists(err) {
			lease, err = b.config.Leases.Patch(ctx, Lease, types.MergePatchType, body, metav1.PatchOptions{})
		}
	}
	if err != nil {
		return nil, fmt.Errorf("writing the Lease %s: %w", Lease, err)
	}
	return lease.Annotations, nil
}

// begin begins the next round, once the effect of the last one is known.
func (b *Balancer) begin(ctx context.Context, now time.Time) {
	others := b.others.serving(now)
	b.known.Set(float64(1 + len(others)))
	free := 0
	for _, o := range others {
		free += max(0, o.Max-o.Sessions)
	}
	b.room.Store(&room{now, free})
	b.round.left = 0
	if now.Before(b.rest) || b.round.ended > 0 && !b.others.countedSince(b.round.last.Add(settle), now) {
		return
	}
	log, own, was := klog.FromContext(ctx), b.config.Sessions(), b.plan.active
	end, rest := b.plan.Next(own, others, b.round.ended)
	const seconds = int(period / time.Second)
	b.round = round{left: end, part: (end + seconds - 1) / seconds}
	b.rest = now.Add(rest)
	switch {
	case rest > 0:
		log.Info("Paused balancing: ended devices dialled this replica again", "sessions", own, "others", others, "nextTry", b.rest)
	case !was && b.plan.active:
		log.Info("Ending sessions, since other replicas have fewer", "sessions", own, "others", others)
	case was && !b.plan.active:
		log.Info("Finished balancing sessions", "sessions", own, "others", others)
	case end > 0:
		log.V(2).Info("Ending sessions above this replica's share", "sessions", own, "others", others, "end", end)
	}
}

// end ends a second's part of the round's sessions.
func (b *Balancer) end() {
	if b.round.left == 0 || apart(b.read, time.Now()) >= period {
		return
	}
	n := min(b.round.left, b.round.part) // the rest is left for another round
	b.round.left -= n
	if ended := b.config.End(n); ended > 0 {
		b.round.ended += ended
		b.round.last = time.Now()
		b.ended.Add(float64(ended))
	}
}

// Describe implements prometheus.Collector.
func (b *Balancer) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(b, ch) }

// Collect implements prometheus.Collector.
func (b *Balancer) Collect(ch chan<- prometheus.Metric) {
	ch <- b.ended
	ch <- b.known
}
