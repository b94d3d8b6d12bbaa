package app

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/cloud/internal/access/applogs"
	"github.com/skerry-io/skerry/cloud/internal/access/nodemetrics"
	"github.com/skerry-io/skerry/cloud/internal/controllers/clusterinfo"
	"github.com/skerry-io/skerry/cloud/internal/controllers/site"
	"github.com/skerry-io/skerry/cloud/internal/controllers/vip"
	"github.com/skerry-io/skerry/cloud/internal/core/cloudhub"
	"github.com/skerry-io/skerry/cloud/internal/core/config"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/cloud/internal/core/otlp"
	"github.com/skerry-io/skerry/cloud/internal/core/publish"
	"github.com/skerry-io/skerry/cloud/internal/core/relay"
	"github.com/skerry-io/skerry/cloud/internal/trust/join"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/health"
	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/common/recovery"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/common/version"
)

// New connects to kube-apiserver, reads or makes the CA, and opens the listeners. It serves no
// connection yet.
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
	a.access = kube.NewAccess(a.client.Kubernetes())
	if err := a.identity(ctx); err != nil {
		return nil, err
	}
	if err := a.ports.open(ctx, cfg, a.ca, pki.ServerTLS(pki.Server{Certificate: a.serving.Certificate, ClientCAs: a.clientCA.Wait})); err != nil {
		return nil, err
	}
	return a, a.assemble()
}

// A part is a line of the wiring: modules that are there together or not at all.
type part struct {
	on   bool
	make func() ([]beehive.Entry, error)
}

// wiring lists cloudcore's parts, in the order in which they start. A part is made when those above
// it have been.
func (a *App) wiring() []part {
	c, p := a.config, &a.ports
	return []part{
		{true, a.trustParts},
		{true, a.informerParts},
		{true, a.publishParts},
		{true, a.relayParts},
		{a.metricsTaken(), a.nodeMetricsParts},
		{true, a.reportParts},
		{true, a.siteParts},
		{true, a.artefactParts},
		// Made before the hub, whose sessions carry its streams, and served after it.
		{p.tunnel != nil, a.newTunnel},
		{true, a.hubParts},
		{true, a.balanceParts},
		{c.Approver.Kubeconfig != "", a.approverParts},
		{p.tunnel != nil, a.tunnelParts},
		{p.endpoint != nil, a.endpointParts},
		{p.usage != nil, a.usageParts},
		{p.subresources != nil, a.subresourceParts},
		{p.usage != nil || p.subresources != nil, a.apiServiceParts},
		{p.devices != nil, a.deviceParts},
		{len(p.joins()) > 0, a.joinParts},
		{true, a.verbosityParts},
		// Last: where it answers, the ports above are served.
		{c.Health.Listen != "", a.healthParts},
	}
}

// assemble makes the parts.
func (a *App) assemble() error {
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
	var err error
	if a.runner, err = beehive.NewRunner(beehive.Config{}, entries); err != nil {
		return err
	}
	all := []prometheus.Collector{collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), recovery.Metric()}
	for _, c := range append(all, a.collectors...) {
		if err := a.metrics.Register(c); err != nil {
			return fmt.Errorf("registering metrics: %w", err)
		}
	}
	return nil
}

func (a *App) trustParts() ([]beehive.Entry, error) {
	return []beehive.Entry{restarted("client-ca", a.clientCA.Run), restarted("revoked", a.revoked.Run)}, nil
}

func (a *App) informerParts() (_ []beehive.Entry, err error) {
	a.informers = kube.NewInformers(a.client)
	a.informers.Change(corev1.SchemeGroupVersion.WithResource("nodes"), relay.RevealAddresses) // also of those that were hidden once and are not now
	if a.objects, err = kube.NewObjectWatches(a.client, a.access); err != nil {
		return nil, err
	}
	a.collectors = append(a.collectors, followed{a.informers, a.objects})
	return []beehive.Entry{
		restarted("informers", a.informers.Run), restarted("object-watches", a.objects.Run), restarted("access", a.access.Run), restarted("revisions", a.client.Revisions().Run),
	}, nil
}

// publishParts make the way down to devices: the publisher has no module of its own, it works in
// the sessions.
func (a *App) publishParts() ([]beehive.Entry, error) {
	a.publisher = publish.New(a.informers.Requested(), a.objects, a.access, quotas(a.config.Publish))
	a.carried = append(a.carried, a.publisher)
	a.collectors = append(a.collectors, a.publisher.Metrics())
	return nil, nil
}

// relayParts make the way up from devices.
func (a *App) relayParts() ([]beehive.Entry, error) {
	a.pods = relay.NewPods(a.informers)
	a.relay = relay.New(a.client, a.pods, a.instance)
	a.relay.Limit(relayQuotas(a.config.Relay))
	a.relay.RenewEvery(a.config.Relay.LeaseRenewal.Duration)
	// Opened for as long as cloudcore lives.
	infos, _ := a.informers.Open(v1alpha1.Resource(v1alpha1.ClusterInfos))
	nodes, _ := a.informers.Open(corev1.SchemeGroupVersion.WithResource("nodes"))
	apps, _ := a.informers.Open(v1alpha1.Resource(v1alpha1.EdgeApps))
	stats := clusterinfo.NewLease(a.client.Kubernetes(), join.Namespace, func(node string) bool { return clusterinfo.Candidate(infos, nodes, node) })
	var sink applogs.Sink
	if c := a.config.Logs; c.Endpoint != "" {
		client, err := otlp.New(otlp.Config{Field: "logs", Endpoint: c.Endpoint, CAFile: c.CAFile, TokenFile: c.TokenFile})
		if err != nil {
			return nil, err
		}
		sink = applogs.NewOTLP(client)
	}
	logs := applogs.New(sink, apps, logQuota(a.config.Logs))
	a.relay.Serve(func(ctx context.Context, node types.NodeName, q *topicpb.APIRequest) (*topicpb.APIResponse, bool) {
		if answer, ok := stats.Serve(ctx, node, q); ok {
			return answer, true
		}
		return logs.Serve(ctx, node, q)
	})
	a.carried = append(a.carried, a.relay)
	a.collectors = append(a.collectors, a.relay.Metrics(), a.relay.Nodes(a.config.Metrics.Nodes), logs)
	return []beehive.Entry{restarted("pods", a.pods.Run)}, nil
}

// metricsTaken reports whether samples of devices' metrics go anywhere; else devices are not asked
// for them.
func (a *App) metricsTaken() bool {
	return a.config.Metrics.Nodes > 0 || a.config.Metrics.Endpoint != ""
}

func (a *App) nodeMetricsParts() ([]beehive.Entry, error) {
	c := a.config.Metrics
	to := nodemetrics.Config{MaxNodes: c.Nodes}
	if c.Endpoint != "" {
		client, err := otlp.New(otlp.Config{Field: "metrics", Endpoint: c.Endpoint, CAFile: c.CAFile, TokenFile: c.TokenFile})
		if err != nil {
			return nil, err
		}
		to.Sink = nodemetrics.NewOTLP(client)
	}
	metrics := nodemetrics.New(to)
	a.carried = append(a.carried, metrics)
	a.collectors = append(a.collectors, metrics)
	return nil, nil
}

func (a *App) reportParts() ([]beehive.Entry, error) {
	policy := vip.Policy{ReservedVRIDs: a.config.VIP.ReservedVRIDs, Quarantine: a.config.VIP.Quarantine.Duration, Hosts: a.config.Advertise}
	a.reports = newReporting(a.client, a.informers, policy)
	a.reports.Limit(reportQuota(a.config.Relay))
	a.carried = append(a.carried, a.reports)
	a.collectors = append(a.collectors, a.reports, a.reports.vips, a.reports.apps)
	return []beehive.Entry{restarted("reports", a.reports.Run), restarted("controllers", a.controllers)}, nil
}

func (a *App) siteParts() ([]beehive.Entry, error) {
	a.sites = site.New(a.revocations)
	a.publisher.Project(a.sites)
	a.sites.OnChange(a.publisher.SitesChanged)
	a.carried = append(a.carried, a.sites)
	return []beehive.Entry{restarted("sites", a.runSites)}, nil
}

func (a *App) hubParts() ([]beehive.Entry, error) {
	a.hub = cloudhub.New(cloudhub.Config{
		Rescue:   []cloudhub.Part{a.rescue},
		Instance: a.instance, Version: version.Skerry(), Admission: a.revoked, SameMachine: relay.SameMachine, Trust: a.trust, MaxSessions: a.config.Hub.MaxSessions,
		MaxHandshakes: handshakesAtOnce, Streams: a.tunnel != nil, Metrics: a.metricsTaken(),
		History:   func(ctx context.Context) string { return a.history.ID(ctx) },
		Elsewhere: func() bool { return a.balance.Elsewhere() }, // both are made after the hub, before it runs
	}, a.ports.links, a.carried)
	a.collectors = append(a.collectors, a.hub)
	sessions := serving("cloudhub", a.hub.Run)
	sessions.StopTimeout = 30 * time.Second
	return []beehive.Entry{sessions}, nil
}

func (a *App) approverParts() ([]beehive.Entry, error) {
	approver, err := NewApprover(a.config.Approver.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("approver.kubeconfig: %w", err)
	}
	approver.linked = a.hub.Linked
	return []beehive.Entry{restarted("approver", approver.Run)}, nil
}

func (a *App) tunnelParts() ([]beehive.Entry, error) {
	a.collectors = append(a.collectors, a.tunnel)
	return []beehive.Entry{restarted("nodes", a.nodes.Run), serving("tunnel", a.serveTunnel)}, nil
}

func (a *App) endpointParts() ([]beehive.Entry, error) {
	return []beehive.Entry{serving("endpoint", func(ctx context.Context) error { return a.tunnel.ServeNames(ctx, a.ports.endpoint) })}, nil
}

func (a *App) usageParts() ([]beehive.Entry, error) {
	if err := a.newUsage(); err != nil {
		return nil, err
	}
	return []beehive.Entry{serving("usage", a.usage.serve)}, nil
}

func (a *App) subresourceParts() ([]beehive.Entry, error) {
	s, err := newSubresources(a.client.Kubernetes(), a.ca, a.tunnel, a.ports.subresources)
	if err != nil {
		return nil, err
	}
	return []beehive.Entry{serving("subresources", s.serve)}, nil
}

func (a *App) apiServiceParts() ([]beehive.Entry, error) {
	return []beehive.Entry{restarted("apiservices", func(ctx context.Context) error { return keepBundles(ctx, a.client.Kubernetes(), a.ca) })}, nil
}

func (a *App) deviceParts() ([]beehive.Entry, error) {
	return []beehive.Entry{serving("devices", func(ctx context.Context) error { return a.ports.devices.run(ctx, a.serving.Certificate) })}, nil
}

func (a *App) joinParts() ([]beehive.Entry, error) {
	ws, quic := a.ports.linkAddresses(a.config)
	joins := join.NewServer(join.ServerConfig{
		Client: a.client.Kubernetes(), Requester: join.RequesterFor(a.client.Config()), Verifier: join.VerifierFor(a.client.Config()), Tokens: a.tokens,
		CA: a.ca, Serving: a.serving, ClientCA: a.clientCA, WebSocket: ws, QUIC: quic,
		RenewEnded: a.config.Join.RenewEnded.Duration, AsNode: a.requestAsNode, Admit: a.revoked.Admit,
	})
	a.collectors = append(a.collectors, joins.Metrics())
	return []beehive.Entry{serving("join", func(ctx context.Context) error { return joins.Run(ctx, a.ports.joins()...) })}, nil
}

func (a *App) verbosityParts() ([]beehive.Entry, error) {
	return []beehive.Entry{restarted("verbosity", a.serveVerbosity)}, nil
}

func (a *App) healthParts() ([]beehive.Entry, error) {
	return []beehive.Entry{restarted("health", health.New(a.config.Health.Listen, a.live(), a.ready(), a.metrics).Run)}, nil
}
