// Package reports merges the reports of many nodes about one object into that object's status.
//
// It owns the reports on their way: it collects those of one object for a moment and writes them at
// once, on top of the newest version (after a conflict it reads again), so thousands of nodes never
// fight over one object. Any replica of cloudcore may do so at any time: the status itself is the
// only memory, resourceVersion the only lock, and the fence keeps a session that has been
// superseded from writing (package fence). It refuses a report in another node's name, and one for
// an object that is gone or is another one by now. Its Kind interprets an entry. The bounds:
// maxReports and maxBytes a session; reports that wait for kube-apiserver wait unanswered, and
// their edge keeps them. A session's pending reports are dropped when it ends. The workers are
// shared by all sessions, and wait for kube-apiserver and for no device: answers wait with their
// session.
//
// From the bottom: Kind and target, reporter (a session), confirmations (the fence), Aggregator.
// Everything here may be used by many goroutines at once.
package reports

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/cloud/internal/core/cloudhub"
	"github.com/skerry-io/skerry/cloud/internal/core/fence"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/cloud/internal/core/quota"
	"github.com/skerry-io/skerry/common/rerun"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

const (
	workers   = 4
	conflicts = 8 // in a row, before the other objects have their turn
	// window is how long reports of one object are collected; a larger object is written less
	// often, up to longest.
	window  = 100 * time.Millisecond
	perKiB  = 10 * time.Millisecond
	longest = 5 * time.Second
	// attemptTimeout bounds all that one attempt asks of kube-apiserver.
	attemptTimeout = 30 * time.Second
	// maxEntry bounds a node's own entry, in bytes.
	maxEntry = 16 << 10
)

// batch is the reports of one object that wait.
type batch struct {
	reports map[string]*report // by node
	pause   time.Duration      // to collect further ones
}

// Aggregator is the part of the hub for reports.
type Aggregator struct {
	client    Client
	kinds     map[schema.GroupVersionResource]Kind
	confirmed *confirmations

	rates  *quota.Rates                            // of reports; set before anything is attached
	exists map[schema.GroupVersionResource]Objects // likewise
	// unknown is of reports about objects that exists doesn't have. They are looked for at
	// kube-apiserver all the same: a watch may be late, and then the report would be lost.
	unknown *quota.Rates

	reports, writes, conflicts, refused prometheus.Counter

	mu      sync.Mutex
	batches map[target]*batch
	// queue is of the objects with a batch. It is nil until Run: its goroutines are Run's.
	queue workqueue.TypedRateLimitingInterface[target]
}

// New makes an Aggregator.
func New(client Client, kinds ...Kind) *Aggregator {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "skerry", Subsystem: "aggregate", Name: name, Help: help})
	}
	a := &Aggregator{
		client: client, kinds: map[schema.GroupVersionResource]Kind{}, exists: map[schema.GroupVersionResource]Objects{}, batches: map[target]*batch{}, confirmed: newConfirmations(client),
		unknown:   quota.NewRates(quota.Rate{PerSecond: unknownPerSecond, Burst: unknownBurst}),
		reports:   counter("reports_total", "Reports of nodes."),
		writes:    counter("writes_total", "Statuses written."),
		refused:   counter("over_quota_total", "Reports rejected with 429 because the node exceeded its quota."),
		conflicts: counter("conflicts_total", "Status writes that were retried after a conflict."),
	}
	for _, k := range kinds {
		a.kinds[k.Resource()] = k
	}
	return a
}

// Limit bounds how fast a node may report; above it a report is answered 429 with a Retry-After,
// and its edge keeps it. It is called before the first Attach.
func (a *Aggregator) Limit(rate quota.Rate) { a.rates = quota.NewRates(rate) }

// Objects is the collection of one kind; a *kube.Store.
type Objects interface {
	HasSynced() bool
	Get(key kube.Key) *kube.Object
}

// How many reports about objects that are not known here one node may send. An honest device has
// some where an object was just deleted, or just made.
const (
	unknownPerSecond = 1
	unknownBurst     = 32
)

// Know bounds reports about objects of a kind that do not exist: each costs kube-apiserver a
// request, and a device can make up any number of names. It is called before the first Attach.
func (a *Aggregator) Know(resource schema.GroupVersionResource, objects Objects) {
	a.exists[resource] = objects
}

// overRate takes a report off the node's rate, or returns the charge and the seconds until the next
// try.
func (a *Aggregator) overRate(node types.NodeName, t target) (charge time.Duration, after int) {
	if ok, after := a.rates.Take(node); !ok {
		return perRefusal, after
	}
	if have := a.exists[t.resource]; have == nil || !have.HasSynced() || have.Get(kube.Key{Namespace: t.namespace, Name: t.name}) != nil {
		return 0, 0
	}
	if ok, after := a.unknown.Take(node); !ok {
		a.rates.Give(node, 1)
		return perUnknown, after
	}
	return 0, 0
}

// Describe implements prometheus.Collector.
func (a *Aggregator) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(a, ch) }

// Collect implements prometheus.Collector.
func (a *Aggregator) Collect(ch chan<- prometheus.Metric) {
	a.reports.Collect(ch)
	a.writes.Collect(ch)
	a.conflicts.Collect(ch)
	a.refused.Collect(ch)
	a.confirmed.reads.Collect(ch)
}

// Attach implements cloudhub.Part.
func (a *Aggregator) Attach(s cloudhub.Session, mux *message.Mux) cloudhub.Service {
	r := newReporter(s, a.forget)
	message.Handle(mux, topic.ReportWrite, func(_ context.Context, _ message.Message, w *topicpb.Write) error {
		return a.take(r, w)
	})
	return r
}

// forget drops the reports of a session that has ended: its edge repeats them in the next one, to
// whichever replica.
func (a *Aggregator) forget(r *reporter) {
	a.confirmed.forget(r)
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, b := range a.batches {
		if have := b.reports[string(r.Node())]; have != nil && have.from == r {
			delete(b.reports, string(r.Node()))
		}
	}
}

// The charge for a refused report (cloudhub.Session).
const (
	perRefusal = 20 * time.Millisecond
	// perUnknown is for one about an object that cloudcore does not have. A device has a few of
	// those while a watch is late; one that sends more makes up names.
	perUnknown = 100 * time.Millisecond
)

// take puts a report with those of its object, or refuses it.
func (a *Aggregator) take(from *reporter, w *topicpb.Write) error {
	a.reports.Inc()
	t := target{
		schema.GroupVersionResource{Group: w.GetResource().GetGroup(), Version: w.GetResource().GetVersion(), Resource: w.GetResource().GetResource()},
		w.GetNamespace(), w.GetName(),
	}
	body := w.GetBody()
	if err := from.admit(len(body)); err != nil {
		return err
	}
	if charge, after := a.overRate(from.Node(), t); charge > 0 {
		a.refused.Inc()
		from.Charge(charge)
		return from.answer(t, w.GetId(), len(body), "", quota.Refusal("relay.quotas.reportsPerSecond", after))
	}
	if a.kinds[t.resource] == nil || t.name == "" || w.GetVerb() != topicpb.Verb_PATCH || w.GetSubresource() != "status" {
		return from.answer(t, w.GetId(), len(body), "", apierrors.NewBadRequest(fmt.Sprintf("no reports are taken for %s %q", t.resource.GroupResource(), t.name)))
	}
	if len(body) > maxEntry || !json.Valid(body) {
		return from.answer(t, w.GetId(), len(body), "", apierrors.NewBadRequest(fmt.Sprintf("a report is JSON of at most %d bytes", maxEntry)))
	}
	r := &report{from: from, uid: types.UID(w.GetUid()), body: body, writes: []write{{w.GetId(), len(body)}}}
	if string(body) == "null" {
		r.body = nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	b := a.batch(t)
	b.put(string(from.Node()), r)
	if a.queue != nil {
		a.queue.AddAfter(t, b.pause)
	}
	return nil
}

// batch returns the reports that wait for an object. mu is held.
func (a *Aggregator) batch(t target) *batch {
	b := a.batches[t]
	if b == nil {
		b = &batch{reports: map[string]*report{}, pause: window}
		a.batches[t] = b
	}
	return b
}

// put replaces its node's previous report. A report of an older session is dropped.
func (b *batch) put(node string, r *report) {
	if have := b.reports[node]; have != nil {
		switch {
		case have.from == r.from:
			r.writes = append(have.writes, r.writes...)
		case have.from.Epoch() > r.from.Epoch():
			return
		}
	}
	b.reports[node] = r
}

// back puts reports that could not be written under those that came in the meantime. Reports of a
// session that has ended are dropped.
func (a *Aggregator) back(t target, reports map[string]*report) {
	a.mu.Lock()
	defer a.mu.Unlock()
	b := a.batch(t)
	for node, r := range reports {
		newer := b.reports[node]
		switch {
		case r.from.over():
		case newer == nil:
			b.reports[node] = r
		case newer.from == r.from:
			newer.writes = append(r.writes, newer.writes...)
		}
	}
}

// Run writes reports until ctx ends, those that came before it too.
func (a *Aggregator) Run(ctx context.Context) error {
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[target](200*time.Millisecond, 30*time.Second))
	a.mu.Lock()
	a.queue = queue
	for t, b := range a.batches {
		queue.AddAfter(t, b.pause)
	}
	a.mu.Unlock()
	kube.Work(ctx, queue, workers, a.work)
	return nil
}

// work writes the reports of one object.
func (a *Aggregator) work(ctx context.Context, t target) {
	a.mu.Lock()
	b := a.batches[t]
	if b == nil || len(b.reports) == 0 {
		delete(a.batches, t)
		a.mu.Unlock()
		a.queue.Forget(t)
		return
	}
	reports := b.reports
	b.reports = map[string]*report{}
	a.mu.Unlock()

	attempt, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	end, err := a.write(attempt, t, reports)
	if err != nil {
		if ctx.Err() == nil {
			klog.FromContext(ctx).V(2).Info("Failed to write reports, retrying", "resource", t.resource.Resource, "name", t.name, "reports", len(reports), "err", err)
		}
		a.back(t, reports)
		a.queue.AddRateLimited(t)
		return
	}
	for node, r := range reports {
		if end.later[node] || r.from.over() {
			continue
		}
		for _, w := range r.writes {
			if err := r.from.answer(t, w.id, w.bytes, end.version, end.refused[node]); err != nil {
				klog.FromContext(ctx).Error(err, "Failed to answer a report; the device sends it again", "node", node)
			}
		}
	}
	a.mu.Lock()
	a.batch(t).pause = min(window+time.Duration(end.size/1024)*perKiB, longest)
	a.mu.Unlock()
	if len(end.later) > 0 {
		maps.DeleteFunc(reports, func(node string, _ *report) bool { return !end.later[node] })
		a.back(t, reports)
		a.queue.AddRateLimited(t)
		return
	}
	a.queue.Forget(t)
	// Newer reports have their own place in the queue; an empty batch is forgotten when its turn
	// comes.
	a.queue.AddAfter(t, longest)
}

// end is how the reports of one object were written.
type end struct {
	version string
	size    int // of the object
	refused map[string]*apierrors.StatusError
	later   map[string]bool // nodes whose session could not be confirmed now
}

// write lays reports over the newest version of the object until no other writer was quicker.
func (a *Aggregator) write(ctx context.Context, t target, reports map[string]*report) (end, error) {
	kind := a.kinds[t.resource]
	for range conflicts {
		resp, err := a.client.Do(ctx, kube.Identity{}, kube.Request{Method: http.MethodGet, Path: t.path()})
		if err != nil {
			return end{}, err
		}
		done := end{refused: map[string]*apierrors.StatusError{}, later: map[string]bool{}}
		if resp.Code == http.StatusNotFound {
			for node := range reports {
				done.refused[node] = apierrors.NewNotFound(t.resource.GroupResource(), t.name)
			}
			return done, nil
		}
		if err := resp.Err(); err != nil {
			return end{}, err
		}
		var m metav1.PartialObjectMetadata
		if err := json.Unmarshal(resp.Body, &m); err != nil {
			return end{}, fmt.Errorf("reading the object: %w", err)
		}
		done.version, done.size = m.ResourceVersion, len(resp.Body)
		bodies := map[string][]byte{}
		for node, r := range reports {
			if r.uid != "" && r.uid != m.UID {
				done.refused[node] = apierrors.NewConflict(t.resource.GroupResource(), t.name, errors.New("it is another object of this name by now"))
				continue
			}
			bodies[node] = r.body
		}
		// After the object was read and before it is written: see package fence.
		for node, err := range a.confirmed.check(ctx, t, m.ResourceVersion, sessionsOf(reports, bodies)) {
			delete(bodies, node)
			if s, ok := errors.AsType[*fence.Superseded](err); ok {
				reports[node].from.replaced(s)
				continue
			}
			done.later[node] = true
		}
		merged, bad, err := kind.Merge(resp.Body, bodies)
		if err != nil {
			return end{}, err
		}
		for node, err := range bad {
			done.refused[node] = apierrors.NewBadRequest(err.Error())
		}
		if merged == nil {
			return done, nil
		}
		written, err := a.put(ctx, t, merged)
		if apierrors.IsConflict(err) {
			a.conflicts.Inc()
			if err := rerun.Pause(ctx, rand.N(50*time.Millisecond)); err != nil {
				return end{}, err
			}
			continue
		}
		if unacceptable(err) {
			return a.writeApart(ctx, t, reports, bodies, done, err)
		}
		if err == nil {
			a.confirmed.wrote(t, m.ResourceVersion, written, sessionsOf(reports, bodies))
			done.version, done.size = written, len(merged)
		}
		return done, err
	}
	return end{}, fmt.Errorf("%s %s: %d conflicts with other writers in a row", t.resource.Resource, t.name, conflicts)
}

// unacceptable reports whether the merged object is refused by its own rules, or its bounds. A
// retry is useless.
func unacceptable(err error) bool {
	if err == nil || apierrors.IsInvalid(err) || apierrors.IsRequestEntityTooLargeError(err) {
		return err != nil
	}
	// kube-apiserver hands the bounds of etcd (1.5 MiB), and of its client for it (2 MiB), on as
	// internal errors.
	return strings.Contains(err.Error(), "etcdserver: request is too large") || strings.Contains(err.Error(), "trying to send message larger than max")
}

// writeApart writes reports that can't be written together in two halves, and these likewise, so
// that one node's report keeps no other's back. sofar has the results of those without a body.
// Reports that kube-apiserver does not answer for, or that an attempt has no time for, wait:
// results known by then are kept.
func (a *Aggregator) writeApart(ctx context.Context, t target, reports map[string]*report, bodies map[string][]byte, sofar end, why error) (end, error) {
	switch len(bodies) {
	case 0: // the object can't be written whatever is reported
		return sofar, why
	case 1:
		for node := range bodies {
			sofar.refused[node] = apierrors.NewBadRequest(why.Error())
			reports[node].from.Charge(perRefusal)
		}
		return sofar, nil
	}
	nodes := slices.Sorted(maps.Keys(bodies))
	for half := range slices.Chunk(nodes, (len(nodes)+1)/2) {
		part := map[string]*report{}
		for _, node := range half {
			part[node] = reports[node]
		}
		e, err := a.write(ctx, t, part)
		if err != nil {
			klog.FromContext(ctx).V(2).Info("Failed to write reports, retrying", "resource", t.resource.Resource, "name", t.name, "reports", len(part), "err", err)
			for node := range part {
				sofar.later[node] = true
			}
			continue
		}
		maps.Copy(sofar.refused, e.refused)
		maps.Copy(sofar.later, e.later)
		sofar.version, sofar.size = cmp.Or(e.version, sofar.version), max(e.size, sofar.size)
	}
	return sofar, nil
}

// sessionsOf is the sessions of those reports that have a body in bodies.
func sessionsOf(reports map[string]*report, bodies map[string][]byte) map[string]fence.Session {
	sessions := map[string]fence.Session{}
	for node := range bodies {
		sessions[node] = reports[node].from
	}
	return sessions
}

// put writes the status; its resourceVersion is the precondition.
func (a *Aggregator) put(ctx context.Context, t target, object []byte) (version string, err error) {
	resp, err := a.client.Do(ctx, kube.Identity{}, kube.Request{Method: http.MethodPut, Path: t.path() + "/status", ContentType: "application/json", Body: object})
	if err != nil {
		return "", err
	}
	if err := resp.Err(); err != nil {
		return "", err
	}
	a.writes.Inc()
	var m metav1.PartialObjectMetadata
	if err := json.Unmarshal(resp.Body, &m); err != nil {
		return "", fmt.Errorf("reading the written object: %w", err)
	}
	return m.ResourceVersion, nil
}
