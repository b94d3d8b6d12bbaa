package route

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// metrics are the counters; the gauges are counted from the entries when somebody asks.
type metrics struct {
	repairs, rollbacks prometheus.Counter
	apply              prometheus.Histogram
}

func newMetrics() *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "skerry", Subsystem: "route", Name: name, Help: help})
	}
	return &metrics{
		repairs:   counter("repairs_total", "Routes put back after somebody else had changed or removed them."),
		rollbacks: counter("rollbacks_total", "Routes taken back because the node lost its cloud or its gateway with them."),
		apply: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "skerry", Subsystem: "route", Name: "apply_duration_seconds", Help: "Time to bring the kernel in line, for each batch of changes.",
			Buckets: []float64{0.001, 0.005, 0.02, 0.1, 0.5, 2, 10, 30},
		}),
	}
}

func (m *metrics) applied(since time.Time) { m.apply.Observe(time.Since(since).Seconds()) }

func gauges() map[string]*prometheus.Desc {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("skerry_route_"+name, help, nil, nil)
	}
	return map[string]*prometheus.Desc{
		"desired":   desc("desired", "StaticRoutes that are for this node."),
		"applied":   desc("applied", "StaticRoutes whose route the kernel has."),
		"failed":    desc("failed", "StaticRoutes whose route the kernel should have and has not, or not for good."),
		"drift":     desc("drift", "StaticRoutes whose route somebody else keeps changing or has removed."),
		"conflicts": desc("conflicts", "StaticRoutes that another route stands in the way of."),
	}
}

// Describe implements prometheus.Collector.
func (a *Agent) Describe(ch chan<- *prometheus.Desc) {
	a.metrics.repairs.Describe(ch)
	a.metrics.rollbacks.Describe(ch)
	a.metrics.apply.Describe(ch)
	for _, d := range gauges() {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (a *Agent) Collect(ch chan<- prometheus.Metric) {
	a.metrics.repairs.Collect(ch)
	a.metrics.rollbacks.Collect(ch)
	a.metrics.apply.Collect(ch)
	s := a.Summary()
	for name, value := range map[string]int{
		"desired": s.Desired, "applied": s.Applied, "failed": s.Failed, "drift": s.Drift, "conflicts": s.Conflicts,
	} {
		ch <- prometheus.MustNewConstMetric(gauges()[name], prometheus.GaugeValue, float64(value))
	}
}

// Status is what `edgecore status` shows of the routes.
type Status struct {
	// Waiting is what the agent does not know yet and therefore touches nothing; "" where it works.
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

// statusBox holds the entries for whoever asks. It may be used by many goroutines at once.
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

func (b *statusBox) wait(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting = ""
	if err != nil {
		b.waiting = err.Error()
	}
}

// Summary is the Status without the list.
func (a *Agent) Summary() Status {
	a.status.mu.Lock()
	defer a.status.mu.Unlock()
	s := Status{Waiting: a.status.waiting, Desired: len(a.status.entries)}
	for _, e := range a.status.entries {
		switch e.Reason {
		case v1alpha1.RouteApplied, v1alpha1.RouteDryRun:
			s.Applied++
			continue
		case v1alpha1.RouteDegraded, v1alpha1.RouteDrifted:
			s.Drift++
		case v1alpha1.RouteConflict:
			s.Conflicts++
		}
		s.Failed++
	}
	return s
}

// Status is for `edgecore status`.
func (a *Agent) Status() Status {
	s := a.Summary()
	a.status.mu.Lock()
	defer a.status.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(a.status.entries)) {
		s.Routes = append(s.Routes, RouteStatus{name, a.status.entries[name]})
	}
	slices.SortStableFunc(s.Routes, func(x, y RouteStatus) int { return cmp.Compare(rank(x.Reason), rank(y.Reason)) }) // troubles first
	return s
}

func rank(reason string) int {
	if fine(reason) {
		return 1
	}
	return 0
}
