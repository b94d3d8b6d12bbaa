package relay

import (
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/beehive/message"
)

// Metrics counts the relay's work, over all sessions.
type Metrics struct {
	sessions, renewals, renewalFailures, requests, overload, fenceReads, conflicts atomic.Int64

	mu      sync.Mutex
	results map[result]int64
	quotas  map[string]int64 // refusals, by quota

	sessionsDesc, renewalsDesc, failuresDesc, requestsDesc, overloadDesc, resultsDesc, fenceDesc, conflictsDesc, quotaDesc *prometheus.Desc
}

type result struct {
	kind message.Kind
	end  string
	// reason is Kubernetes' reason of a refusal, of those that it defines.
	reason metav1.StatusReason
}

func newMetrics() *Metrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("skerry_relay_"+name, help, labels, nil)
	}
	return &Metrics{
		results:       map[result]int64{},
		quotas:        map[string]int64{},
		quotaDesc:     desc("over_quota_total", "Writes and requests rejected with 429 because the node exceeded a quota.", "quota"),
		sessionsDesc:  desc("sessions", "Sessions that are served."),
		renewalsDesc:  desc("lease_renewals_total", "Leases renewed as nodes."),
		failuresDesc:  desc("lease_renewal_failures_total", "Attempts to renew a Lease that failed."),
		requestsDesc:  desc("requests_total", "Requests forwarded to kube-apiserver, as nodes or with a pod's token."),
		overloadDesc:  desc("requests_refused_total", "Requests rejected with 429 because the node had too many in flight."),
		fenceDesc:     desc("fence_reads_total", "Writes that first had to read their object and the node's Lease."),
		conflictsDesc: desc("conflicts_total", "Writes that met a conflict; they were retried unless a newer session had written the object."),
		resultsDesc:   desc("writes_total", "Completed writes of edges, by topic, result, and reason of a rejection.", "topic", "end", "reason"),
	}
}

// quota counts a refusal; names are those of quota.go.
func (m *Metrics) quota(name string) {
	m.mu.Lock()
	m.quotas[name]++
	m.mu.Unlock()
}

func (m *Metrics) accepted(kind message.Kind) { m.count(result{kind: kind, end: "accepted"}) }

func (m *Metrics) refused(kind message.Kind, reason metav1.StatusReason) {
	switch reason {
	case metav1.StatusReasonNotFound, metav1.StatusReasonConflict, metav1.StatusReasonForbidden, metav1.StatusReasonInvalid, metav1.StatusReasonBadRequest,
		metav1.StatusReasonRequestEntityTooLarge, metav1.StatusReasonMethodNotAllowed, metav1.StatusReasonUnsupportedMediaType:
	default:
		reason = "Other" // a webhook's reason is arbitrary: labels are bounded
	}
	m.count(result{kind, "refused", reason})
}

func (m *Metrics) count(r result) {
	m.mu.Lock()
	m.results[r]++
	m.mu.Unlock()
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.sessionsDesc, m.renewalsDesc, m.failuresDesc, m.requestsDesc, m.overloadDesc, m.resultsDesc, m.fenceDesc, m.conflictsDesc, m.quotaDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(m.sessionsDesc, prometheus.GaugeValue, float64(m.sessions.Load()))
	ch <- prometheus.MustNewConstMetric(m.renewalsDesc, prometheus.CounterValue, float64(m.renewals.Load()))
	ch <- prometheus.MustNewConstMetric(m.failuresDesc, prometheus.CounterValue, float64(m.renewalFailures.Load()))
	ch <- prometheus.MustNewConstMetric(m.requestsDesc, prometheus.CounterValue, float64(m.requests.Load()))
	ch <- prometheus.MustNewConstMetric(m.overloadDesc, prometheus.CounterValue, float64(m.overload.Load()))
	ch <- prometheus.MustNewConstMetric(m.fenceDesc, prometheus.CounterValue, float64(m.fenceReads.Load()))
	ch <- prometheus.MustNewConstMetric(m.conflictsDesc, prometheus.CounterValue, float64(m.conflicts.Load()))
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, n := range m.quotas {
		ch <- prometheus.MustNewConstMetric(m.quotaDesc, prometheus.CounterValue, float64(n), name)
	}
	for r, n := range m.results {
		ch <- prometheus.MustNewConstMetric(m.resultsDesc, prometheus.CounterValue, float64(n), string(r.kind), r.end, string(r.reason))
	}
}
