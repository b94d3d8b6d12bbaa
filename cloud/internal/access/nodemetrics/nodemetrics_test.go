package nodemetrics_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/cloud/internal/access/nodemetrics"
	"github.com/skerry-io/skerry/cloud/internal/core/cloudhub"
	"github.com/skerry-io/skerry/cloud/internal/core/cloudhub/hubtest"
	"github.com/skerry-io/skerry/cloud/internal/core/otlp"
	series "github.com/skerry-io/skerry/common/nodemetrics"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// device is a node's session, which keeps its answers.
type device struct {
	hubtest.Session
	answers chan *topicpb.NodeMetricsResult
	mux     *message.Mux
}

func (d *device) Send(_ context.Context, m message.Message) error {
	r, err := topic.NodeMetricsResult.Content(m)
	if err == nil {
		d.answers <- r
	}
	return err
}

// open opens a session, until end is called.
func open(t *testing.T, m *nodemetrics.Metrics, node string) (d *device, end func()) {
	t.Helper()
	d = &device{Session: hubtest.Session{Name: types.NodeName(node)}, answers: make(chan *topicpb.NodeMetricsResult, 4), mux: message.NewMux()}
	service := m.Attach(d, d.mux)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- cloudhub.Serve(ctx, service) }()
	return d, func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func (d *device) post(t *testing.T, q *topicpb.NodeMetrics) {
	t.Helper()
	if err := d.mux.Dispatch(t.Context(), topic.NodeMetrics.New(message.Resource{}, q)); err != nil {
		t.Fatal(err)
	}
}

func (d *device) ask(t *testing.T, q *topicpb.NodeMetrics) *topicpb.NodeMetricsResult {
	t.Helper()
	d.post(t, q)
	return <-d.answers
}

// sink keeps the times of samples.
type sink struct {
	mu    sync.Mutex
	fails error
	hold  chan struct{}
	times []int64
}

func (s *sink) Write(_ context.Context, b nodemetrics.Batch) error {
	if s.hold != nil {
		<-s.hold
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fails != nil {
		return s.fails
	}
	for _, sample := range b.Samples {
		s.times = append(s.times, sample.Unix)
	}
	return nil
}

// samples are of the numbers from first on, of which each is its time.
func samples(stream, first uint64, n int) *topicpb.NodeMetrics {
	var all []series.Sample
	for i := range n {
		at := int64(first) + int64(i)
		all = append(all, series.Sample{Unix: at, Values: map[uint32]int64{series.LinkUp: 1, series.PodsRunning: at, series.LinkDials: 7, series.Backlog: 3, 9999: 1}})
	}
	return series.Pack(stream, first, all)
}

// Samples reach the sink once, however often they are sent; those that it does not take stay on the
// device, and those that it will never take hold back no others.
func TestMetrics_PassesSamplesOnOnce(t *testing.T) {
	to := &sink{}
	m := nodemetrics.New(nodemetrics.Config{Sink: to, MaxNodes: 10})
	d, end := open(t, m, "edge1")
	for i, c := range []struct {
		q       *topicpb.NodeMetrics
		fails   error
		through uint64
		retry   bool
		have    []int64
	}{
		{q: samples(1, 1, 3), through: 3, have: []int64{1, 2, 3}},
		{q: samples(1, 1, 3), through: 3},
		{q: samples(1, 2, 3), through: 4, have: []int64{4}},
		{q: samples(1, 5, 2), fails: errors.New("down"), through: 4, retry: true},
		{q: samples(1, 5, 2), through: 6, have: []int64{5, 6}},
		{q: samples(2, 1, 1), through: 1, have: []int64{1}}, // edgecore started again
		{q: samples(1, 6, 1), through: 6},
		{q: samples(2, 2, 1), fails: otlp.ErrRefused, through: 2},
		{q: samples(2, 3, 1), through: 3, have: []int64{3}},
		{q: &topicpb.NodeMetrics{Stream: 3, First: 1, Unix: -5}, through: 1<<64 - 1},
	} {
		to.fails, to.times = c.fails, nil
		answer := d.ask(t, c.q)
		if answer.GetStream() != c.q.GetStream() || answer.GetThrough() != c.through || answer.GetRetrySeconds() > 0 != c.retry {
			t.Errorf("%d: %v", i, answer)
		}
		if diff := cmp.Diff(c.have, to.times); diff != "" {
			t.Errorf("%d: %s", i, diff)
		}
	}
	if d.Charged() == 0 {
		t.Error("samples above the bounds cost nothing")
	}
	end()
	d, end = open(t, m, "edge1") // the next link
	defer end()
	to.times = nil
	if answer := d.ask(t, samples(2, 2, 3)); answer.GetThrough() != 4 || !cmp.Equal(to.times, []int64{4}) {
		t.Errorf("%v, %v", answer, to.times)
	}
}

// A device that does not wait for its answer gets one answer, and pays.
func TestMetrics_TakesOneMessageAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := &sink{hold: make(chan struct{})}
		d, end := open(t, nodemetrics.New(nodemetrics.Config{Sink: to}), "edge1")
		for first := range uint64(50) {
			d.post(t, samples(1, first+1, 1))
		}
		close(to.hold)
		if answer := <-d.answers; answer.GetThrough() != 1 {
			t.Error(answer)
		}
		synctest.Wait()
		if len(d.answers) > 0 || len(to.times) != 1 || d.Charged() == 0 {
			t.Errorf("%d more answers, %v written, %v charged", len(d.answers), to.times, d.Charged())
		}
		end()
	})
}

// /metrics has the newest sample of each linked node, up to the bound.
func TestMetrics_ServesTheNewestOfLinkedNodes(t *testing.T) {
	m := nodemetrics.New(nodemetrics.Config{MaxNodes: 2})
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(m)
	var ends []func()
	for _, node := range []string{"edge1", "edge2", "edge3"} {
		d, end := open(t, m, node)
		ends = append(ends, end)
		d.ask(t, samples(1, 1, 3))
		d.ask(t, samples(1, 1, 1)) // again, and older
	}
	shown := func() map[string]float64 {
		t.Helper()
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]float64{}
		for _, f := range families {
			for _, one := range f.GetMetric() {
				name := f.GetName()
				for _, l := range one.GetLabel() {
					name += " " + l.GetValue()
				}
				all[name] = one.GetGauge().GetValue() + one.GetCounter().GetValue()
			}
		}
		return all
	}
	want := map[string]float64{
		"skerry_nodemetrics_samples_total": 9, "skerry_nodemetrics_repeated_total": 3, "skerry_nodemetrics_lost_total": 0, "skerry_nodemetrics_failures_total": 0,
	}
	for _, node := range []string{" edge1", " edge2"} {
		want["skerry_node_sample_timestamp_seconds"+node], want["skerry_node_link_up"+node] = 3, 1
		want["skerry_node_pods"+node+" Running"], want["skerry_node_link_dials_total"+node] = 3, 7
	}
	if diff := cmp.Diff(want, shown()); diff != "" {
		t.Error(diff)
	}
	ends[0]()
	after := shown()
	if _, ok := after["skerry_node_link_up edge1"]; ok || after["skerry_node_link_up edge3"] != 1 {
		t.Error(after)
	}
	ends[1]()
	ends[2]()
}

// OTLP's points have the samples' own times.
func TestOTLP(t *testing.T) {
	var got struct {
		ResourceMetrics []struct {
			ScopeMetrics []struct {
				Metrics []struct {
					Name  string
					Gauge struct{ DataPoints []point }
					Sum   struct {
						DataPoints             []point
						AggregationTemporality int
						IsMonotonic            bool
					}
				}
			}
		}
	}
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if err := json.NewDecoder(r.Body).Decode(&got); err != nil {
			t.Error(err)
		}
	}))
	defer receiver.Close()
	client, err := otlp.New(otlp.Config{Field: "metrics", Endpoint: receiver.URL})
	if err != nil {
		t.Fatal(err)
	}
	all, err := series.Unpack(samples(1, 100, 2))
	if err != nil {
		t.Fatal(err)
	}
	if err := nodemetrics.NewOTLP(client).Write(t.Context(), nodemetrics.Batch{Node: "edge1", Samples: all}); err != nil {
		t.Fatal(err)
	}
	lines := []string{}
	for _, m := range got.ResourceMetrics[0].ScopeMetrics[0].Metrics {
		points := append(m.Gauge.DataPoints, m.Sum.DataPoints...)
		if (len(m.Sum.DataPoints) > 0) != (m.Sum.IsMonotonic && m.Sum.AggregationTemporality == 2) {
			t.Errorf("%+v", m)
		}
		for _, p := range points {
			line := []string{m.Name, p.TimeUnixNano, p.AsDouble.String()}
			for _, a := range p.Attributes {
				line = append(line, a.Key+"="+a.Value.StringValue)
			}
			lines = append(lines, strings.Join(line, " "))
		}
	}
	want := []string{
		"skerry_node_link_up 100000000000 1 node=edge1", "skerry_node_link_up 101000000000 1 node=edge1",
		"skerry_node_link_dials_total 100000000000 7 node=edge1", "skerry_node_link_dials_total 101000000000 7 node=edge1",
		"skerry_node_backlog_writes 100000000000 3 node=edge1", "skerry_node_backlog_writes 101000000000 3 node=edge1",
		"skerry_node_pods 100000000000 100 node=edge1 phase=Running", "skerry_node_pods 101000000000 101 node=edge1 phase=Running",
	}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Error(diff)
	}
}

type point struct {
	TimeUnixNano string
	AsDouble     json.Number
	Attributes   []struct {
		Key   string
		Value struct{ StringValue string }
	}
}
