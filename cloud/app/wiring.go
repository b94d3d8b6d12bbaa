package app

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/cloud/internal/core/config"
	"github.com/skerry-io/skerry/common/health"
	"github.com/skerry-io/skerry/common/recovery"
)

// New connects to kube-apiserver, reads or makes the CA, and opens the listeners. It serves no
// connection yet.
func New(ctx context.Context, cfg *config.Config) (_ *App, err error) {
	c, err := newCluster(cfg)
	if err != nil {
		return nil, err
	}
	a := &App{config: cfg, instance: c.instance, ports: &ports{}, metrics: prometheus.NewRegistry()}
	defer func() {
		if err != nil {
			a.close()
		}
	}()
	var endRevoked func(context.Context) // made below, and called once the modules run
	trust, err := newTrust(ctx, c, func(ctx context.Context) { endRevoked(ctx) })
	if err != nil {
		return nil, err
	}
	if err := a.ports.open(ctx, cfg, trust.ca, trust.tls()); err != nil {
		return nil, err
	}
	core, err := newCore(c)
	if err != nil {
		return nil, err
	}
	controllers := newControllers(c, trust, core)
	if a.access, err = newAccess(c, trust, core, a.ports); err != nil {
		return nil, err
	}
	ready := ready(trust, core)
	sessions := newSessions(c, trust, a.access, a.ports.links, func() error { return failure(ready) }, slices.Concat(core.carried, controllers.carried, a.access.carried))
	endRevoked = func(ctx context.Context) { sessions.endRevoked(ctx, trust.revoked, controllers.sites) }
	joins, err := newJoins(c, trust, a.ports, sessions.hub.Linked)
	if err != nil {
		return nil, err
	}
	return a, a.assemble(trust.wing, core.wing, controllers.wing, sessions.wing, a.access.wing, joins, a.process(ready))
}

// assemble makes the runner of the wings' modules, which start in their order.
func (a *App) assemble(wings ...wing) error {
	all := wing{collectors: []prometheus.Collector{collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), recovery.Metric()}}
	for _, w := range wings {
		all.add(w)
	}
	var err error
	if a.runner, err = beehive.NewRunner(beehive.Config{}, all.entries); err != nil {
		return err
	}
	for _, c := range all.collectors {
		if err := a.metrics.Register(c); err != nil {
			return fmt.Errorf("registering metrics: %w", err)
		}
	}
	return nil
}

// process has the modules of the process itself.
func (a *App) process(ready map[string]health.Check) (w wing) {
	w.entries = append(w.entries, a.verbosity())
	if at := a.config.Health.Listen; at != "" {
		// Last: where it answers, the ports of the wings are served.
		w.entries = append(w.entries, restarted("health", health.New(at, a.live(), ready, a.metrics).Run))
	}
	return w
}

// live are the checks of /healthz: failures that a restart of cloudcore would fix.
func (a *App) live() map[string]health.Check {
	return map[string]health.Check{"modules": func() error { return a.runner.Failure() }} // the runner is made later
}

// ready are the checks of /readyz: whether edges should come here.
func ready(trust *trustWing, core *coreWing) map[string]health.Check {
	return map[string]health.Check{
		"client-ca": func() error {
			if trust.clientCA.Pool() == nil {
				return errors.New("the CA of node certificates has not been read yet")
			}
			return nil
		},
		"informers": core.informers.Ready,
	}
}

// failure is that of a check; nil if all pass.
func failure(checks map[string]health.Check) error {
	for _, check := range checks {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}
