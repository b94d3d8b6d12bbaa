package app

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/atomicfile"
	"github.com/skerry-io/skerry/common/health"
)

// healthModule serves the health pages, and the metrics to clients that can read the token's file.
type healthModule struct {
	server *health.Server
	token  string // path
}

func (a *App) newHealth(listen string) *healthModule {
	return &healthModule{health.New(listen, a.live(), a.ready(), a.metrics), MetricsToken(a.config)}
}

func (*healthModule) Name() message.Name { return "health" }

// metricsToken reads the token, and creates it if it is missing.
func metricsToken(path string) (string, error) {
	raw, err := os.ReadFile(path)
	if token := strings.TrimSpace(string(raw)); err == nil && token != "" {
		return token, nil
	}
	token := rand.Text()
	if err := atomicfile.Write(path, []byte(token+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("making the token of the metrics: %w", err)
	}
	return token, nil
}

func (m *healthModule) Run(ctx context.Context, port *beehive.Port) error {
	token, err := metricsToken(m.token)
	if err != nil { // such as a full disk: edgecore stays alive
		klog.FromContext(ctx).Error(err, "Failed to set up the metrics token; metrics are unavailable until edgecore restarts")
	}
	m.server.GuardMetrics(token)
	port.Ready()
	return m.server.Run(ctx)
}

// live are the checks of /healthz: failures that a restart of edgecore would repair.
func (a *App) live() map[string]health.Check {
	return map[string]health.Check{"modules": func() error { return a.runner.Failure() }} // the runner is made later
}

// ready are the checks of /readyz: whether the node does its work. No link is no reason not to be:
// offline is normal.
func (a *App) ready() map[string]health.Check {
	checks := map[string]health.Check{"modules-ready": func() error {
		var errs []error
		for _, h := range a.runner.Health() {
			if h.State != beehive.Ready {
				errs = append(errs, fmt.Errorf("%s is %s since %s", h.Name, h.State, h.Since.UTC().Format(time.RFC3339)))
			}
		}
		return errors.Join(errs...)
	}}
	checks["disk"] = a.disk.Ready
	if a.config.Modules.Edged.Enable {
		checks["kubelet"] = func() error {
			if err := a.kubelet.module.Waiting(); err != nil {
				return err
			}
			if !a.core.meta.KubeletAlive() {
				return errors.New("the kubelet has not renewed its lease in time")
			}
			return nil
		}
	}
	return checks
}

// busCollector shows the bus to Prometheus.
type busCollector struct{ runner *beehive.Runner }

func busDescs() (depth, sent, held, replaced, restarts *prometheus.Desc) {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("skerry_bus_"+name, help, []string{"module"}, nil)
	}
	return desc("mailbox_messages", "Messages queued for the module."),
		desc("messages_total", "Messages accepted into the module's mailbox."),
		desc("held_back_total", "Messages whose sender had to wait for room in the module's mailbox."),
		desc("replaced_total", "Messages that a newer one replaced in the module's mailbox."),
		desc("module_restarts_total", "Restarts of the module after a failure.")
}

// Describe implements prometheus.Collector.
func (c busCollector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect implements prometheus.Collector.
func (c busCollector) Collect(ch chan<- prometheus.Metric) {
	depth, sent, held, replaced, restarts := busDescs()
	for _, m := range c.runner.Metrics().Modules {
		name := string(m.Name)
		ch <- prometheus.MustNewConstMetric(depth, prometheus.GaugeValue, float64(m.Depth), name)
		ch <- prometheus.MustNewConstMetric(sent, prometheus.CounterValue, float64(m.Sent), name)
		ch <- prometheus.MustNewConstMetric(held, prometheus.CounterValue, float64(m.HeldBack), name)
		ch <- prometheus.MustNewConstMetric(replaced, prometheus.CounterValue, float64(m.Replaced), name)
	}
	for _, h := range c.runner.Health() {
		ch <- prometheus.MustNewConstMetric(restarts, prometheus.CounterValue, float64(h.Restarts), string(h.Name))
	}
}
