package route

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// metrics are the counters; the gauges are counted from the entries when they are read.
type metrics struct {
	repairs, rollbacks prometheus.Counter
	apply              prometheus.Histogram
}

func newMetrics() *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "skerry", Subsystem: "route", Name: name, Help: help})
	}
	return &metrics{
		repairs:   counter("repairs_total", "Routes restored after another process had changed or removed them."),
		rollbacks: counter("rollbacks_total", "Routes rolled back because the node lost the cloud or its gateway."),
		apply: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "skerry", Subsystem: "route", Name: "apply_duration_seconds", Help: "Time to apply a batch of changes to the kernel.",
			Buckets: []float64{0.001, 0.005, 0.02, 0.1, 0.5, 2, 10, 30},
		}),
	}
}

func (m *metrics) applied(took time.Duration) { m.apply.Observe(took.Seconds()) }

func gauges() map[string]*prometheus.Desc {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("skerry_route_"+name, help, nil, nil)
	}
	return map[string]*prometheus.Desc{
		"desired":   desc("desired", "StaticRoutes that select this node."),
		"applied":   desc("applied", "StaticRoutes whose route the kernel has."),
		"failed":    desc("failed", "StaticRoutes whose route is missing in the kernel or temporary."),
		"drift":     desc("drift", "StaticRoutes whose route another process repeatedly changes or has removed."),
		"conflicts": desc("conflicts", "StaticRoutes that conflict with another route."),
	}
}

// Status is the part of `edgecore status` for the routes.
type Status struct {
	// Waiting names the missing information without which the agent does not act; "" if it works.
	Waiting   string        `json:"waiting,omitempty"`
	Desired   int           `json:"desired"`
	Applied   int           `json:"applied"`
	Failed    int           `json:"failed"`
	Drift     int           `json:"drift"`
	Conflicts int           `json:"conflicts"`
	Routes    []RouteStatus `json:"routes,omitempty"`
}

// RouteStatus is one StaticRoute on this node.
type RouteStatus struct {
	StaticRoute string `json:"staticRoute"`
	v1alpha1.StaticRouteNode
}

// statusBox holds the entries for `edgecore status` and the metrics, which are other goroutines.
type statusBox struct {
	mu      sync.Mutex
	entries map[string]v1alpha1.StaticRouteNode
	waiting string
}

func (b *statusBox) set(name string, e v1alpha1.StaticRouteNode) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.entries == nil {
		b.entries = map[string]v1alpha1.StaticRouteNode{}
	}
	b.entries[name] = e
}

func (b *statusBox) remove(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.entries, name)
}

func (b *statusBox) wait(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting = text
}

func order(reason string) int {
	if fine(reason) {
		return 1
	}
	return 0
}
