// Package route sets this node's kernel routes according to StaticRoutes.
//
// It owns the decisions: which StaticRoute is for this node, which of two wins, which addresses
// must not be covered, when and how fast a route is repaired, and when it is withdrawn because it
// cut the node off. It refuses to act before it knows the desired state, from the store if need be:
// missing objects never remove a route. Kernel access is in edge/internal/kernel/network/netroute;
// the objects are read from the edge API and are available without a cloud.
//
// How it works: pass.go has one pass, in four stages that hand a value on: observe reads the
// changes and the kernel (an observation), plan decides (a decision), apply makes the changes under
// the safety net, which withdraws routes that cut the node off (an outcome), and report sends the
// result. plan.go is pure: from the state of keys of the kernel to their next state and the
// changes, without a clock or a lock. Its input comes from claim (one StaticRoute), facts and guard
// (the node's own state), kernelview (the kernel state) and records (state that survives restarts);
// write makes one change in the kernel. All of it runs on one goroutine, that of Sync in
// edge/internal/core/agent; only changed keys and objects are processed, so that one change costs
// the same on a node with two thousand routes.
//
// It is above 2,500 lines because the plan, its execution, the safety net and the reports work on
// the state of one key, which would be an interface of some forty names between two packages.
package route

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/agent"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netroute"
)

// Name is the module's address on the bus.
const Name message.Name = "route"

// readyAfter is how long the next module waits for the routes if the desired state is not in the
// store yet.
const readyAfter = 2 * time.Second

// Agent is the module.
type Agent struct {
	*agent.Module
	config  Config
	metrics *metrics
	status  statusBox
}

// New makes the agent.
func New(config Config) *Agent {
	config.defaults()
	a := &Agent{config: config, metrics: newMetrics()}
	a.Module = agent.New(agent.Config{
		Name: Name, NodeName: config.NodeName, API: config.API, Reporter: config.Reporter, Events: config.Events,
		Start: a.start, ReadyAfter: readyAfter,
	})
	return a
}

func (a *Agent) start(ctx context.Context, kit *agent.Run) (agent.Sync, error) {
	r := &run{
		config: &a.config, kit: kit, metrics: a.metrics, status: &a.status, claims: map[string]*claim{}, keys: newKeys(),
		dirty: map[string]struct{}{}, all: true, checkAt: time.Now().Add(a.config.FullCheck),
	}
	var err error
	if r.objects, err = agent.Watch(kit, v1alpha1.Resource(v1alpha1.StaticRoutes), &v1alpha1.StaticRoute{}, agent.Selection{}); err != nil {
		return nil, err
	}
	if r.nodes, err = agent.Watch(kit, corev1.SchemeGroupVersion.WithResource("nodes"), &corev1.Node{},
		agent.Selection{Fields: "metadata.name=" + a.config.NodeName}); err != nil {
		return nil, err
	}
	if r.ranges, err = agent.Watch(kit, networkingv1.SchemeGroupVersion.WithResource("servicecidrs"), &networkingv1.ServiceCIDR{},
		agent.Selection{Optional: true}); err != nil { // those of an earlier run are in the store
		return nil, err
	}
	if r.records, err = loadRecords(a.config.State, a.config.BootID); err != nil {
		return nil, err
	}
	for name, one := range r.records.all {
		if !one.Reported {
			continue
		}
		a.status.set(name, one.Entry)
		if err := kit.Reports.Assume(ref(name), one.UID, one.Entry); err != nil {
			return nil, err
		}
	}
	kernel, closeKernel, err := a.config.Open(ctx)
	if err != nil {
		return nil, err
	}
	r.view = kernelView{kernel: kernel, pause: a.config.ScanPause}
	r.safety = safety{
		prober:    prober{kernel: kernel, cloud: a.probes(kit), timeout: a.config.ProbeTimeout, mute: map[netip.Addr]time.Time{}},
		probation: a.config.Probation, routes: r,
	}
	kit.Go(func(ctx context.Context) error { return r.watch(ctx) })
	kit.Cleanup(closeKernel)
	return r.sync, nil
}

// probes are the questions to the cloud: the configured ones, and one over the link, end to end.
func (a *Agent) probes(kit *agent.Run) []Probe {
	all := slices.Clone(a.config.Probes)
	if a.config.Hub == "" {
		return all
	}
	over := Probe{"the cloud", func(ctx context.Context) error {
		q := &topicpb.APIRequest{Method: http.MethodGet, Path: "/version", Accept: runtime.ContentTypeJSON} // any answer will do
		if end, ok := ctx.Deadline(); ok {
			q.TimeoutMillis = time.Until(end).Milliseconds()
		}
		_, err := kit.Ask(ctx, a.config.Hub, topic.APIRequest.New(message.Resource{}, q))
		return err
	}}
	return append([]Probe{over}, all...)
}

// watch follows the kernel; when events were lost, it begins again, and everything is read.
func (r *run) watch(ctx context.Context) error {
	for {
		err := r.view.kernel.Watch(ctx, func() {
			r.events.start()
			r.kit.Wake()
		}, func(e netroute.Event) {
			r.events.add(e)
			r.kit.Wake()
		})
		if ctx.Err() != nil {
			return nil
		}
		if !errors.Is(err, netroute.ErrLost) {
			return fmt.Errorf("following the kernel's routes: %w", err)
		}
		klog.FromContext(ctx).V(1).Info("Lost kernel events, reading all routes again", "err", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(r.config.ScanPause):
		}
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

// Summary is the Status without the list.
func (a *Agent) Summary() Status {
	a.status.mu.Lock()
	defer a.status.mu.Unlock()
	s := Status{Waiting: a.State().Waiting, Desired: len(a.status.entries)}
	if s.Waiting == "" {
		s.Waiting = a.status.waiting
	}
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
	slices.SortStableFunc(s.Routes, func(x, y RouteStatus) int { return cmp.Compare(order(x.Reason), order(y.Reason)) }) // troubles first
	return s
}
