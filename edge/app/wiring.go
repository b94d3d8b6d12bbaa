package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/common/recovery"
	"github.com/skerry-io/skerry/common/version"
	"github.com/skerry-io/skerry/edge/internal/agents/node"
	"github.com/skerry-io/skerry/edge/internal/core/store"
	"github.com/skerry-io/skerry/edge/internal/kernel/host/diskkey"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netif"
	edgeconfig "github.com/skerry-io/skerry/edge/internal/setup/config"
	"github.com/skerry-io/skerry/edge/internal/setup/join"
)

// New reads the identity, opens the store and makes every part. It starts no module.
func New(ctx context.Context, cfg *edgeconfig.Config, options ...Option) (*App, error) {
	a := &App{config: cfg, metrics: prometheus.NewRegistry(), keys: []string{packageKeys, ownKeys}}
	a.rescue = newRescue(a.dialCloud)
	for _, o := range options {
		o(a)
	}
	a.clock = pki.NewClock(BuildTime(), a.keepTime)
	key, err := readDiskKey(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if key != nil {
		if err := diskkey.InMemory(cfg.Modules.MetaManager.Encryption.KeysDir); err != nil {
			return nil, err
		}
	}
	if a.identity, err = join.Load(IdentityDir(cfg), sealer(key), a.clock); err != nil {
		return nil, err
	}
	a.node = string(a.identity.Node())
	if a.dialer, err = newTrusting(a.identity.Roots, func() (link.Dialer, error) { return newDialer(cfg.Modules.EdgeHub, a.identity) }); err != nil {
		return nil, err
	}
	if name := cfg.Modules.Edged.HostnameOverride; name != "" && name != a.node {
		return nil, fmt.Errorf("modules.edged.hostnameOverride is %s, but this device joined as %s: put the old name back, or join again under the new one", name, a.node)
	}
	if err := os.MkdirAll(cfg.DataDir, 0o700); err != nil {
		return nil, fmt.Errorf("dataDir: %w", err)
	}
	file := storeConfig(cfg, key)
	file.LockWait = lockWait
	if a.store, err = store.Open(ctx, file); err != nil {
		return nil, err
	}
	a.disk = node.NewDisk(cfg.DataDir, a.store)
	if last, err := a.store.LastTime(); err == nil {
		a.clock.AtLeast(last)
	}
	if aside := a.store.SetAside(); aside != "" {
		klog.FromContext(ctx).Error(nil, "Recovered from a damaged store: kept the readable records, waiting for the cloud to send the others", "damaged", aside, "lost", a.store.Lost())
	}
	if err := a.assemble(); err != nil {
		_ = a.store.Close()
		return nil, err
	}
	return a, nil
}

// A part is a line of the wiring: modules that are enabled together.
type part struct {
	on   bool
	make func() ([]beehive.Entry, error)
}

// wiring returns the parts of edgecore, in the order in which they start. A part is made when those
// above it have been.
func (a *App) wiring() []part {
	c := a.config.Modules
	return []part{
		{true, a.storeParts},
		// The first active module, and the last to stop: it records the others.
		{true, a.flightRecorderParts},
		{c.EdgeAPI.Enable, a.apiParts},
		{true, a.notifyParts},
		// Before the modules with claims.
		{a.probation != nil, a.probationParts},
		// Before the link and the kubelet: the devices of a site need neither to find each other.
		{a.on.site, a.siteParts},
		// Only with a kubelet: an edgecore without one, as in tests, must not change the machine's
		// network.
		{c.PodNetwork.Enable && c.Edged.Enable && c.EdgeAPI.Enable, a.podNetworkParts},
		// Before the link: the store has the desired routes, and the path to the cloud may depend
		// on them.
		{c.Route.Enable, a.routeParts},
		{!c.Route.Enable, a.routeOffParts},
		// Before the kubelet: when a device boots, the store's pods are those of the boot before.
		{c.VIP.Enable, a.vipParts},
		// Before the link too: a local request does not need it, and after a boot a running
		// operation is completed.
		{c.Drain.Enable, a.drainParts},
		{c.Apps.Enable, a.appParts},
		{c.ClusterStats.Enable, a.statsParts},
		{c.AppLogs.Enable, a.logParts},
		{c.NodeMetrics.Enable && c.EdgeHub.Enable, a.nodeMetricsParts},
		{c.EdgeHub.Enable, a.hubParts},
		{a.followsPool(), a.switchParts},
		{c.Passthrough.Enable, a.passthroughParts},
		// Before the kubelet: a device that boots offline has the rules before its first pod.
		{c.Marks.Enable, a.marksParts},
		// After the link: at its first boot a device has no objects to serve before that. Before
		// the kubelet: rules and names are available when its pods start.
		{c.EdgeAPI.Enable, a.serviceParts},
		{c.StatusServer.Enable, a.statusServerParts},
		{c.Edged.Enable, a.edgedParts},
		// Last: it stops the kubelet and has virtual IPs handed over.
		{c.Edged.Enable || c.VIP.Enable, a.shutdownParts},
	}
}

// assemble makes the parts.
func (a *App) assemble() error {
	a.newContact()
	a.newMeta()
	var entries []beehive.Entry
	for _, p := range a.wiring() {
		if !p.on {
			continue
		}
		made, err := p.make()
		if err != nil {
			return err
		}
		entries = append(entries, made...)
	}
	if at := a.config.Health.Listen; at != "" {
		// Made last, since it checks all others, and started first: health is requested most while
		// a device starts.
		entries = slices.Insert(entries, 0, restarted(a.newHealth(at)))
	}
	var err error
	if a.runner, err = beehive.NewRunner(beehive.Config{}, entries); err != nil {
		return err
	}
	return a.registerMetrics()
}

// Run starts the parts in order and serves until ctx ends or one of them fails permanently.
func (a *App) Run(ctx context.Context) error {
	log := klog.FromContext(ctx)
	log.Info("Starting edgecore", "version", version.Skerry(), "kubernetes", version.Kubernetes(), "node", a.node)
	a.clearSwitchedOff(ctx, netif.CNIConfigs)
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	a.switching.begin(cancel)
	err := a.runner.Run(running)
	if ctx.Err() != nil {
		a.noteStopped(ctx)
	}
	if closeErr := a.store.Close(); closeErr != nil {
		err = errors.Join(err, fmt.Errorf("closing the store: %w", closeErr))
	}
	log.Info("Stopped edgecore; containers keep running")
	return err
}

func (a *App) registerMetrics() error {
	all := []prometheus.Collector{collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), busCollector{a.runner}, a.api.Metrics(), recovery.Metric()}
	for _, c := range append(all, a.collectors...) {
		if err := a.metrics.Register(c); err != nil {
			return fmt.Errorf("registering metrics: %w", err)
		}
	}
	return nil
}
