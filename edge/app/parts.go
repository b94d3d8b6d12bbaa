package app

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/watchdog"
	"github.com/skerry-io/skerry/edge/internal/agents/drain"
	"github.com/skerry-io/skerry/edge/internal/agents/history"
	"github.com/skerry-io/skerry/edge/internal/agents/node"
	"github.com/skerry-io/skerry/edge/internal/agents/probation"
	"github.com/skerry-io/skerry/edge/internal/core/agent"
	"github.com/skerry-io/skerry/edge/internal/core/edgeapi"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/podgate"
	"github.com/skerry-io/skerry/edge/internal/core/store/storewatch"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netwatch"
	"github.com/skerry-io/skerry/edge/internal/optional/applogs"
	"github.com/skerry-io/skerry/edge/internal/optional/statsleader"
	"github.com/skerry-io/skerry/edge/internal/pods/singleton"
	"github.com/skerry-io/skerry/edge/internal/setup/sdnotify"
)

// restarted is a module that is started again after a failure.
func restarted(m beehive.Module, groups ...message.Group) beehive.Entry {
	return beehive.Entry{Module: m, Groups: groups, Restart: beehive.OnFailure(beehive.Backoff{})}
}

// slow is an entry whose module may take longer to stop.
func slow(e beehive.Entry, stop time.Duration) beehive.Entry {
	e.StopTimeout = stop
	return e
}

// newMeta makes the metamanager and the edge API.
func (a *App) newMeta() {
	c := a.config.Modules
	limit := c.MetaManager.EventLimit
	a.singletons = singleton.New(func() singleton.Manager { return a.meta }, agent.NewMemory(a.store, string(singleton.Name)), bootID())
	a.meta = metamanager.New(metamanager.Config{
		Gate: podgate.Gate{a.singletons.Rule, func(p *corev1.Pod) string { return a.devices.Withholds(p) }}, PodsConfirmed: a.singletons.Confirmed,
		NodeName: a.node, Store: a.store, ReportEvents: c.Edged.ReportEvent, Corrector: a.newCorrection(),
		Limits: metamanager.Limits{OutboxEvents: limit.Entries, OutboxBytes: int(limit.Bytes.Value())},
	})
	a.registration = node.NewRegistration(a.meta, a.node, agent.NewMemory(a.store, string(node.RegistrationName)), a.repeatReports)
	if a.store != nil { // else the wiring is only shown
		if err := a.registration.Load(); err != nil {
			klog.Background().Error(err, "Failed to read the saved settings of the Node")
		}
		if err := a.singletons.Load(); err != nil {
			klog.Background().Error(err, "Failed to read whether the cloud has confirmed the pods of this boot")
		}
	}
	a.api = edgeapi.New(edgeapi.Config{
		NodeName: a.node, Backend: a.meta, State: a.store.Module(string(edgeapi.Name)), DataDir: keysDir(a.config), Socket: c.EdgeAPI.Socket, Listen: c.EdgeAPI.Listen, Pods: podsListen(c.EdgeAPI),
		Local: a.local(), Register: a.registration.Register, DialKubelet: a.dialKubelet,
	})
}

func (a *App) storeParts() ([]beehive.Entry, error) {
	client := a.api.ClientConfig(edgeapi.Identity{})
	return []beehive.Entry{
		restarted(a.meta, linkstate.Group),
		restarted(a.singletons),
		restarted(a.registration), // also if the device serves no API: its Node may be deleted nevertheless
		{Module: storewatch.New(a.store, a.meta.Linked), Restart: beehive.Never()},
		restarted(node.NewDiskModule(a.disk, a.node, client)),
		restarted(node.NewRestorer(a.meta, a.node, func() bool { return a.meta.KubeletAlive() && !a.edged.Stopped() })),
		restarted(node.NewLostSettingsModule(a.registration.Problem, a.node, client, a.recorder("registration"))),
		restarted(node.NewPodsModule(a.podsProblem(), a.node, client)),
		restarted(node.NewSkewModule(a.meta.Linked, a.meta.Request, a.node, client)),
	}, nil
}

func (a *App) apiParts() ([]beehive.Entry, error) {
	return []beehive.Entry{restarted(a.api), restarted(a.newAPIRedirect())}, nil
}

// notifyParts follow the socket of `edgecore status` in the order.
func (a *App) notifyParts() ([]beehive.Entry, error) {
	dog, err := watchdog.New()
	if err != nil {
		return nil, err
	}
	dog.Watch(a.live())
	a.dog = dog
	return []beehive.Entry{restarted(sdnotify.New(dog))}, nil
}

func (a *App) probationParts() ([]beehive.Entry, error) {
	return []beehive.Entry{restarted(probation.Module{Probation: a.probation})}, nil
}

func (a *App) siteParts() ([]beehive.Entry, error) {
	return []beehive.Entry{restarted(a.contact)}, nil
}

func (a *App) podNetworkParts() ([]beehive.Entry, error) {
	return []beehive.Entry{restarted(a.newPodNetwork(), linkstate.Agents)}, nil
}

func (a *App) switchParts() ([]beehive.Entry, error) {
	return []beehive.Entry{{Module: &switchModule{a}, Restart: beehive.Never()}}, nil
}

func (a *App) routeParts() ([]beehive.Entry, error) {
	a.routes = a.newRoutes()
	a.collectors = append(a.collectors, a.routes)
	return []beehive.Entry{slow(restarted(a.routes, linkstate.Agents), 30*time.Second)}, nil
}

func (a *App) vipParts() ([]beehive.Entry, error) {
	a.vips = a.newVIPs()
	a.collectors = append(a.collectors, a.vips)
	return []beehive.Entry{slow(restarted(a.vips, linkstate.Agents), 20*time.Second)}, nil
}

func (a *App) appParts() ([]beehive.Entry, error) {
	a.apps = newApps(a.config.Modules.Apps, a.node, a.config.DataDir, a.api.ClientConfig(edgeapi.Identity{}), a.meta, a.store, a.imagesEndpoint)
	a.agent(a.apps.Module)
	return []beehive.Entry{restarted(a.apps, linkstate.Agents)}, nil
}

func (a *App) statsParts() ([]beehive.Entry, error) {
	c := a.config.Modules.ClusterStats
	a.stats = statsleader.New(statsleader.Config{
		NodeName: a.node, API: a.api.ClientConfig(edgeapi.Identity{}), Cloud: drain.Through(a.meta),
		LeaseDuration: c.LeaseDuration.Duration, RenewDeadline: c.RenewDeadline.Duration, RetryPeriod: c.RetryPeriod.Duration,
	})
	a.agent(a.stats.Module)
	return []beehive.Entry{restarted(a.stats, linkstate.Agents)}, nil
}

func (a *App) logParts() ([]beehive.Entry, error) {
	c := a.config.Modules.AppLogs
	a.logs = applogs.New(applogs.Config{
		NodeName: a.node, API: a.api.ClientConfig(edgeapi.Identity{}), Cloud: a.meta, Memory: agent.NewMemory(a.store, string(applogs.Name)), Dir: c.Dir, Interval: c.Interval.Duration,
	})
	a.agent(a.logs.Module)
	a.collectors = append(a.collectors, a.logs)
	return []beehive.Entry{restarted(a.logs, linkstate.Agents)}, nil
}

func (a *App) hubParts() ([]beehive.Entry, error) {
	a.netwatch = netwatch.New(nil)
	var err error
	if a.hub, err = a.newHub(); err != nil {
		return nil, err
	}
	a.collectors = append(a.collectors, a.hub, a.tunnel)
	if a.config.Modules.Console.Enable {
		a.consoles = newConsoles(a)
	}
	told := history.New(history.Config{
		NodeName: a.node, Memory: agent.NewMemory(a.store, string(history.Name)), Repeat: a.repeatReports, Settled: a.reportsSettled,
	})
	return []beehive.Entry{restarted(&identityModule{app: a}, linkstate.Group), restarted(a.netwatch), restarted(told, linkstate.Agents), restarted(a.hub)}, nil
}

func (a *App) passthroughParts() ([]beehive.Entry, error) {
	return []beehive.Entry{restarted(a.agent(a.newPassthrough()), linkstate.Agents)}, nil
}

func (a *App) marksParts() ([]beehive.Entry, error) {
	a.marks = newMarks(a.config.Modules.Marks, a.node, a.api.ClientConfig(edgeapi.Identity{}), a.meta)
	a.agent(a.marks.Module)
	a.collectors = append(a.collectors, a.marks)
	return []beehive.Entry{restarted(a.marks, linkstate.Agents)}, nil
}

func (a *App) statusServerParts() ([]beehive.Entry, error) {
	var leader func() any
	if a.stats != nil {
		leader = func() any { return a.stats.Status() }
	}
	server, err := newStatusServer(a.config.Modules.StatusServer, a.node, a.api.ClientConfig(edgeapi.Identity{}), a.identity, a.clock.Now, a.lastContact, leader, a.currentSite)
	if err != nil {
		return nil, err
	}
	return []beehive.Entry{restarted(server)}, nil
}
