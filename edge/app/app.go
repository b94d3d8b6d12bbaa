// Package app is edgecore put together: the wiring table, and what the parts are made of.
//
// It owns the order in which things start, and the parts' configuration from edgecore.yaml. It decides nothing else. New opens the store and reads the
// identity; Run starts everything and ends when ctx does.
package app

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/config"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/link/quiclink"
	"github.com/skerry-io/skerry/common/link/wslink"
	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/version"
	"github.com/skerry-io/skerry/edge/internal/agent"
	"github.com/skerry-io/skerry/edge/internal/api"
	edgeapp "github.com/skerry-io/skerry/edge/internal/app"
	edgeconfig "github.com/skerry-io/skerry/edge/internal/config"
	"github.com/skerry-io/skerry/edge/internal/contact"
	"github.com/skerry-io/skerry/edge/internal/drain"
	"github.com/skerry-io/skerry/edge/internal/edged"
	"github.com/skerry-io/skerry/edge/internal/endpoints"
	"github.com/skerry-io/skerry/edge/internal/hub"
	"github.com/skerry-io/skerry/edge/internal/join"
	"github.com/skerry-io/skerry/edge/internal/kernel/diskkey"
	"github.com/skerry-io/skerry/edge/internal/kernel/netwatch"
	"github.com/skerry-io/skerry/edge/internal/linkstate"
	"github.com/skerry-io/skerry/edge/internal/marks"
	"github.com/skerry-io/skerry/edge/internal/meta"
	"github.com/skerry-io/skerry/edge/internal/passthrough"
	"github.com/skerry-io/skerry/edge/internal/registration"
	"github.com/skerry-io/skerry/edge/internal/route"
	"github.com/skerry-io/skerry/edge/internal/site"
	"github.com/skerry-io/skerry/edge/internal/store"
	"github.com/skerry-io/skerry/edge/internal/tunnel"
	"github.com/skerry-io/skerry/edge/internal/vip"
)

// Configuration reads edgecore.yaml and checks also what only a module knows: the KubeletConfiguration. The error names every mistake with its line.
func Configuration(file string, data []byte) (*edgeconfig.Config, error) {
	cfg, doc, err := edgeconfig.Read(file, data)
	if err != nil {
		return nil, err
	}
	if cfg.Modules.Edged.Enable {
		if err := edged.Validate(cfg.Modules.Edged.Kubelet); err != nil {
			const at = "modules.edged.kubelet"
			return nil, &config.Error{File: file, Problems: []config.Problem{{Line: doc.Line(at), Path: at, Message: err.Error()}}}
		}
	}
	return cfg, nil
}

// NodeName is the node's name: asked for, else configured, else the host's own in lower case.
func NodeName(cfg *edgeconfig.Config, asked string) (string, error) {
	name := asked
	if name == "" {
		name = cfg.Modules.Edged.HostnameOverride
	}
	if name == "" {
		host, err := os.Hostname()
		if err != nil {
			return "", fmt.Errorf("reading the host's name: %w", err)
		}
		name = strings.ToLower(host)
	}
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return "", fmt.Errorf("node name %q: %s; set modules.edged.hostnameOverride", name, strings.Join(problems, "; "))
	}
	return name, nil
}

// IdentityDir is where the identity is.
func IdentityDir(cfg *edgeconfig.Config) string { return filepath.Join(cfg.DataDir, "identity") }

// BuildTime is when this program was built, as its file tells: no certificate that matters is judged by an earlier time.
func BuildTime() time.Time {
	path, err := os.Executable()
	if err != nil {
		return time.Time{}
	}
	info, err := os.Stat(path)
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// lockWait is for a predecessor that was killed and is not quite gone.
const lockWait = 15 * time.Second

// App is edgecore.
type App struct {
	config   *edgeconfig.Config
	node     string
	store    *store.Store
	disk     disk
	clock    *pki.Clock
	identity *join.Identity
	meta     *meta.Manager
	// correction is nil where nothing on the device reads EndpointSlices.
	correction *endpoints.Correction
	api        *api.Server
	dialer     link.Dialer
	hub        *hub.Hub
	netwatch   *netwatch.Watcher
	edged      *edged.Module
	routes     *route.Agent
	agents     []*agent.Module
	vips       *vip.Agent
	drain      *drain.Agent
	marks      *marks.Agent
	runner     *beehive.Runner
	tunnel     *tunnel.Tunnel
	metrics    *prometheus.Registry

	// site and contact are nil where modules.site is switched off.
	site    *site.Holder
	contact *contact.Agent
	moved   chan struct{} // a device of the site may be elsewhere now
	apps    *edgeapp.Agent
}

// New reads the identity, opens the store and makes every part. Nothing runs yet.
func New(ctx context.Context, cfg *edgeconfig.Config) (*App, error) {
	a := &App{config: cfg, metrics: prometheus.NewRegistry()}
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
	a.disk = disk{cfg.DataDir, func() bool { return a.store.Stats().Full }}
	if last, err := a.store.LastTime(); err == nil {
		a.clock.AtLeast(last)
	}
	if aside := a.store.SetAside(); aside != "" {
		klog.FromContext(ctx).Error(nil, "The store was damaged; what could be read of it was kept, the rest comes again from the cloud", "damaged", aside, "lost", a.store.Lost())
	}
	if err := a.assemble(); err != nil {
		_ = a.store.Close()
		return nil, err
	}
	return a, nil
}

// keepTime keeps the newest time known over a restart, for devices whose clock starts in 1970. It is called once a day at most.
func (a *App) keepTime(t time.Time) {
	if a.store != nil {
		_ = a.store.SetLastTime(context.Background(), t) // a full disk: tomorrow's will do
	}
}

// storeConfig is where the store is; key may be nil.
func storeConfig(cfg *edgeconfig.Config, key *diskkey.Key) store.Config {
	file := cfg.Modules.MetaManager.Encryption.KeyFile
	if file == "" {
		file = filepath.Join(cfg.DataDir, "store.key")
	}
	c := store.Config{Path: filepath.Join(cfg.DataDir, "store.db"), KeyFile: file}
	if key != nil {
		c.Key = key.Bytes()
	}
	return c
}

// assemble makes the parts and their wiring.
func (a *App) assemble() error {
	c := a.config.Modules
	limit := c.MetaManager.EventLimit
	a.newContact()
	a.meta = meta.New(meta.Config{
		NodeName: a.node, Store: a.store, ReportEvents: c.Edged.ReportEvent, Corrector: a.newCorrection(),
		Limits: meta.Limits{OutboxEvents: limit.Entries, OutboxBytes: int(limit.Bytes.Value())},
	})
	registration := registration.New(a.meta, a.node)
	a.api = api.New(api.Config{
		NodeName: a.node, Backend: a.meta, State: a.store.Module(string(api.Name)), DataDir: keysDir(a.config), Socket: c.EdgeAPI.Socket, Listen: c.EdgeAPI.Listen, Pods: podsListen(c.EdgeAPI),
		Local: a.local(), Registering: registration.Seen,
	})

	entries := []beehive.Entry{
		{Module: a.meta, Groups: []message.Group{linkstate.Group}, Restart: beehive.OnFailure(beehive.Backoff{})},
		{Module: &storeModule{store: a.store, linked: a.meta.Linked}, Restart: beehive.Never()},
		{Module: &diskModule{disk: a.disk, node: a.node, client: a.api.ClientConfig(api.Identity{})}, Restart: beehive.OnFailure(beehive.Backoff{})},
	}
	entries = append(entries, beehive.Entry{Module: &skewModule{
		linked: a.meta.Linked, request: a.meta.Request, node: a.node, client: a.api.ClientConfig(api.Identity{}),
	}, Restart: beehive.OnFailure(beehive.Backoff{})})
	if c.EdgeAPI.Enable {
		entries = append(entries,
			beehive.Entry{Module: a.api, Restart: beehive.OnFailure(beehive.Backoff{})},
			beehive.Entry{Module: registration, Restart: beehive.OnFailure(beehive.Backoff{})},
			beehive.Entry{Module: a.newAPIRedirect(), Restart: beehive.OnFailure(beehive.Backoff{})},
		)
	}
	if a.contact != nil {
		// Before the link and the kubelet: the devices of a site need neither to know of each other.
		entries = append(entries,
			beehive.Entry{Module: a.contact, Restart: beehive.OnFailure(beehive.Backoff{})},
			beehive.Entry{Module: a.newPodNetwork(), Groups: []message.Group{linkstate.Agents}, Restart: beehive.OnFailure(beehive.Backoff{})},
		)
	}
	if c.Route.Enable {
		// Before the link: the store knows which routes there should be, and the way to the cloud may be one of them.
		a.routes = a.newRoutes()
		entries = append(entries, beehive.Entry{
			Module: a.routes, Groups: []message.Group{linkstate.Agents}, Restart: beehive.OnFailure(beehive.Backoff{}), StopTimeout: 30 * time.Second,
		})
	}
	if c.VIP.Enable {
		// Before the kubelet: what the store says of pods when a device boots is of the boot before.
		a.vips = a.newVIPs()
		entries = append(entries, beehive.Entry{
			Module: a.vips, Groups: []message.Group{linkstate.Agents}, Restart: beehive.OnFailure(beehive.Backoff{}), StopTimeout: 20 * time.Second,
		}, beehive.Entry{Module: &shutdownModule{a.vips}, Restart: beehive.OnFailure(beehive.Backoff{})})
	}
	if c.Drain.Enable {
		// Before the link too: a request made on the spot needs none, and after a boot what was running is completed.
		module, err := a.newDrain()
		if err != nil {
			return err
		}
		entries = append(entries, beehive.Entry{
			Module: module, Groups: []message.Group{linkstate.Agents}, Restart: beehive.OnFailure(beehive.Backoff{}), StopTimeout: 20 * time.Second,
		})
	}
	if c.Apps.Enable {
		a.apps = newApps(c.Apps, a.node, a.config.DataDir, a.api.ClientConfig(api.Identity{}), a.meta, a.store, func() string { return a.edged.Runtime() })
		a.agent(a.apps.Module)
		entries = append(entries, beehive.Entry{Module: a.apps, Groups: []message.Group{linkstate.Agents}, Restart: beehive.OnFailure(beehive.Backoff{})})
	}
	if c.EdgeHub.Enable {
		var err error
		a.netwatch = netwatch.New(nil)
		if a.hub, err = a.newHub(); err != nil {
			return err
		}
		entries = append(entries,
			beehive.Entry{Module: &identityModule{app: a}, Groups: []message.Group{linkstate.Group}, Restart: beehive.OnFailure(beehive.Backoff{})},
			beehive.Entry{Module: a.netwatch, Restart: beehive.OnFailure(beehive.Backoff{})},
			beehive.Entry{Module: a.hub, Restart: beehive.OnFailure(beehive.Backoff{})},
		)
	}
	if c.Passthrough.Enable {
		m := newPassthrough(a.node, a.api.ClientConfig(api.Identity{}), a.recorder(string(passthrough.Name)), agent.NewMemory(a.store, string(passthrough.Name)))
		entries = append(entries, beehive.Entry{Module: a.agent(m), Groups: []message.Group{linkstate.Agents}, Restart: beehive.OnFailure(beehive.Backoff{})})
	}
	if c.Marks.Enable {
		// Before the kubelet: a device that boots offline has the rules before its first pod.
		a.marks = newMarks(c.Marks, a.node, a.api.ClientConfig(api.Identity{}), a.meta)
		a.agent(a.marks.Module)
		entries = append(entries, beehive.Entry{Module: a.marks, Groups: []message.Group{linkstate.Agents}, Restart: beehive.OnFailure(beehive.Backoff{})})
	}
	if c.EdgeAPI.Enable {
		// Behind the link: at its first boot a device has nothing to serve before that. Before the kubelet: rules and names are there when its pods start.
		more, err := a.newServices()
		if err != nil {
			return err
		}
		entries = append(entries, more...)
	}
	if c.StatusServer.Enable {
		server, err := newStatusServer(c.StatusServer, a.node, a.api.ClientConfig(api.Identity{}), a.identity, a.clock.Now, a.lastContact)
		if err != nil {
			return err
		}
		entries = append(entries, beehive.Entry{Module: server, Restart: beehive.OnFailure(beehive.Backoff{})})
	}
	if c.Edged.Enable {
		var err error
		if a.edged, err = a.newEdged(); err != nil {
			return err
		}
		// The kubelet's globals allow one run in a process: a failure ends edgecore, and systemd starts it again. Containers go on. The next module doesn't wait for
		// it: on its first boot it may have to wait for the cloud.
		entries = append(entries, beehive.Entry{Module: a.edged, Restart: beehive.Never(), StartTimeout: time.Millisecond, StopTimeout: 20 * time.Second})
	}
	if listen := a.config.Health.Listen; listen != "" {
		entries = append(entries, beehive.Entry{Module: a.newHealth(listen), Restart: beehive.OnFailure(beehive.Backoff{})})
	}
	var err error
	a.runner, err = beehive.NewRunner(beehive.Config{}, entries)
	if err != nil {
		return err
	}
	return a.registerMetrics()
}

// edgeLabel marks the Nodes of edgecore. An admission policy in manifests/ adds the role label that kubectl shows: a node may not do that itself.
const edgeLabel = "skerry.io/edge"

func (a *App) newEdged() (*edged.Module, error) {
	c := a.config.Modules.Edged
	labels := map[string]string{edgeLabel: ""}
	maps.Copy(labels, c.Labels)
	dns, domain := a.clusterDNS()
	return edged.New(edged.Config{
		ClusterDNS: dns, ClusterDomain: domain,
		NodeName: a.node, Labels: labels, RootDir: c.RootDir, NodeIP: c.NodeIP, Kubelet: c.Kubelet, ClientCAFile: a.identity.ClientCAFile(),
		CertDir: kubeletKeys(a.config), Verbosity: a.config.Log.Verbosity, Host: api.Host, Transport: a.api.RoundTripper(api.Identity{Kubelet: true}),
	})
}

// KubeletTransport answers requests to host as those of this device's kubelet, for programs that stand
// for one. edgecore itself does not use it.
func (a *App) KubeletTransport() (transport http.RoundTripper, host string) {
	return a.api.RoundTripper(api.Identity{Kubelet: true}), api.Host
}

// servers are the hosts of cloudcore: configured, or the one that the device joined.
func (a *App) servers() []string {
	if all := a.config.Modules.EdgeHub.Servers; len(all) > 0 {
		return all
	}
	host, _, err := net.SplitHostPort(a.identity.Cluster().Server)
	if err != nil {
		return nil
	}
	return []string{host}
}

func (a *App) newHub() (*hub.Hub, error) {
	c := a.config.Modules.EdgeHub
	servers := a.servers()
	if len(servers) == 0 {
		return nil, fmt.Errorf("the cluster's server %q has no host; set modules.edgeHub.servers", a.identity.Cluster().Server)
	}
	addresses := make([]string, len(servers))
	for i, s := range servers {
		addresses[i] = net.JoinHostPort(s, strconv.Itoa(c.WebSocket.Port))
	}
	a.tunnel = tunnel.New(tunnel.Config{Kubelet: a.kubelet})
	parts := map[message.Kind]hub.Part{topic.KindStream: a.tunnel}
	if a.site != nil {
		parts[topic.KindSite] = a.site
	}
	return hub.New(hub.Config{
		Servers: addresses, Dialer: a.dialer, Epochs: a.store, Alive: a.meta.KubeletAlive, Version: version.Skerry(), BootID: bootID(),
		Keepalive: c.Keepalive.Duration, BackoffMin: c.BackoffMin.Duration, BackoffMax: c.BackoffMax.Duration,
		Trust: a.identity,
		Parts: parts,
	})
}

// kubelet is where the kubelet's own server is; "" without one.
func (a *App) kubelet() string {
	if a.edged == nil {
		return ""
	}
	return a.edged.Server()
}

func newDialer(c edgeconfig.EdgeHub, identity *join.Identity) (link.Dialer, error) {
	bounds := link.Default().OfEdge()
	bounds.Keepalive, bounds.IdleTimeout = c.Keepalive.Duration, c.IdleTimeout.Duration
	table := topic.NewTable().Receiving(topic.Down, topic.DownBounds())
	ws, err := wslink.NewDialer(wslink.DialConfig{Link: bounds, TLS: identity.TLS(), Table: table, Proxy: http.ProxyFromEnvironment})
	if err != nil {
		return nil, err
	}
	quic, err := quiclink.NewDialer(quiclink.DialConfig{Link: bounds, TLS: identity.TLS(), Table: table})
	if err != nil {
		return nil, err
	}
	overWS, overQUIC := atPort{ws, c.WebSocket.Port}, atPort{quic, c.QUIC.Port}
	switch c.Transport {
	case "websocket":
		return overWS, nil
	case "quic":
		return overQUIC, nil
	}
	return link.Auto(overQUIC, overWS), nil
}

// atPort dials hosts at the port of one transport, whichever port the hub names: a server is one host with a port for each transport.
type atPort struct {
	dialer link.Dialer
	port   int
}

func (d atPort) Dial(ctx context.Context, address string) (link.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("dialling %q: %w", address, err)
	}
	return d.dialer.Dial(ctx, net.JoinHostPort(host, strconv.Itoa(d.port)))
}

// bootID tells one boot of the device from another (proc(5)).
func bootID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
}

// Run starts the parts in order and serves until ctx ends or one of them fails for good.
func (a *App) Run(ctx context.Context) error {
	log := klog.FromContext(ctx)
	log.Info("edgecore starts", "version", version.Skerry(), "kubernetes", version.Kubernetes(), "node", a.node)
	if !a.config.Modules.VIP.Enable {
		// The module may have served addresses before it was switched off.
		if err := clearVIPs(ctx, a.config); err != nil {
			log.Error(err, "Removing virtual IPs of a module that is switched off now failed")
		}
	}
	if !a.config.Modules.Marks.Enable {
		if err := clearMarks(ctx); err != nil {
			log.Error(err, "Removing the rules of a module that is switched off now failed")
		}
	}
	err := a.runner.Run(ctx)
	if closeErr := a.store.Close(); closeErr != nil {
		err = errors.Join(err, fmt.Errorf("closing the store: %w", closeErr))
	}
	log.Info("edgecore has stopped; containers go on")
	return err
}

func (a *App) registerMetrics() error {
	all := []prometheus.Collector{collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), busCollector{a.runner}, a.api.Metrics()}
	if a.hub != nil {
		all = append(all, a.hub, a.tunnel)
	}
	if a.routes != nil {
		all = append(all, a.routes)
	}
	if a.vips != nil {
		all = append(all, a.vips)
	}
	if a.drain != nil {
		all = append(all, a.drain)
	}
	if a.marks != nil {
		all = append(all, a.marks)
	}
	for _, c := range all {
		if err := a.metrics.Register(c); err != nil {
			return fmt.Errorf("registering metrics: %w", err)
		}
	}
	return nil
}
