package publish

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics count the objects that went down, over all sessions.
type Metrics struct {
	sessions, states, changes, bytes, equal, followed, later, compared, confirmed, full, refused atomic.Int64
	limited                                                                                      [quotaKinds]atomic.Int64 // by quota
	descriptions                                                                                 []metric
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
	counter("resumes_equal_total", "Resumed resources whose objects at the edge were current.", &m.equal)
	counter("resumes_followed_total", "Resumed resources with an earlier set at the edge: only later changes were sent.", &m.followed)
	counter("resumes_later_total", "Resumed resources for which objects newer than all at the edge were sent.", &m.later)
	counter("resumes_compared_total", "Resumed resources for which the edge had to list its objects.", &m.compared)
	counter("resumes_confirmed_total", "Resumed resources with objects at the edge that were newer than cloudcore's informer, or missing in it, which had to catch up first.", &m.confirmed)
	counter("resumes_full_total", "Resources sent in full to an edge without objects.", &m.full)
	for e := fits + 1; e < quotaKinds; e++ {
		desc := prometheus.NewDesc("skerry_publish_over_quota_total", "Interests refused with 429, by quota.", nil, prometheus.Labels{"quota": e.String()})
		m.descriptions = append(m.descriptions, metric{desc, prometheus.CounterValue, &m.limited[e]})
	}
	counter("refusals_total", "Interests refused.", &m.refused)
	return m
}

// resumed counts how an edge that came back got its missing objects.
func (m *Metrics) resumed(how resume) {
	switch how {
	case resumeEqual:
		m.equal.Add(1)
	case resumeFull:
		m.full.Add(1)
	case resumeFollowed:
		m.followed.Add(1)
	case resumeLater:
		m.later.Add(1)
	case resumeCompared:
		m.compared.Add(1)
	case resumeConfirmed:
		m.confirmed.Add(1)
	}
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
