package vip

import (
	"cmp"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// Status is the device's view, for `edgecore status`.
type Status struct {
	DataPlane   string    `json:"dataPlane"`
	Maintenance bool      `json:"maintenance"`
	Draining    bool      `json:"draining,omitempty"` // handed over for a drain
	Problem     string    `json:"problem,omitempty"`
	VIPs        []Address `json:"vips"`
}

// Address is one virtual IP from the node's eye.
type Address struct {
	Address string                       `json:"address"`
	Pool    string                       `json:"pool"`
	Service string                       `json:"service"` // namespace/name
	Self    v1alpha1.VirtualIPNodeStatus `json:"self"`
}

// Status returns the agent's status.
func (a *Agent) Status() Status {
	problem := a.State().Problem
	a.mu.Lock()
	defer a.mu.Unlock()
	s := Status{DataPlane: a.cfg.Plane.Name(), Problem: problem, Maintenance: a.memory.Maintenance, Draining: a.memory.Draining, VIPs: []Address{}}
	for _, e := range a.entries {
		s.VIPs = append(s.VIPs, Address{Address: e.address, Pool: e.pool, Service: e.service.Namespace + "/" + e.service.Name, Self: e.entry})
	}
	slices.SortFunc(s.VIPs, func(a, b Address) int { return cmp.Compare(a.Address, b.Address) })
	return s
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("skerry_vip_"+name, help, labels, nil)
}

// Describe implements prometheus.Collector.
func (a *Agent) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(a, ch) }

// Collect implements prometheus.Collector.
func (a *Agent) Collect(ch chan<- prometheus.Metric) {
	kit := a.State()
	a.mu.Lock()
	defer a.mu.Unlock()
	state := desc("state", "1 for the state that this node is in for the address.", "address", "service", "state")
	endpoints := desc("ready_endpoints", "Ready pods of the address on this node.", "address", "service")
	for _, e := range a.entries {
		service := e.service.Namespace + "/" + e.service.Name
		ch <- prometheus.MustNewConstMetric(state, prometheus.GaugeValue, 1, e.address, service, string(e.entry.State))
		ch <- prometheus.MustNewConstMetric(endpoints, prometheus.GaugeValue, float64(e.entry.ReadyEndpoints), e.address, service)
	}
	duplicates := 0
	for _, e := range a.entries {
		if e.entry.DuplicateOf != "" {
			duplicates++
		}
	}
	ch <- prometheus.MustNewConstMetric(desc("duplicate_addresses", "Virtual IPs that this node does not claim because another host on the LAN has them."),
		prometheus.GaugeValue, float64(duplicates))
	transitions := desc("transitions_total", "Transitions of addresses to a state on this node.", "state")
	for s, n := range a.transitions {
		ch <- prometheus.MustNewConstMetric(transitions, prometheus.CounterValue, float64(n), s)
	}
	count := func(name, help string, n uint64) {
		ch <- prometheus.MustNewConstMetric(desc(name, help), prometheus.CounterValue, float64(n))
	}
	count("syncs_total", "Synchronizations of virtual IPs with the kernel and keepalived.", kit.Syncs)
	count("sync_failures_total", "Synchronizations that failed in part.", kit.Failures)
	count("keepalived_restarts_total", "Restarts of keepalived.", a.cfg.Elector.Restarts())
}
