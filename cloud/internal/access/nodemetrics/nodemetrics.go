// Package nodemetrics takes samples of devices' metrics, passes them to a sink with their own
// times, and serves the newest of each linked node to Prometheus.
//
// It owns up to which sample of each stream the sink has them: a message that a device sends again,
// because an answer was lost, reaches the sink once. After a restart of cloudcore, or by another
// replica, it may reach the sink twice, with the same times and values. It refuses messages above
// the bounds of common/nodemetrics; a device is answered once the sink has its samples.
//
// A session has one message under way, and a goroutine only for that time. Bounds: writers requests
// to the sink at a time; MaxNodes nodes with series; streams of nodes without a link are remembered
// up to remembered, any of them are forgotten first.
package nodemetrics

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/cloud/internal/core/cloudhub"
	"github.com/skerry-io/skerry/cloud/internal/core/otlp"
	"github.com/skerry-io/skerry/common/nodemetrics"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

const (
	writers    = 16    // requests to the sink at a time
	remembered = 20000 // nodes without a link whose streams are remembered
	maxStreams = 8     // of a node: each start of edgecore is one
	// retrySeconds is when a device sends samples again that the sink did not take: its usual
	// interval, as its link is to cost no more while the sink is down.
	retrySeconds = 300
	// perViolation is the charge for a message out of turn, or above the bounds.
	perViolation = time.Second
)

// Batch is samples of one node, the oldest first.
type Batch struct {
	Node    string
	Samples []nodemetrics.Sample
}

// Sink takes samples. It returns nil once they are safe there, and otlp.ErrRefused for samples that
// it would refuse again.
type Sink interface {
	Write(ctx context.Context, b Batch) error
}

// Config configures Metrics.
type Config struct {
	Sink     Sink // nil: disabled
	MaxNodes int  // with series of their own
}

// Metrics is a cloudhub.Part and a prometheus.Collector.
type Metrics struct {
	config  Config
	series  map[uint32]nodemetrics.Series
	writing chan struct{}

	samples, repeated, lost, failed prometheus.Counter
	descs                           map[uint32]*prometheus.Desc
	taken                           *prometheus.Desc

	mu    sync.Mutex
	nodes map[types.NodeName]*node
}

// node is the state of one node.
type node struct {
	sessions int // that are open: the next begins before the last has ended
	streams  []stream
	latest   nodemetrics.Sample // Values is nil before the first of this session
}

// stream is one numbering of samples, and up to which the sink has them.
type stream struct{ id, through uint64 }

// New makes Metrics.
func New(config Config) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "skerry", Subsystem: "nodemetrics", Name: name, Help: help})
	}
	m := &Metrics{
		config: config, series: map[uint32]nodemetrics.Series{}, writing: make(chan struct{}, writers), nodes: map[types.NodeName]*node{}, descs: map[uint32]*prometheus.Desc{},
		samples: counter("samples_total", "Samples of nodes' metrics accepted."), repeated: counter("repeated_total", "Repeated samples, which were not forwarded."),
		lost: counter("lost_total", "Samples that nodes dropped at a limit, or that the receiver rejected permanently."), failed: counter("failures_total", "Messages with samples that the receiver did not accept."),
		taken: prometheus.NewDesc("skerry_node_sample_timestamp_seconds", "When the node took the sample that its series are from, in Unix time by its clock.", []string{"node"}, nil),
	}
	for _, s := range nodemetrics.All() {
		m.series[s.ID] = s
		labels := []string{"node"}
		if s.Label != "" {
			labels = append(labels, s.Label)
		}
		m.descs[s.ID] = prometheus.NewDesc(s.Name, s.Help, labels, nil)
	}
	return m
}

// Attach implements cloudhub.Part.
func (m *Metrics) Attach(s cloudhub.Session, mux *message.Mux) cloudhub.Service {
	own := &session{metrics: m, link: s}
	own.loop = cloudhub.NewLoop(own.step)
	message.Handle(mux, topic.NodeMetrics, func(_ context.Context, _ message.Message, q *topicpb.NodeMetrics) error {
		own.mu.Lock()
		busy := own.pending != nil
		if !busy {
			own.pending = q
		}
		own.mu.Unlock()
		if busy {
			s.Charge(perViolation) // the last one has no answer yet
			return nil
		}
		own.loop.Signal()
		return nil
	})
	return own
}

// session takes the samples of one link.
type session struct {
	metrics *Metrics
	link    cloudhub.Session
	loop    *cloudhub.Loop

	mu      sync.Mutex
	pending *topicpb.NodeMetrics
}

// Start implements cloudhub.Service.
func (s *session) Start(ctx context.Context, fail func(error)) {
	s.metrics.enter(s.link.Node())
	s.loop.Start(ctx, fail)
}

// Stop implements cloudhub.Service.
func (s *session) Stop() {
	s.loop.Stop()
	s.metrics.leave(s.link.Node())
}

func (s *session) step(ctx context.Context) error {
	s.mu.Lock()
	q := s.pending
	s.mu.Unlock()
	if q == nil {
		return nil
	}
	answer := s.metrics.take(ctx, s.link, q)
	s.mu.Lock()
	s.pending = nil
	s.mu.Unlock()
	return s.link.Send(ctx, topic.NodeMetricsResult.New(message.Resource{}, answer))
}

// take passes samples on, and returns the answer for the device.
func (m *Metrics) take(ctx context.Context, link cloudhub.Session, q *topicpb.NodeMetrics) *topicpb.NodeMetricsResult {
	answer := &topicpb.NodeMetricsResult{Stream: q.GetStream()}
	log := klog.FromContext(ctx)
	samples, err := nodemetrics.Unpack(q)
	if err != nil {
		// Kept on the device they would hold back all that follows.
		link.Charge(perViolation)
		log.Error(err, "Refused samples of a node's metrics, which are lost: look for an edgecore of another version", "node", link.Node())
		answer.Through = ^uint64(0)
		return answer
	}
	last := q.GetFirst() + uint64(len(samples)) - 1
	through := m.through(link.Node(), q.GetStream())
	fresh := samples
	if through >= q.GetFirst() {
		again := min(through-q.GetFirst()+1, uint64(len(samples)))
		m.repeated.Add(float64(again))
		fresh = samples[again:]
	}
	if len(fresh) > 0 && m.config.Sink != nil {
		err := m.write(ctx, Batch{Node: string(link.Node()), Samples: fresh})
		switch {
		case errors.Is(err, otlp.ErrRefused):
			log.Error(err, "Dropped samples of a node's metrics: metrics.endpoint refused them", "node", link.Node(), "samples", len(fresh))
			m.failed.Inc()
			m.lost.Add(float64(len(fresh)))
		case err != nil:
			log.V(2).Info("Failed to deliver samples of metrics to the sink; the device keeps them", "node", link.Node(), "err", err)
			m.failed.Inc()
			answer.Through, answer.RetrySeconds = through, retrySeconds
			return answer
		}
	}
	m.samples.Add(float64(len(fresh)))
	m.lost.Add(float64(q.GetLost()))
	m.keep(link.Node(), q.GetStream(), last, samples[len(samples)-1])
	answer.Through = max(through, last)
	return answer
}

func (m *Metrics) write(ctx context.Context, b Batch) error {
	select {
	case m.writing <- struct{}{}:
		defer func() { <-m.writing }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return m.config.Sink.Write(ctx, b)
}

func (m *Metrics) enter(name types.NodeName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.nodes[name]
	if n == nil {
		n = &node{}
		m.nodes[name] = n
	}
	n.sessions++
}

func (m *Metrics) leave(name types.NodeName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.nodes[name]
	if n.sessions--; n.sessions == 0 {
		n.latest = nodemetrics.Sample{} // old values must not look like present ones
		if len(n.streams) == 0 {
			delete(m.nodes, name)
		}
	}
	for other, n := range m.nodes { // in no order
		if len(m.nodes) <= remembered {
			return
		}
		if n.sessions == 0 {
			delete(m.nodes, other)
		}
	}
}

// through is the last sample of a stream that the sink has; 0: unknown.
func (m *Metrics) through(name types.NodeName, id uint64) uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := m.nodes[name]; n != nil {
		for _, s := range n.streams {
			if s.id == id {
				return s.through
			}
		}
	}
	return 0
}

// keep notes that the sink has a stream up to through, and the newest sample.
func (m *Metrics) keep(name types.NodeName, id, through uint64, newest nodemetrics.Sample) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.nodes[name]
	if n == nil {
		return
	}
	i := slices.IndexFunc(n.streams, func(s stream) bool { return s.id == id })
	if i < 0 {
		if len(n.streams) >= maxStreams {
			n.streams = n.streams[1:] // the one that came first
		}
		n.streams = append(n.streams, stream{id: id})
		i = len(n.streams) - 1
	}
	if through > n.streams[i].through {
		n.streams[i].through, n.latest = through, newest
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.counters() {
		ch <- c.Desc()
	}
	ch <- m.taken
	for id, d := range m.descs {
		if !m.series[id].Heartbeat {
			ch <- d
		}
	}
}

func (m *Metrics) counters() []prometheus.Counter {
	return []prometheus.Counter{m.samples, m.repeated, m.lost, m.failed}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.counters() {
		ch <- c
	}
	m.mu.Lock()
	latest := map[types.NodeName]nodemetrics.Sample{}
	for name, n := range m.nodes {
		if n.sessions > 0 && n.latest.Values != nil {
			latest[name] = n.latest
		}
	}
	m.mu.Unlock()
	names := slices.Sorted(maps.Keys(latest)) // the same ones each time
	for _, name := range names[:min(len(names), m.config.MaxNodes)] {
		sample := latest[name]
		ch <- prometheus.MustNewConstMetric(m.taken, prometheus.GaugeValue, float64(sample.Unix), string(name))
		for id, value := range sample.Values {
			s, known := m.series[id]
			if !known || s.Heartbeat { // of a newer device, or served by heartbeats
				continue
			}
			kind := prometheus.GaugeValue
			if s.Counter {
				kind = prometheus.CounterValue
			}
			labels := []string{string(name)}
			if s.Label != "" {
				labels = append(labels, s.Value)
			}
			ch <- prometheus.MustNewConstMetric(m.descs[id], kind, float64(value)/s.PerUnit, labels...)
		}
	}
}
