package app

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/edge/internal/agents/drain"
	"github.com/skerry-io/skerry/edge/internal/agents/flightrecorder"
	"github.com/skerry-io/skerry/edge/internal/agents/probation"
	"github.com/skerry-io/skerry/edge/internal/agents/route"
	"github.com/skerry-io/skerry/edge/internal/agents/upgrade"
	"github.com/skerry-io/skerry/edge/internal/agents/vip"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
)

// agentsWing has the agents that change the device: its routes, virtual IPs and operations. Those
// that are switched off are nil.
type agentsWing struct {
	flight *flightrecorder.Module
	routes *route.Agent
	vips   *vip.Agent
	drain  *drain.Agent
	kept   func() ([]string, error) // images that garbage collection leaves alone; may be nil

	recording, routing, balancing, operating []beehive.Entry
	collectors                               []prometheus.Collector
}

// newProbation makes the probation of changes that may cost the link; nil without a link to lose.
func newProbation(b *base) *probation.Probation {
	ask := b.askCloud()
	if ask == nil {
		return nil
	}
	return probation.New(probation.Config{Memory: b.memory(probation.Name), Ask: ask})
}

func probationOf(p *probation.Probation) []beehive.Entry {
	if p == nil {
		return nil
	}
	return []beehive.Entry{restarted(probation.Module{Probation: p})}
}

func newAgents(b *base, core *coreWing, r *reporters, tested *probation.Probation, rescue *rescue, works worksConfig) (*agentsWing, error) {
	c := b.config.Modules
	w := &agentsWing{flight: newFlightRecorder(b, core)}
	w.recording = []beehive.Entry{restarted(w.flight, linkstate.Group)}
	if c.Route.Enable {
		w.routes = newRoutes(b, core, tested)
		r.add(w.routes.Module)
		w.collectors = append(w.collectors, w.routes)
		w.routing = []beehive.Entry{slow(restarted(w.routes, linkstate.Agents), 30*time.Second)}
	} else {
		w.routing = []beehive.Entry{restarted(r.add(newRouteOff(b, core)), linkstate.Agents)}
	}
	if c.VIP.Enable {
		w.vips = newVIPs(b, core, tested)
		r.add(w.vips.Module)
		w.collectors = append(w.collectors, w.vips)
		w.balancing = []beehive.Entry{slow(restarted(w.vips, linkstate.Agents), 20*time.Second)}
	}
	if c.Drain.Enable {
		operations, module, err := newDrain(b, core, w.vips, rescue, func(cloud *rest.Config) (*upgrade.Works, error) {
			made, kept, err := newWorks(b, core, rescue, cloud, works)
			w.kept = kept
			return made, err
		})
		if err != nil {
			return nil, err
		}
		r.add(module.Module)
		w.drain = operations
		w.collectors = append(w.collectors, operations)
		w.operating = []beehive.Entry{slow(restarted(module, linkstate.Agents), 20*time.Second)}
	}
	return w, nil
}
