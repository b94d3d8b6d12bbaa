package edgeapi

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// Metrics counts the API's requests. It is a prometheus.Collector.
type Metrics struct {
	requests *prometheus.CounterVec
	watches  *prometheus.GaugeVec
	overload prometheus.Counter
}

func newMetrics() *Metrics {
	return &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "skerry_edgeapi_requests_total", Help: "Requests answered, watches when they end, by client (kubelet, edgecore, device, pod), verb and code.",
		}, []string{"client", "verb", "code"}),
		watches: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "skerry_edgeapi_watches", Help: "Open watches, by client.",
		}, []string{"client"}),
		overload: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "skerry_edgeapi_refused_total", Help: "Requests rejected with 429 because too many were open.",
		}),
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	m.requests.Describe(ch)
	m.watches.Describe(ch)
	m.overload.Describe(ch)
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	m.requests.Collect(ch)
	m.watches.Collect(ch)
	m.overload.Collect(ch)
}

// begin counts a request; end must be called with the response.
func (m *Metrics) begin(who Identity, info *request.RequestInfo) (end func(*response)) {
	client, verb := "edgecore", "other"
	switch {
	case who.Kubelet:
		client = "kubelet"
	case who.Device:
		client = "device"
	case who.Token != "":
		client = "pod"
	}
	switch info.Verb { // a client can make any word a method
	case "get", "list", "watch", "create", "update", "patch", "delete", "deletecollection":
		verb = info.Verb
	}
	if isWatch(info) {
		m.watches.WithLabelValues(client).Inc()
	}
	return func(r *response) {
		if isWatch(info) {
			m.watches.WithLabelValues(client).Dec()
		}
		code := "none" // cancelled, or closed without a response
		if r.begun {
			code = strconv.Itoa(r.code)
		}
		m.requests.WithLabelValues(client, verb, code).Inc()
	}
}
