package publish

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics counts what went down, over all sessions.
type Metrics struct {
	sessions, states, changes, bytes, equal, followed, later, compared, full, refused atomic.Int64
	descriptions                                                                      []metric
}

type metric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value *atomic.Int64
}

func newMetrics() *Metrics {
	m := &Metrics{}
	counter := func(name, help string, v *atomic.Int64) {
		m.descriptions = append(m.descriptions, metric{prometheus.NewDesc("skerry_publish_"+name, help, nil, nil), prometheus.CounterValue, v})
	}
	m.descriptions = append(m.descriptions, metric{
		prometheus.NewDesc("skerry_publish_sessions", "Sessions that are served.", nil, nil), prometheus.GaugeValue, &m.sessions,
	})
	counter("states_total", "State messages sent.", &m.states)
	counter("changes_total", "Objects and deletions sent.", &m.changes)
	counter("object_bytes_total", "Bytes of objects sent, before compression.", &m.bytes)
	counter("resumes_equal_total", "Resources of which an edge held exactly the right objects when it came back.", &m.equal)
	counter("resumes_followed_total", "Resources of which an edge held what was right some time ago: what has changed since was sent.", &m.followed)
	counter("resumes_later_total", "Resources of which an edge was sent what is newer than all that it held.", &m.later)
	counter("resumes_compared_total", "Resources of which an inventory had to be asked for.", &m.compared)
	counter("resumes_full_total", "Resources that were sent to an edge that held none.", &m.full)
	counter("refusals_total", "Interests refused.", &m.refused)
	return m
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range m.descriptions {
		ch <- d.desc
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	for _, d := range m.descriptions {
		ch <- prometheus.MustNewConstMetric(d.desc, d.kind, float64(d.value.Load()))
	}
}
