package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/common/recovery"
	"github.com/skerry-io/skerry/common/version"
	"github.com/skerry-io/skerry/common/watchdog"
	"github.com/skerry-io/skerry/edge/internal/agents/node"
	"github.com/skerry-io/skerry/edge/internal/core/store"
	"github.com/skerry-io/skerry/edge/internal/kernel/host/diskkey"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netif"
	edgeconfig "github.com/skerry-io/skerry/edge/internal/setup/config"
	"github.com/skerry-io/skerry/edge/internal/setup/join"
	"github.com/skerry-io/skerry/edge/internal/setup/sdnotify"
)

// lockWait is for a predecessor that was killed and is not quite gone.
const lockWait = 15 * time.Second

// newApp makes the App of a configuration, without parts.
func newApp(cfg *edgeconfig.Config) *App {
	a := &App{
		base: &base{config: cfg}, reporters: &reporters{}, kubelet: &kubelet{config: cfg}, uplink: &uplink{},
		metrics: prometheus.NewRegistry(), keys: []string{packageKeys, ownKeys},
	}
	a.rescue = newRescue(a.uplink.open)
	return a
}

// New reads the identity, opens the store and makes every part. It starts no module.
func New(ctx context.Context, cfg *edgeconfig.Config, options ...Option) (*App, error) {
	a := newApp(cfg)
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

// assemble makes the wings, each from those that it needs, and the runner of their modules.
func (a *App) assemble() error {
	b, r, tested := a.base, a.reporters, newProbation(a.base)
	a.site = newSite(b, func() bool { return a.core.meta.Linked() })
	a.core = newCore(b, r, a.kubelet, a.site.corrector(), a.local())
	api := a.core.serving(b, r)
	network := a.site.network(b, a.core, r, tested)
	var err error
	if a.agents, err = newAgents(b, a.core, r, tested, a.rescue, worksConfig{
		keys: a.keys, file: func() string { return a.file }, restart: a.switching.start, kubelet: a.kubelet, uplink: a.uplink, neighbours: a.site.others(),
	}); err != nil {
		return err
	}
	if a.optional, err = newOptional(b, a.core, r, a.site, a.agents.drain, a.kubelet, a.uplink); err != nil {
		return err
	}
	if a.link, err = newLink(b, a.core, r, a.site, a.optional, a.uplink, linkConfig{a.protocols, a.rescue, a.streams()}); err != nil {
		return err
	}
	view, services, err := a.site.newServices(b, a.core, r, tested)
	if err != nil {
		return err
	}
	pods, err := newPods(b, a.core, a.kubelet, podsConfig{a.site, view, a.agents.kept, a.optional.apps != nil})
	if err != nil {
		return err
	}
	ending, err := newShutdown(b, a.core, a.agents, a.kubelet)
	if err != nil {
		return err
	}
	notify, err := a.notify()
	if err != nil {
		return err
	}
	return a.run(
		a.core.objects(b, a.kubelet),
		// The first active module, and the last to stop: it records the others.
		a.agents.recording,
		api,
		// After the socket of `edgecore status`.
		notify,
		// Before the modules with claims.
		probationOf(tested),
		// Before the link and the kubelet: the devices of a site need neither to find each other.
		a.site.contacting(),
		network,
		// Before the link: the store has the desired routes, and the path to the cloud may depend
		// on them.
		a.agents.routing,
		// Before the kubelet: when a device boots, the store's pods are those of the boot before.
		a.agents.balancing,
		// Before the link too: a local request does not need it, and after a boot a running
		// operation is completed.
		a.agents.operating,
		a.optional.reporting,
		a.link.linking,
		a.site.switching(b),
		a.optional.passing,
		// Before the kubelet: a device that boots offline has the rules before its first pod.
		a.optional.marking,
		// After the link: at its first boot a device has no objects to serve before that. Before
		// the kubelet: rules and names are available when its pods start.
		services,
		a.optional.serving,
		pods.running,
		// Last: it stops the kubelet and has virtual IPs handed over.
		ending,
	)
}

// run makes the runner of modules, which start in this order.
func (a *App) run(modules ...[]beehive.Entry) error {
	entries := slices.Concat(modules...)
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

// notify tells systemd that edgecore runs.
func (a *App) notify() ([]beehive.Entry, error) {
	dog, err := watchdog.New()
	if err != nil {
		return nil, err
	}
	dog.Watch(a.live())
	a.dog = dog
	return []beehive.Entry{restarted(sdnotify.New(dog))}, nil
}

// Run starts the parts in order and serves until ctx ends or one of them fails permanently.
func (a *App) Run(ctx context.Context) error {
	log := klog.FromContext(ctx)
	log.Info("Starting edgecore", "version", version.Skerry(), "kubernetes", version.Kubernetes(), "node", a.node)
	clearSwitchedOff(ctx, a.config, netif.CNIConfigs)
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
	all := []prometheus.Collector{collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), busCollector{a.runner}, a.core.api.Metrics(), recovery.Metric()}
	for _, c := range slices.Concat(all, a.site.collectors(), a.agents.collectors, a.optional.collectors, a.link.collectors) {
		if err := a.metrics.Register(c); err != nil {
			return fmt.Errorf("registering metrics: %w", err)
		}
	}
	return nil
}

// Wiring returns the modules that edgecore would run with a configuration. It opens no files.
func Wiring(cfg *edgeconfig.Config) (beehive.Wiring, error) {
	c := *cfg
	if len(c.Modules.EdgeHub.Servers) == 0 {
		c.Modules.EdgeHub.Servers = []string{"localhost"} // any will do: it is not dialled
	}
	a := newApp(&c)
	a.identity, a.dialer = &join.Identity{}, undialled{}
	if err := a.assemble(); err != nil {
		return beehive.Wiring{}, err
	}
	return a.runner.Wiring(), nil
}

// undialled is the dialer of an edgecore that won't run.
type undialled struct{}

func (undialled) Dial(context.Context, string) (link.Conn, error) {
	return nil, errors.New("this edgecore does not run")
}
