// Package marks keeps the kernel's rules that mark connections from outside to ports that the
// cluster exposes: Services, Ingresses and the Authorized Cluster Endpoint.
//
// It owns the list of exposed ports (Collect, from the objects in the store, with or without a
// link) and the rules that follow from it (Plan); package mangle makes the kernel have them. It
// refuses to act before Services, Ingresses and the cluster's ranges of Services are known, and
// writes texts of objects into rules only as comments. While it is switched off, Clear removes all
// of it from the kernel. Collect and Plan are pure; Status may be called by any goroutine, the
// other methods only by the agent.
package marks

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/core/agent"
	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/mangle"
)

// Name is the module's.
const Name message.Name = "marks"

const (
	// resync is how often the kernel is read although no object changed: others write to
	// the same table.
	resync = 30 * time.Second
	// readyAfter bounds how long the kubelet waits for the rules: a device that has never had a
	// link has no Services.
	readyAfter = 10 * time.Second
)

// Kernel has the rules: *mangle.Driver.
type Kernel interface {
	// Apply makes the kernel have exactly these rules, and reports how many families it changed.
	Apply(ctx context.Context, want mangle.Rules) (changed int, err error)
}

// Config configures the agent.
type Config struct {
	NodeName string
	// API configures a client of the edge API.
	API      *rest.Config
	Reporter agent.Reporter
	Kernel   Kernel
	Settings Settings
	// Resync: zero for the default.
	Resync time.Duration
}

// Agent is the module.
type Agent struct {
	*agent.Module
	config Config

	writes prometheus.Counter

	mu     sync.Mutex
	status Status
}

// Status is the part of `edgecore status`.
type Status struct {
	// Entries are the collected ports, one line each.
	Entries []string `json:"entries"`
	// Rules is how many rules the kernel has for them.
	Rules int `json:"rules"`
	// LeftOut is the number of dropped entries above the bound.
	LeftOut  int      `json:"leftOut,omitempty"`
	Problems []string `json:"problems,omitempty"`
}

// New makes the agent.
func New(c Config) *Agent {
	if c.Resync == 0 {
		c.Resync = resync
	}
	a := &Agent{config: c, writes: prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: "skerry", Subsystem: "marks", Name: "kernel_writes_total", Help: "Transactions that changed the rules of one family.",
	})}
	a.Module = agent.New(agent.Config{
		Name: Name, NodeName: c.NodeName, API: c.API, Reporter: c.Reporter, Start: a.start, ReadyAfter: readyAfter, Resync: c.Resync,
	})
	return a
}

// Clear removes all of ours from the kernel.
func Clear(ctx context.Context, k Kernel) error {
	if _, err := k.Apply(ctx, mangle.Rules{}); err != nil {
		return fmt.Errorf("removing the rules that mark connections: %w", err)
	}
	return nil
}

func (a *Agent) start(_ context.Context, r *agent.Run) (agent.Sync, error) {
	services, err := agent.Watch(r, corev1.SchemeGroupVersion.WithResource("services"), &corev1.Service{}, agent.Selection{})
	if err != nil {
		return nil, err
	}
	ingresses, err := agent.Watch(r, networkingv1.SchemeGroupVersion.WithResource("ingresses"), &networkingv1.Ingress{}, agent.Selection{})
	if err != nil {
		return nil, err
	}
	ranges, err := agent.Watch(r, networkingv1.SchemeGroupVersion.WithResource("servicecidrs"), &networkingv1.ServiceCIDR{}, agent.Selection{})
	if err != nil {
		return nil, err
	}
	collections, err := agent.Watch(r, v1alpha1.Resource(v1alpha1.ServiceCollections), &v1alpha1.ServiceCollection{}, agent.Selection{Optional: true})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (time.Duration, error) {
		c := Collect(Objects{Services: services.List(), Ingresses: ingresses.List(), ServiceRanges: serviceRanges(ranges.List())})
		rules := Plan(&c, a.config.Settings)
		changed, err := a.config.Kernel.Apply(ctx, rules)
		a.writes.Add(float64(changed))
		a.note(&c, rules)
		if err != nil {
			err = fmt.Errorf("marking connections (disable with modules.marks.enable): %w", err)
		}
		return 0, errors.Join(err, report(r, collections, entry(a.config.NodeName, &c, rules, err)))
	}, nil
}

func serviceRanges(all []*networkingv1.ServiceCIDR) (ranges []netip.Prefix) {
	for _, o := range all {
		for _, text := range o.Spec.CIDRs {
			if p, err := netip.ParsePrefix(text); err == nil {
				ranges = append(ranges, p)
			}
		}
	}
	return ranges
}

func (a *Agent) note(c *Collected, r mangle.Rules) {
	s := Status{Entries: c.Entries(), LeftOut: c.LeftOut, Problems: c.Problems, Rules: r.Len()}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.status = s
}

// Status is the present state.
func (a *Agent) Status() Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.status
	s.Entries, s.Problems = slices.Clone(s.Entries), slices.Clone(s.Problems)
	return s
}

// Describe implements prometheus.Collector.
func (a *Agent) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(a, ch) }

// Collect implements prometheus.Collector.
func (a *Agent) Collect(ch chan<- prometheus.Metric) {
	s := a.Status()
	gauge := func(name, help string, n int) {
		ch <- prometheus.MustNewConstMetric(prometheus.NewDesc("skerry_marks_"+name, help, nil, nil), prometheus.GaugeValue, float64(n))
	}
	a.writes.Collect(ch)
	gauge("entries", "Collected ports of Services and paths of Ingresses.", len(s.Entries))
	gauge("entries_left_out", "Ports and paths omitted because there are too many.", s.LeftOut)
	gauge("rules", "Rules in the kernel.", s.Rules)
}
