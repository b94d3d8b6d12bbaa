package app

import (
	"context"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"

	"github.com/skerry-io/skerry/common/nodemetrics"
	"github.com/skerry-io/skerry/edge/internal/agents/drain"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
	edgesamples "github.com/skerry-io/skerry/edge/internal/optional/nodemetrics"
	"github.com/skerry-io/skerry/edge/internal/pods/podhealth"
	edgeconfig "github.com/skerry-io/skerry/edge/internal/setup/config"
)

// samplesKept is how long samples wait for a link.
const samplesKept = 24 * time.Hour

// samplesFile has the samples that the cloud has not taken.
func samplesFile(cfg *edgeconfig.Config) string { return filepath.Join(cfg.DataDir, "nodemetrics") }

func newNodeMetrics(b *base, core *coreWing, operations *drain.Agent, k *kubelet, u *uplink) *edgesamples.Agent {
	c := b.config.Modules.NodeMetrics
	s := &samples{base: b, meta: core.meta, operations: operations, kubelet: k, uplink: u}
	return edgesamples.New(edgesamples.Config{
		Read: s.read, Path: samplesFile(b.config), Interval: c.Interval.Duration, SendInterval: c.SendInterval.Duration, Keep: samplesKept,
	})
}

// samples are the sources of the device's metrics.
type samples struct {
	*base
	meta       *metamanager.Manager
	operations *drain.Agent // nil where modules.drain is switched off
	kubelet    *kubelet
	uplink     *uplink
	reported   edgesamples.Increase // of dropped events; owned by the goroutine that samples
}

// read reads the metrics of the device as they are now.
func (s *samples) read(ctx context.Context) map[uint32]float64 {
	values := map[uint32]float64{}
	edgesamples.Machine(s.config.DataDir, values)
	s.linkSample(values)
	values[nodemetrics.CertificateEnd] = float64(s.identity.Status().NotAfter.Unix())
	values[nodemetrics.StoreDamaged] = number(s.store.SetAside() != "")
	values[nodemetrics.KubeletAlive] = number(s.meta.KubeletAlive())
	if s.operations != nil {
		values[nodemetrics.Operations] = float64(drain.Unfinished(s.operations.Status()))
	}
	ctx, cancel := context.WithTimeout(ctx, podsTimeout)
	defer cancel()
	if s.kubelet.module != nil {
		values[nodemetrics.RuntimeReady] = number(s.kubelet.runtimeProblem(ctx) == nil)
	}
	pods, problems := podhealth.Read(ctx, s.meta, s.node, time.Now())
	if pods == nil {
		return values
	}
	values[nodemetrics.PodsPending], values[nodemetrics.PodsRunning] = float64(pods.Phases[corev1.PodPending]+pods.Phases[""]), float64(pods.Phases[corev1.PodRunning])
	values[nodemetrics.PodsSucceeded], values[nodemetrics.PodsFailed] = float64(pods.Phases[corev1.PodSucceeded]), float64(pods.Phases[corev1.PodFailed])
	values[nodemetrics.PodsNotRunning], values[nodemetrics.ContainerRestarts] = float64(len(pods.NotRunning)), float64(pods.Restarts)
	values[nodemetrics.ConditionProblems] = float64(len(problems))
	return values
}

// linkSample reads the counters of the link and of the outbox.
func (s *samples) linkSample(values map[uint32]float64) {
	now := time.Now()
	backlog, age := s.meta.Backlog(now)
	values[nodemetrics.Backlog], values[nodemetrics.BacklogOldest] = float64(backlog), 0
	if backlog > 0 {
		values[nodemetrics.BacklogOldest] = float64(now.Add(-age).Unix())
	}
	out := s.meta.Status().Outbox
	// A link reports dropped events within seconds, before the next sample is sent.
	values[nodemetrics.EventsDropped] = float64(out.Dropped) + s.reported.Sample(float64(out.Reported))
	values[nodemetrics.WritesRefused] = float64(out.Refused)
	link := s.uplink.hub.Status()
	values[nodemetrics.LinkUp] = number(link.Linked)
	if !link.Since.IsZero() {
		values[nodemetrics.ClockOffset] = -link.ClockSkew.Seconds()
	}
	counted := sums(s.uplink.hub)
	for id, name := range map[uint32]string{
		nodemetrics.LinkConnects: "skerry_edgehub_connects_total", nodemetrics.LinkLosses: "skerry_edgehub_losses_total",
		nodemetrics.LinkDials: "skerry_edgehub_dials_total", nodemetrics.LinkDropped: "skerry_edgehub_dropped_total",
	} {
		values[id] = counted[name]
	}
}

func number(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// sums adds up the counters of a collector by their names.
func sums(c prometheus.Collector) map[string]float64 {
	registry := prometheus.NewRegistry()
	if registry.Register(c) != nil {
		return nil
	}
	families, err := registry.Gather()
	if err != nil {
		return nil
	}
	all := map[string]float64{}
	for _, f := range families {
		if f.GetType() != dto.MetricType_COUNTER {
			continue
		}
		for _, m := range f.GetMetric() {
			all[f.GetName()] += m.GetCounter().GetValue()
		}
	}
	return all
}
