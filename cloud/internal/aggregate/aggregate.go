// Package aggregate brings what many nodes report of one object together in that object's status.
//
// It owns the reports on their way: it collects those of one object for a moment and writes them at once, on top of the newest version (a conflict is
// resolved by reading it anew), so thousands of nodes never fight over one object. Any replica of cloudcore may do so at any time: the status itself is the
// only memory, and resourceVersion the only lock. It refuses a report in another node's name, for an object that is gone or is another one by now. What an
// entry means is its Kind's business. The bounds: one report an object and node, and an edge keeps few on the way; reports that wait for kube-apiserver
// wait unanswered, and their edge keeps them. Everything here may be used by many goroutines at once.
package aggregate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
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
	"github.com/skerry-io/skerry/cloud/internal/hub"
	"github.com/skerry-io/skerry/cloud/internal/kube"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

const (
	workers   = 4
	conflicts = 8 // in a row, before the other objects have their turn
	// window is how long reports of one object are collected; a larger object is written less often, up to longest.
	window  = 100 * time.Millisecond
	perKiB  = 10 * time.Millisecond
	longest = 5 * time.Second
	// maxEntry bounds a node's own entry, in bytes.
	maxEntry = 16 << 10
)

// Client makes requests at kube-apiserver, as cloudcore itself.
type Client interface {
	Do(ctx context.Context, as kube.Identity, r kube.Request) (*kube.Response, error)
}

// Kind is what one kind of objects makes of reports. Its methods get the whole object as JSON and return it changed, or nil where nothing changes.
type Kind interface {
	Resource() schema.GroupVersionResource
	// Merge lays reports, by node, over the status. A nil report takes the node's entry away. A report that makes no sense is named in refused, and the others
	// are laid over all the same.
	Merge(object []byte, reports map[string][]byte) (merged []byte, refused map[string]error, err error)
	// Sweep takes away the entries of nodes that don't exist.
	Sweep(object []byte, exists func(node string) bool) (swept []byte, err error)
}

// Of is the Kind of a Go type.
func Of[T any](resource schema.GroupVersionResource, merge func(o *T, reports map[string][]byte) (refused map[string]error), sweep func(o *T, exists func(node string) bool)) Kind {
	return &kindOf[T]{resource, merge, sweep}
}

type kindOf[T any] struct {
	resource schema.GroupVersionResource
	merge    func(*T, map[string][]byte) map[string]error
	sweep    func(*T, func(string) bool)
}

func (k *kindOf[T]) Resource() schema.GroupVersionResource { return k.resource }

func (k *kindOf[T]) Merge(object []byte, reports map[string][]byte) (merged []byte, refused map[string]error, err error) {
	merged, err = change(object, func(o *T) { refused = k.merge(o, reports) })
	return merged, refused, err
}

func (k *kindOf[T]) Sweep(object []byte, exists func(string) bool) ([]byte, error) {
	return change(object, func(o *T) { k.sweep(o, exists) })
}

func change[T any](object []byte, do func(*T)) ([]byte, error) {
	o := new(T)
	if err := json.Unmarshal(object, o); err != nil {
		return nil, fmt.Errorf("reading the object: %w", err)
	}
	before, err := json.Marshal(o)
	if err != nil {
		return nil, fmt.Errorf("writing the object: %w", err)
	}
	do(o)
	after, err := json.Marshal(o)
	if err != nil {
		return nil, fmt.Errorf("writing the object: %w", err)
	}
	if string(before) == string(after) {
		return nil, nil
	}
	return after, nil
}

// target is one object.
type target struct {
	resource  schema.GroupVersionResource
	namespace string
	name      string
}

func (t target) path() string {
	p := "/apis/" + t.resource.Group + "/" + t.resource.Version
	if t.namespace != "" {
		p += "/namespaces/" + url.PathEscape(t.namespace)
	}
	return p + "/" + t.resource.Resource + "/" + url.PathEscape(t.name)
}

// report is what a node said, and whom to tell what became of it.
type report struct {
	uid     types.UID
	body    []byte // nil: the entry goes
	waiters []waiter
}

type waiter struct {
	session hub.Session
	id      uint64
}

// pile is the reports of one object that wait.
type pile struct {
	reports map[string]*report // by node
	pause   time.Duration      // to collect further ones
}

// Aggregator is the part of the hub for reports.
type Aggregator struct {
	client Client
	kinds  map[schema.GroupVersionResource]Kind
	queue  workqueue.TypedRateLimitingInterface[target]

	reports, writes, clashes prometheus.Counter

	mu    sync.Mutex
	piles map[target]*pile
}

// New makes an Aggregator. It starts nothing.
func New(client Client, kinds ...Kind) *Aggregator {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "skerry", Subsystem: "aggregate", Name: name, Help: help})
	}
	a := &Aggregator{
		client: client, kinds: map[schema.GroupVersionResource]Kind{}, piles: map[target]*pile{},
		queue:   workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[target](200*time.Millisecond, 30*time.Second)),
		reports: counter("reports_total", "Reports of nodes."), writes: counter("writes_total", "Statuses written."),
		clashes: counter("conflicts_total", "Writes that met a newer version of the object and were made anew."),
	}
	for _, k := range kinds {
		a.kinds[k.Resource()] = k
	}
	return a
}

// Describe implements prometheus.Collector.
func (a *Aggregator) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(a, ch) }

// Collect implements prometheus.Collector.
func (a *Aggregator) Collect(ch chan<- prometheus.Metric) {
	a.reports.Collect(ch)
	a.writes.Collect(ch)
	a.clashes.Collect(ch)
}

// Attach implements hub.Part.
func (a *Aggregator) Attach(s hub.Session, mux *message.Mux) hub.Service {
	message.Handle(mux, topic.ReportWrite, func(ctx context.Context, _ message.Message, w *topicpb.Write) error {
		return a.take(ctx, s, w)
	})
	return nil
}

// take puts a report on its object's pile, or refuses it.
func (a *Aggregator) take(ctx context.Context, s hub.Session, w *topicpb.Write) error {
	a.reports.Inc()
	t := target{
		schema.GroupVersionResource{Group: w.GetResource().GetGroup(), Version: w.GetResource().GetVersion(), Resource: w.GetResource().GetResource()},
		w.GetNamespace(), w.GetName(),
	}
	if a.kinds[t.resource] == nil || t.name == "" || w.GetVerb() != topicpb.Verb_PATCH || w.GetSubresource() != "status" {
		return answer(ctx, waiter{s, w.GetId()}, t, "", apierrors.NewBadRequest(fmt.Sprintf("no reports are taken for %s %q", t.resource.GroupResource(), t.name)))
	}
	body := w.GetBody()
	if len(body) > maxEntry || !json.Valid(body) {
		return answer(ctx, waiter{s, w.GetId()}, t, "", apierrors.NewBadRequest(fmt.Sprintf("a report is JSON of at most %d bytes", maxEntry)))
	}
	if string(body) == "null" {
		body = nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.piles[t]
	if p == nil {
		p = &pile{reports: map[string]*report{}, pause: window}
		a.piles[t] = p
	}
	node := string(s.Node())
	r := &report{uid: types.UID(w.GetUid()), body: body, waiters: []waiter{{s, w.GetId()}}}
	if older := p.reports[node]; older != nil {
		r.waiters = append(r.waiters, older.waiters...) // it was said, and then something newer was
	}
	p.reports[node] = r
	a.queue.AddAfter(t, p.pause)
	return nil
}

// answer tells the edge how a report ended. A session that is gone will be told in the next one, when the edge sends the report again.
func answer(ctx context.Context, w waiter, t target, version string, refusal *apierrors.StatusError) error {
	r := &topicpb.WriteResult{Id: w.id, Accepted: refusal == nil, ResourceVersion: version}
	if refusal != nil {
		status := refusal.ErrStatus
		status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
		raw, err := json.Marshal(&status)
		if err != nil {
			return fmt.Errorf("writing a refusal: %w", err)
		}
		r.Status = raw
	}
	return w.session.Send(ctx, topic.ReportResult.New(message.Resource{Namespace: t.namespace, Name: t.name}, r))
}

// Run writes what is reported until ctx ends.
func (a *Aggregator) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for {
				t, shutdown := a.queue.Get()
				if shutdown {
					return
				}
				a.work(ctx, t)
				a.queue.Done(t)
			}
		})
	}
	<-ctx.Done()
	a.queue.ShutDown()
	wg.Wait()
	return nil
}

// work writes the reports of one object.
func (a *Aggregator) work(ctx context.Context, t target) {
	a.mu.Lock()
	p := a.piles[t]
	if p == nil || len(p.reports) == 0 {
		delete(a.piles, t)
		a.mu.Unlock()
		a.queue.Forget(t)
		return
	}
	batch := p.reports
	p.reports = map[string]*report{}
	a.mu.Unlock()

	version, size, refused, err := a.write(ctx, t, batch)
	if err != nil {
		if ctx.Err() == nil {
			klog.FromContext(ctx).V(2).Info("Reports could not be written; they will be", "resource", t.resource.Resource, "name", t.name, "reports", len(batch), "err", err)
		}
		a.back(t, batch)
		a.queue.AddRateLimited(t)
		return
	}
	a.queue.Forget(t)
	a.mu.Lock()
	p.pause = min(window+time.Duration(size/1024)*perKiB, longest)
	a.mu.Unlock()
	for node, r := range batch {
		for _, w := range r.waiters {
			if err := answer(ctx, w, t, version, refused[node]); err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).V(3).Info("A report's result could not be sent; the edge will ask again", "node", node, "err", err)
			}
		}
	}
	// What came meanwhile has its own place in the queue; an empty pile is forgotten when its turn comes.
	a.queue.AddAfter(t, longest)
}

// back puts reports that could not be written on the pile again, below what came meanwhile.
func (a *Aggregator) back(t target, batch map[string]*report) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.piles[t]
	if p == nil {
		p = &pile{reports: map[string]*report{}, pause: window}
		a.piles[t] = p
	}
	for node, r := range batch {
		if newer := p.reports[node]; newer != nil {
			newer.waiters = append(newer.waiters, r.waiters...)
			continue
		}
		p.reports[node] = r
	}
}

// write lays reports over the newest version of the object until nobody else was quicker.
func (a *Aggregator) write(ctx context.Context, t target, batch map[string]*report) (version string, size int, refused map[string]*apierrors.StatusError, err error) {
	kind := a.kinds[t.resource]
	for range conflicts {
		resp, err := a.client.Do(ctx, kube.Identity{}, kube.Request{Method: http.MethodGet, Path: t.path()})
		if err != nil {
			return "", 0, nil, err
		}
		refused = map[string]*apierrors.StatusError{}
		if resp.Code == http.StatusNotFound {
			for node := range batch {
				refused[node] = apierrors.NewNotFound(t.resource.GroupResource(), t.name)
			}
			return "", 0, refused, nil
		}
		if err := resp.Err(); err != nil {
			return "", 0, nil, err
		}
		var m metav1.PartialObjectMetadata
		if err := json.Unmarshal(resp.Body, &m); err != nil {
			return "", 0, nil, fmt.Errorf("reading the object: %w", err)
		}
		bodies := map[string][]byte{}
		for node, r := range batch {
			if r.uid != "" && r.uid != m.UID {
				refused[node] = apierrors.NewConflict(t.resource.GroupResource(), t.name, errors.New("it is another object of this name by now"))
				continue
			}
			bodies[node] = r.body
		}
		merged, bad, err := kind.Merge(resp.Body, bodies)
		if err != nil {
			return "", 0, nil, err
		}
		for node, err := range bad {
			refused[node] = apierrors.NewBadRequest(err.Error())
		}
		if merged == nil {
			return m.ResourceVersion, len(resp.Body), refused, nil
		}
		written, err := a.put(ctx, t, merged)
		if apierrors.IsConflict(err) {
			a.clashes.Inc()
			if err := pause(ctx, rand.N(50*time.Millisecond)); err != nil {
				return "", 0, nil, err
			}
			continue
		}
		if apierrors.IsInvalid(err) || apierrors.IsRequestEntityTooLargeError(err) {
			// The object's rules refuse what the reports say: no use in trying again, and none in telling the nodes one by one which of them it is.
			for node := range bodies {
				refused[node] = apierrors.NewBadRequest(err.Error())
			}
			return "", 0, refused, nil
		}
		return written, len(merged), refused, err
	}
	return "", 0, nil, fmt.Errorf("%s %s: others wrote it %d times meanwhile", t.resource.Resource, t.name, conflicts)
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

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
