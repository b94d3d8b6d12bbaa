// Package app is cloudcore put together: the wiring table, and what the parts are made of.
//
// It owns the order in which things start, the Lease of the controllers that decide, and the parts' configuration from cloudcore.yaml. It decides nothing
// else. New reads the CA and opens the listeners; Run starts everything and ends when ctx does.
package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/cloud/internal/applogs"
	"github.com/skerry-io/skerry/cloud/internal/clusterinfo"
	"github.com/skerry-io/skerry/cloud/internal/config"
	"github.com/skerry-io/skerry/cloud/internal/hub"
	"github.com/skerry-io/skerry/cloud/internal/join"
	"github.com/skerry-io/skerry/cloud/internal/kube"
	"github.com/skerry-io/skerry/cloud/internal/publish"
	"github.com/skerry-io/skerry/cloud/internal/quota"
	"github.com/skerry-io/skerry/cloud/internal/relay"
	"github.com/skerry-io/skerry/cloud/internal/site"
	"github.com/skerry-io/skerry/cloud/internal/tunnel"
	"github.com/skerry-io/skerry/cloud/internal/vip"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/health"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/link/quiclink"
	"github.com/skerry-io/skerry/common/link/wslink"
	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/common/version"
)

// startTimeout bounds each conversation with kube-apiserver before cloudcore serves.
const startTimeout = 2 * time.Minute

// App is cloudcore.
type App struct {
	config   *config.Config
	instance string
	client   *kube.Client

	ca       *join.CA
	serving  *join.Serving
	clientCA *join.ClientCA
	revoked  *join.Revoked
	tokens   *join.Tokens
	approver *Approver // nil where another process approves
	joins    *join.Server
	joining  net.Listener

	informers *kube.Informers
	objects   *kube.ObjectWatches
	access    *kube.Access
	publisher *publish.Publisher
	pods      *relay.Pods
	relay     *relay.Relay
	reports   *reporting
	sites     *site.Sites
	hub       *hub.Hub
	links     []link.Listener
	nodes     *tunnel.Nodes
	tunnel    *tunnel.Tunnel // nil without a listener
	egress    net.Listener
	byName    net.Listener // the endpoint by nodes' names; nil for none
	usage     *usageServer // nil without a listener

	subresources *subresourcesServer // nil without a listener
	devices      *devicePort         // nil without a listener

	runner  *beehive.Runner
	metrics *prometheus.Registry
}

// New connects to kube-apiserver, reads or makes the CA, and opens the listeners. Nothing is served yet.
func New(ctx context.Context, cfg *config.Config) (_ *App, err error) {
	a := &App{config: cfg, instance: instanceName(), metrics: prometheus.NewRegistry()}
	defer func() {
		if err != nil {
			a.close()
		}
	}()
	own, err := restConfig(cfg.Kubeconfig)
	if err != nil {
		return nil, err
	}
	mode := kube.Constrained
	if cfg.Impersonation == "classic" {
		mode = kube.Classic
	}
	if a.client, err = kube.NewClient(own, mode); err != nil {
		return nil, err
	}
	if err := a.identity(ctx); err != nil {
		return nil, err
	}
	if err := a.listen(ctx); err != nil {
		return nil, err
	}
	return a, a.assemble()
}

// identity reads whom edges trust, and whom cloudcore does.
func (a *App) identity(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	client := a.client.Kubernetes()
	var err error
	if a.ca, err = waitFor(ctx, "reading the CA", func(ctx context.Context) (*join.CA, error) { return join.LoadCA(ctx, client) }); err != nil {
		return err
	}
	if a.serving, err = a.ca.Serving(a.config.Advertise); err != nil {
		return err
	}
	if a.clientCA, err = join.NewClientCA(client); err != nil {
		return err
	}
	a.tokens = join.NewTokens(client)
	a.revoked = join.NewRevoked(client, func(ctx context.Context) { a.kickRevoked(ctx) })
	return nil
}

// waitFor tries until it works, a refusal that won't pass comes, or ctx ends: at a site's power-up kube-apiserver may be later than cloudcore.
// A try that is not answered is given up: a server that hangs must not hold one that would answer.
func waitFor[T any](ctx context.Context, what string, try func(context.Context) (T, error)) (T, error) {
	const tryTimeout = 5 * time.Second
	backoff := time.Second
	for {
		once, cancel := context.WithTimeout(ctx, tryTimeout)
		v, err := try(once)
		cancel()
		if err == nil {
			return v, nil
		}
		if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsNotFound(err) {
			return v, fmt.Errorf("%s: %w (are the manifests applied? `cloudcore install` prints them)", what, err)
		}
		klog.FromContext(ctx).Info("kube-apiserver does not answer yet", "doing", what, "err", err, "retryIn", backoff)
		select {
		case <-ctx.Done():
			return v, fmt.Errorf("%s: %w", what, errors.Join(err, context.Cause(ctx)))
		case <-time.After(backoff):
		}
		backoff = min(2*backoff, 10*time.Second)
	}
}

// kickRevoked ends the sessions whose certificate has been revoked.
func (a *App) kickRevoked(ctx context.Context) {
	a.sites.Changed()
	for _, s := range a.hub.Sessions() {
		session, ok := a.hub.Session(s.Node)
		if !ok {
			continue
		}
		if err := a.revoked.Check(s.Node, session.Info().Peer); err != nil {
			klog.FromContext(ctx).Info("A node was thrown out", "node", s.Node, "reason", err.Error())
			a.hub.Kick(s.Node, link.CloseForbidden, err.Error())
		}
	}
}

func (a *App) listen(ctx context.Context) error {
	secure := pki.ServerTLS(pki.Server{Certificate: a.serving.Certificate, ClientCAs: a.clientCA.Wait})
	bounds := link.Default().OfCloud()
	bounds.Keepalive, bounds.IdleTimeout = a.config.Hub.Keepalive.Duration, a.config.Hub.IdleTimeout.Duration
	table := topic.NewTable().Receiving(topic.Up, topic.UpBounds())
	if err := a.listenForLinks(ctx, secure, bounds, table); err != nil {
		return err
	}
	if at := a.config.Hub.WebSocket.Listen; at != "" {
		l, err := wslink.Listen(ctx, at, wslink.ListenConfig{Link: bounds, TLS: secure, Table: table, MaxLinks: a.config.Hub.MaxSessions})
		if err != nil {
			return fmt.Errorf("hub.websocket.listen: %w", err)
		}
		a.links = append(a.links, l)
	}
	if at := a.config.Hub.QUIC.Listen; at != "" {
		// Stateless resets tell the edges of a cloudcore that was killed at once; the key must be the same after the restart and on every replica.
		key, err := a.ca.Derive("skerry quic stateless reset")
		if err != nil {
			return err
		}
		l, err := quiclink.Listen(ctx, at, quiclink.ListenConfig{Link: bounds, TLS: secure, Table: table, MaxLinks: a.config.Hub.MaxSessions, ResetKey: &key})
		if err != nil {
			return fmt.Errorf("hub.quic.listen: %w", err)
		}
		a.links = append(a.links, l)
	}
	if at := a.config.Join.Listen; at != "" {
		l, err := net.Listen("tcp", at)
		if err != nil {
			return fmt.Errorf("join.listen: %w", err)
		}
		a.joining = l
	}
	if at := a.config.Tunnel.Listen.Listen; at != "" {
		l, err := net.Listen("tcp", at)
		if err != nil {
			return fmt.Errorf("tunnel.listen: %w", err)
		}
		a.egress = l
	}
	if at := a.config.Tunnel.Endpoint.Listen.Listen; at != "" {
		l, err := net.Listen("tcp", at)
		if err != nil {
			return fmt.Errorf("tunnel.endpoint.listen: %w", err)
		}
		a.byName = l
	}
	if at := a.config.Usage.Listen; at != "" {
		l, err := net.Listen("tcp", at)
		if err != nil {
			return fmt.Errorf("usage.listen: %w", err)
		}
		a.usage = &usageServer{listener: l}
	}
	if at := a.config.Subresources.Listen; at != "" {
		l, err := net.Listen("tcp", at)
		if err != nil {
			return fmt.Errorf("subresources.listen: %w", err)
		}
		a.subresources = &subresourcesServer{listener: l}
	}
	return nil
}

// listenForLinks opens the one port of devices, where there is one.
func (a *App) listenForLinks(ctx context.Context, secure *tls.Config, bounds link.Config, table *topic.Table) error {
	c := a.config.Devices
	if c.Listen.Listen == "" {
		return nil
	}
	var err error
	if a.devices, err = listenForDevices(c.Listen.Listen, c.Port); err != nil {
		return err
	}
	ws, err := wslink.Listen(ctx, "", wslink.ListenConfig{Link: bounds, TLS: secure, Table: table, MaxLinks: a.config.Hub.MaxSessions, Socket: a.devices.links})
	if err != nil {
		return fmt.Errorf("devices.listen: %w", err)
	}
	a.links = append(a.links, ws)
	key, err := a.ca.Derive("skerry quic stateless reset")
	if err != nil {
		return err
	}
	quic, err := quiclink.Listen(ctx, c.Listen.Listen, quiclink.ListenConfig{Link: bounds, TLS: secure, Table: table, MaxLinks: a.config.Hub.MaxSessions, ResetKey: &key})
	if err != nil {
		return fmt.Errorf("devices.listen: %w", err)
	}
	a.links = append(a.links, quic)
	return nil
}

// assemble makes the parts and their wiring.
func (a *App) assemble() error {
	client := a.client.Kubernetes()
	access := kube.NewAccess(client)
	a.access = access
	a.informers = kube.NewInformers(a.client)
	a.informers.Change(corev1.SchemeGroupVersion.WithResource("nodes"), relay.RevealAddresses) // also of those that were hidden once and are not now
	var err error
	if a.objects, err = kube.NewObjectWatches(a.client, access); err != nil {
		return err
	}
	a.publisher = publish.New(a.informers.Requested(), a.objects, access, quotas(a.config.Publish))
	a.pods = relay.NewPods(a.informers)
	a.relay = relay.New(a.client, a.pods, a.instance)
	a.relay.Limit(relayQuotas(a.config.Relay))
	infos, _ := a.informers.Open(v1alpha1.Resource(v1alpha1.ClusterInfos)) // as long as cloudcore lives, as nodes
	nodes, _ := a.informers.Open(corev1.SchemeGroupVersion.WithResource("nodes"))
	stats := clusterinfo.NewLease(client, join.Namespace, func(node string) bool { return clusterinfo.Candidate(infos, nodes, node) })
	apps, _ := a.informers.Open(v1alpha1.Resource(v1alpha1.EdgeApps))
	var sink applogs.Sink
	if c := a.config.Logs; c.Endpoint != "" {
		if sink, err = applogs.NewOTLP(applogs.OTLPConfig{Endpoint: c.Endpoint, CAFile: c.CAFile, TokenFile: c.TokenFile}); err != nil {
			return err
		}
	}
	logs := applogs.New(sink, apps, quota.Rate{PerSecond: float64(a.config.Logs.BatchesPerSecond), Burst: 4 * a.config.Logs.BatchesPerSecond})
	if err := a.metrics.Register(logs); err != nil {
		return fmt.Errorf("registering metrics: %w", err)
	}
	a.relay.Serve(func(ctx context.Context, node types.NodeName, q *topicpb.APIRequest) (*topicpb.APIResponse, bool) {
		if answer, ok := stats.Serve(ctx, node, q); ok {
			return answer, true
		}
		return logs.Serve(ctx, node, q)
	})
	policy := vip.Policy{ReservedVRIDs: a.config.VIP.ReservedVRIDs, Quarantine: a.config.VIP.Quarantine.Duration, Hosts: a.config.Advertise}
	if a.reports, err = newReporting(a.client, a.informers, policy); err != nil {
		return err
	}
	a.reports.Limit(quota.Rate{PerSecond: float64(a.config.Relay.Quotas.ReportsPerSecond), Burst: a.config.Relay.Quotas.ReportBurst})
	a.sites = site.New(a.revocations)
	a.publisher.Project(a.sites)
	a.sites.OnChange(a.publisher.SitesChanged)
	parts := []hub.Part{a.publisher, a.relay, a.reports, a.sites}
	if a.egress != nil {
		if err := a.newTunnel(access); err != nil {
			return err
		}
		parts = append(parts, a.tunnel)
	}
	a.hub = hub.New(hub.Config{
		Instance: a.instance, Version: version.Skerry(), Admission: a.revoked, Trust: a.trust, MaxSessions: a.config.Hub.MaxSessions,
		Streams: a.tunnel != nil,
	}, a.links, parts)
	if at := a.config.Approver.Kubeconfig; at != "" {
		if a.approver, err = NewApprover(at); err != nil {
			return fmt.Errorf("approver.kubeconfig: %w", err)
		}
		a.approver.linked = func(node types.NodeName) bool { _, ok := a.hub.Session(node); return ok }
	}

	again := beehive.OnFailure(beehive.Backoff{})
	entries := []beehive.Entry{
		{Module: service("client-ca", a.clientCA.Run), Restart: again},
		{Module: service("revoked", a.revoked.Run), Restart: again},
		{Module: service("informers", a.informers.Run), Restart: again},
		{Module: service("object-watches", a.objects.Run), Restart: again},
		{Module: service("access", a.access.Run), Restart: again},
		{Module: service("revisions", a.client.Revisions().Run), Restart: again},
		{Module: service("pods", a.pods.Run), Restart: again},
		{Module: service("reports", a.reports.Run), Restart: again},
		{Module: service("controllers", a.controllers), Restart: again},
		{Module: service("sites", a.runSites), Restart: again},
		// The listeners end with their modules: without them cloudcore is of no use, so it ends too, and is started again.
		{Module: service("cloudhub", a.hub.Run), Restart: beehive.Never(), StopTimeout: 30 * time.Second},
	}
	if a.approver != nil {
		entries = append(entries, beehive.Entry{Module: service("approver", a.approver.Run), Restart: again})
	}
	if a.tunnel != nil {
		if err := a.metrics.Register(a.tunnel); err != nil {
			return fmt.Errorf("registering metrics: %w", err)
		}
		entries = append(entries,
			beehive.Entry{Module: service("nodes", a.nodes.Run), Restart: again},
			beehive.Entry{Module: service("tunnel", a.serveTunnel), Restart: beehive.Never()},
		)
	}
	if a.byName != nil {
		entries = append(entries, beehive.Entry{
			Module:  service("endpoint", func(ctx context.Context) error { return a.tunnel.ServeNames(ctx, a.byName) }),
			Restart: beehive.Never(),
		})
	}
	if a.usage != nil {
		if err := a.newUsage(); err != nil {
			return err
		}
		entries = append(entries, beehive.Entry{Module: service("usage", a.serveUsage), Restart: beehive.Never()})
	}
	if a.subresources != nil {
		if err := a.subresources.prepare(client, a.ca, a.tunnel); err != nil {
			return err
		}
		entries = append(entries, beehive.Entry{Module: service("subresources", a.subresources.serve), Restart: beehive.Never()})
	}
	if a.subresources != nil || a.usage != nil {
		entries = append(entries, beehive.Entry{
			Module: service("apiservices", func(ctx context.Context) error { return keepBundles(ctx, client, a.ca) }), Restart: again,
		})
	}
	var joins []net.Listener
	ws, quic := a.advertised(a.config.Hub.WebSocket), a.advertised(a.config.Hub.QUIC)
	if a.devices != nil {
		joins = append(joins, a.devices.joins)
		ws = a.devices.addresses(a.config.Advertise)
		quic = ws
		entries = append(entries, beehive.Entry{
			Module:  service("devices", func(ctx context.Context) error { return a.devices.run(ctx, a.serving.Certificate) }),
			Restart: beehive.Never(),
		})
	}
	if a.joining != nil {
		joins = append(joins, a.joining)
	}
	if len(joins) > 0 {
		a.joins = join.NewServer(join.ServerConfig{
			Client: client, Requester: join.RequesterFor(a.client.Config()), Verifier: join.VerifierFor(a.client.Config()), Tokens: a.tokens, CA: a.ca, Serving: a.serving, ClientCA: a.clientCA,
			WebSocket: ws, QUIC: quic,
		})
		if err := a.metrics.Register(a.joins.Metrics()); err != nil {
			return fmt.Errorf("registering metrics: %w", err)
		}
		entries = append(entries, beehive.Entry{
			Module:  service("join", func(ctx context.Context) error { return a.joins.Run(ctx, joins...) }),
			Restart: beehive.Never(),
		})
	}
	if at := a.config.Health.Listen; at != "" {
		entries = append(entries, beehive.Entry{Module: service("health", health.New(at, a.live(), a.ready(), a.metrics).Run), Restart: again})
	}
	if a.runner, err = beehive.NewRunner(beehive.Config{}, entries); err != nil {
		return err
	}
	for _, c := range []prometheus.Collector{
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), a.hub, a.publisher.Metrics(), a.relay.Metrics(), a.reports,
		a.reports.vips, a.reports.apps, followed{a.informers, a.objects},
	} {
		if err := a.metrics.Register(c); err != nil {
			return fmt.Errorf("registering metrics: %w", err)
		}
	}
	return nil
}

// relayQuotas are what one node may send.
func relayQuotas(c config.Relay) relay.Quotas {
	return relay.Quotas{
		Events:   quota.Rate{PerSecond: float64(c.Quotas.EventsPerSecond), Burst: c.Quotas.EventBurst},
		Requests: quota.Rate{PerSecond: float64(c.Quotas.RequestsPerSecond), Burst: c.Quotas.RequestBurst},
		Bytes:    c.Quotas.BytesInFlight,
		CertificateRequests: quota.Rate{
			PerSecond: float64(c.Quotas.CertificateRequestsPerHour) / time.Hour.Seconds(), Burst: c.Quotas.CertificateRequestsPerHour,
		},
	}
}

// quotas are what one node may ask for.
func quotas(c config.Publish) publish.Quotas {
	return publish.Quotas{
		Interests: c.Quotas.Interests, NewInterestsPerSecond: c.Quotas.NewInterestsPerSecond, Digests: c.Quotas.Digests, SelectorBytes: c.Quotas.SelectorBytes,
	}
}

// advertised is where edges find a listener, by each of the advertised names.
func (a *App) advertised(l config.Listen) []string {
	if l.Listen == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(l.Listen)
	if err != nil {
		return nil // refused by the configuration's rules
	}
	all := make([]string, len(a.config.Advertise))
	for i, host := range a.config.Advertise {
		all[i] = net.JoinHostPort(host, port)
	}
	return all
}

// Run starts the parts in order and serves until ctx ends. The edges are then sent to another replica.
func (a *App) Run(ctx context.Context) error {
	log := klog.FromContext(ctx)
	log.Info("cloudcore starts", "version", version.Skerry(), "instance", a.instance, "advertise", a.config.Advertise)
	err := a.runner.Run(ctx)
	a.close()
	log.Info("cloudcore has stopped")
	return err
}

func (a *App) close() {
	for _, l := range a.links {
		_ = l.Close() // closed already where its module ran
	}
	if a.joining != nil {
		_ = a.joining.Close()
	}
	if a.egress != nil {
		_ = a.egress.Close()
	}
	if a.byName != nil {
		_ = a.byName.Close()
	}
	if a.subresources != nil {
		_ = a.subresources.listener.Close()
	}
	if a.devices != nil {
		a.devices.close()
	}
	if a.usage != nil {
		_ = a.usage.listener.Close()
		if a.usage.release != nil {
			a.usage.release()
		}
	}
}
