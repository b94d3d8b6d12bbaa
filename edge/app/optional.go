package app

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/edge/internal/agents/drain"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
	edgeapp "github.com/skerry-io/skerry/edge/internal/optional/app"
	"github.com/skerry-io/skerry/edge/internal/optional/applogs"
	"github.com/skerry-io/skerry/edge/internal/optional/marks"
	"github.com/skerry-io/skerry/edge/internal/optional/nodemetrics"
	"github.com/skerry-io/skerry/edge/internal/optional/statsleader"
	"github.com/skerry-io/skerry/edge/internal/optional/statusserver"
)

// optionalWing has the modules that are off by default. Those that are switched off are nil.
type optionalWing struct {
	apps        *edgeapp.Agent
	stats       *statsleader.Leader
	logs        *applogs.Agent
	nodeMetrics *nodemetrics.Agent
	marks       *marks.Agent

	reporting, marking, serving, passing []beehive.Entry
	collectors                           []prometheus.Collector
}

func newOptional(b *base, core *coreWing, r *reporters, site *siteWing, operations *drain.Agent, k *kubelet, u *uplink) (*optionalWing, error) {
	c := b.config.Modules
	w := &optionalWing{}
	add := func(to *[]beehive.Entry, m beehive.Module, groups ...message.Group) {
		*to = append(*to, restarted(m, groups...))
	}
	if c.Apps.Enable {
		w.apps = newApps(c.Apps, b.node, b.config.DataDir, core.client(), core.meta, b.store, k.images)
		r.add(w.apps.Module)
		add(&w.reporting, w.apps, linkstate.Agents)
	}
	if c.ClusterStats.Enable {
		w.stats = newStats(b, core)
		r.add(w.stats.Module)
		add(&w.reporting, w.stats, linkstate.Agents)
	}
	if c.AppLogs.Enable {
		w.logs = applogs.New(applogs.Config{
			NodeName: b.node, API: core.client(), Cloud: core.meta, Memory: b.memory(applogs.Name), Dir: c.AppLogs.Dir, Interval: c.AppLogs.Interval.Duration,
		})
		r.add(w.logs.Module)
		w.collectors = append(w.collectors, w.logs)
		add(&w.reporting, w.logs, linkstate.Agents)
	}
	if c.NodeMetrics.Enable && c.EdgeHub.Enable {
		w.nodeMetrics = newNodeMetrics(b, core, operations, k, u)
		add(&w.reporting, w.nodeMetrics)
	}
	if c.Passthrough.Enable {
		add(&w.passing, r.add(newPassthrough(b, core)), linkstate.Agents)
	}
	if c.Marks.Enable {
		w.marks = newMarks(c.Marks, b.node, core.client(), core.meta)
		r.add(w.marks.Module)
		w.collectors = append(w.collectors, w.marks)
		add(&w.marking, w.marks, linkstate.Agents)
	}
	if c.StatusServer.Enable {
		server, err := w.newPages(b, core, site, u)
		if err != nil {
			return nil, err
		}
		add(&w.serving, server)
	}
	return w, nil
}

func newStats(b *base, core *coreWing) *statsleader.Leader {
	c := b.config.Modules.ClusterStats
	return statsleader.New(statsleader.Config{
		NodeName: b.node, API: core.client(), Cloud: drain.Through(core.meta),
		LeaseDuration: c.LeaseDuration.Duration, RenewDeadline: c.RenewDeadline.Duration, RetryPeriod: c.RetryPeriod.Duration,
	})
}

func (w *optionalWing) newPages(b *base, core *coreWing, site *siteWing, u *uplink) (*statusserver.Server, error) {
	var leader func() any
	if w.stats != nil {
		leader = func() any { return w.stats.Status() }
	}
	return newStatusServer(b.config.Modules.StatusServer, b.node, core.client(), b.identity, b.clock.Now, u.lastContact, leader, site.current)
}
