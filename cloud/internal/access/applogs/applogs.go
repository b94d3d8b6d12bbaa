// Package applogs passes the output of applications on devices to a sink, as devices send it.
//
// It owns up to where the sink has the lines of each container, in memory: a batch that a device
// sends again, because an answer was lost or it was started again, gives the sink no line twice.
// It refuses lines of an application that did not ask for it, and batches above the bounds. An
// answer is given once the sink has the lines; until then the device keeps them. After a restart
// of cloudcore, or on another replica, a batch whose answer was lost may reach the sink twice,
// with the same ids.
//
// Serve may be called by many goroutines; batches of one container are passed on one after the
// other. Bounds: MaxBatch bytes a request, of which the relay holds as many as its own bounds
// allow; maxStreams containers are remembered, those that were quiet the longest are forgotten
// first; a node has its quota.
package applogs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/cloud/internal/core/otlp"
	"github.com/skerry-io/skerry/cloud/internal/core/quota"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/applog"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

const (
	maxStreams = 16384
	// retryAfter, in seconds, is when a device comes again after the sink has failed; offAfter
	// without a sink.
	retryAfter, offAfter = 5, 300
)

// Origin is where lines come from. Node is the session's; the rest is reported by the device, of an
// existing application with collectLogs.
type Origin struct {
	Node, Namespace, App string
	applog.Batch
}

// Sink takes lines. It returns nil once they are safe there, and otlp.ErrRefused for lines that it
// would refuse again.
type Sink interface {
	Write(ctx context.Context, o Origin) error
}

// Logs is the cloud's end of the collection of logs.
type Logs struct {
	sink  Sink
	apps  *kube.Store
	rates *quota.Rates

	lines, dropped, repeated, failed prometheus.Counter

	mu      sync.Mutex
	streams map[string]*stream // by node and stream
}

// stream is the state of a container's lines. Its mutex is held while a batch of it is
// passed on.
type stream struct {
	sync.Mutex
	used    time.Time // guarded by Logs.mu
	users   int       // likewise
	through int64
}

// New makes Logs. sink is nil where it is not configured; apps are the EdgeApps. rate bounds the
// batches of a node.
func New(sink Sink, apps *kube.Store, rate quota.Rate) *Logs {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "skerry", Subsystem: "applogs", Name: name, Help: help})
	}
	return &Logs{
		sink: sink, apps: apps, rates: quota.NewRates(rate), streams: map[string]*stream{},
		lines: counter("lines_total", "Log lines of applications that the receiver has accepted."), dropped: counter("dropped_total", "Log lines that devices dropped before they could send them."),
		repeated: counter("repeated_total", "Repeated log lines, which were not forwarded."), failed: counter("failures_total", "Batches that the receiver did not accept."),
	}
}

// Describe implements prometheus.Collector.
func (l *Logs) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(l, ch) }

// Collect implements prometheus.Collector.
func (l *Logs) Collect(ch chan<- prometheus.Metric) {
	for _, c := range []prometheus.Counter{l.lines, l.dropped, l.repeated, l.failed} {
		c.Collect(ch)
	}
}

// Serve answers a device's batch; ok is false for every other request.
func (l *Logs) Serve(ctx context.Context, node types.NodeName, q *topicpb.APIRequest) (answer *topicpb.APIResponse, ok bool) {
	namespace, name, ok := applog.Parse(q.GetPath())
	if !ok || q.GetMethod() != http.MethodPost || q.GetBearerToken() != "" {
		return nil, false
	}
	through, err := l.take(ctx, node, namespace, name, q.GetBody())
	if err == nil {
		body, _ := json.Marshal(applog.Answer{Through: through}) // a number
		return &topicpb.APIResponse{Code: http.StatusOK, ContentType: "application/json", Body: body}, true
	}
	a := &topicpb.APIResponse{Code: http.StatusServiceUnavailable, ContentType: "application/json", RetryAfter: strconv.Itoa(retryAfter), Body: kube.StatusOf(err)}
	if status, is := errors.AsType[*apierrors.StatusError](err); is {
		if a.Code = status.ErrStatus.Code; a.Code != http.StatusServiceUnavailable {
			a.RetryAfter = ""
		}
		if d := status.ErrStatus.Details; d != nil && d.RetryAfterSeconds > 0 {
			a.RetryAfter = strconv.Itoa(int(d.RetryAfterSeconds))
		}
	}
	return a, true
}

func (l *Logs) take(ctx context.Context, node types.NodeName, namespace, name string, body []byte) (through int64, err error) {
	if l.sink == nil {
		err := apierrors.NewServiceUnavailable("cloudcore has no sink for logs: logs.endpoint is not set")
		err.ErrStatus.Details.RetryAfterSeconds = offAfter
		return 0, err
	}
	if ok, after := l.rates.Take(node); !ok {
		return 0, quota.Refusal("logs.batchesPerSecond", after)
	}
	if len(body) > applog.MaxBatch {
		return 0, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("a batch is at most %d bytes", applog.MaxBatch))
	}
	o := Origin{Node: string(node), Namespace: namespace, App: name}
	if err := json.Unmarshal(body, &o.Batch); err != nil {
		return 0, apierrors.NewBadRequest("the batch is no JSON: " + err.Error())
	}
	if err := o.Check(); err != nil {
		return 0, apierrors.NewBadRequest(err.Error())
	}
	if !l.wanted(namespace, name, o.AppUID) {
		return 0, apierrors.NewForbidden(v1alpha1.Resource(v1alpha1.EdgeApps).GroupResource(), name, errors.New("the application does not ask for its logs"))
	}
	s, done := l.stream(o.Node + "/" + o.Stream())
	defer done()
	s.Lock()
	defer s.Unlock()
	return l.pass(ctx, s, o)
}

// wanted reports whether an application exists and has collectLogs.
func (l *Logs) wanted(namespace, name, uid string) bool {
	o := l.apps.Get(kube.Key{Namespace: namespace, Name: name})
	if o == nil || string(o.UID) != uid {
		return false
	}
	var app struct {
		Spec struct {
			CollectLogs bool `json:"collectLogs"`
		} `json:"spec"`
	}
	return json.Unmarshal(o.Raw, &app) == nil && app.Spec.CollectLogs
}

// pass gives the sink the lines that it does not have yet. The stream is locked.
func (l *Logs) pass(ctx context.Context, s *stream, o Origin) (through int64, err error) {
	all := len(o.Lines)
	for len(o.Lines) > 0 && o.Lines[0].End <= s.through {
		o.Lines = o.Lines[1:]
	}
	if repeated := all - len(o.Lines); repeated > 0 {
		l.repeated.Add(float64(repeated))
		o.Dropped = 0 // was reported with the first of these
	}
	if len(o.Lines) == 0 && o.Dropped == 0 {
		return s.through, nil
	}
	err = l.sink.Write(ctx, o)
	if errors.Is(err, otlp.ErrRefused) { // kept on the device they would hold back all that follows
		klog.FromContext(ctx).Error(err, "Dropped log lines of an application: logs.endpoint refused them", "node", o.Node, "app", o.Namespace+"/"+o.App, "lines", len(o.Lines))
		l.failed.Inc()
		if n := len(o.Lines); n > 0 {
			s.through = o.Lines[n-1].End
		}
		return s.through, nil
	}
	if err != nil {
		l.failed.Inc()
		klog.FromContext(ctx).V(2).Info("Failed to deliver logs to the sink; the device keeps them", "node", o.Node, "app", o.Namespace+"/"+o.App, "err", err)
		return 0, apierrors.NewServiceUnavailable("the sink for logs does not take them: " + err.Error())
	}
	l.lines.Add(float64(len(o.Lines)))
	l.dropped.Add(float64(o.Dropped))
	if n := len(o.Lines); n > 0 {
		s.through = o.Lines[n-1].End
	}
	return s.through, nil
}

// stream finds a container's, and holds it in memory until done is called.
func (l *Logs) stream(key string) (s *stream, done func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s = l.streams[key]; s == nil {
		if len(l.streams) >= maxStreams {
			l.forget()
		}
		s = &stream{}
		l.streams[key] = s
	}
	s.users++
	return s, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		s.users--
		s.used = time.Now()
	}
}

// forget drops the streams that were quiet the longest: all older than the middle of a sample is as
// good, and quick. mu is held.
func (l *Logs) forget() {
	var oldest time.Time
	n := 0
	for _, s := range l.streams { // in no order: a sample
		if n++; n > 64 {
			break
		}
		if oldest.IsZero() || s.used.Before(oldest) {
			oldest = s.used
		}
	}
	limit := oldest.Add(time.Minute)
	for key, s := range l.streams {
		if s.users == 0 && s.used.Before(limit) {
			delete(l.streams, key)
		}
	}
}
