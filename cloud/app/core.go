package app

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/cloud/internal/access/applogs"
	"github.com/skerry-io/skerry/cloud/internal/access/nodemetrics"
	"github.com/skerry-io/skerry/cloud/internal/controllers/clusterinfo"
	"github.com/skerry-io/skerry/cloud/internal/core/config"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/cloud/internal/core/otlp"
	"github.com/skerry-io/skerry/cloud/internal/core/publish"
	"github.com/skerry-io/skerry/cloud/internal/core/relay"
	"github.com/skerry-io/skerry/cloud/internal/trust/join"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// coreWing reads the cluster for devices, and writes their reports.
type coreWing struct {
	wing
	informers *kube.Informers
	publisher *publish.Publisher // has no module of its own, it works in the sessions
	relay     *relay.Relay
}

func newCore(c *cluster) (*coreWing, error) {
	informers := kube.NewInformers(c.client)
	informers.Change(corev1.SchemeGroupVersion.WithResource("nodes"), relay.RevealAddresses) // also of those that were hidden once and are not now
	objects, err := kube.NewObjectWatches(c.client, c.access)
	if err != nil {
		return nil, err
	}
	publisher := publish.New(informers.Requested(), objects, c.access, quotas(c.config.Publish))
	pods := relay.NewPods(informers)
	up := relay.New(c.client, pods, c.instance)
	up.Limit(relayQuotas(c.config.Relay))
	up.RenewEvery(c.config.Relay.LeaseRenewal.Duration)
	w := &coreWing{informers: informers, publisher: publisher, relay: up}
	w.entries = append(w.entries,
		restarted("informers", informers.Run), restarted("object-watches", objects.Run), restarted("access", c.access.Run),
		restarted("revisions", c.client.Revisions().Run), restarted("pods", pods.Run))
	w.collectors = append(w.collectors, followed{informers, objects}, publisher.Metrics(), up.Metrics(), up.Nodes(c.config.Metrics.Nodes))
	w.carried = append(w.carried, publisher, up)
	if err := w.serveRequests(c); err != nil {
		return nil, err
	}
	if metricsTaken(c.config.Metrics) {
		return w, w.takeMetrics(c.config.Metrics)
	}
	return w, nil
}

// serveRequests has the relay serve devices' requests that are not kube-apiserver's: the Lease of
// cluster statistics, and the logs of pods.
func (w *coreWing) serveRequests(c *cluster) error {
	// Opened for as long as cloudcore lives.
	infos, _ := w.informers.Open(v1alpha1.Resource(v1alpha1.ClusterInfos))
	nodes, _ := w.informers.Open(corev1.SchemeGroupVersion.WithResource("nodes"))
	apps, _ := w.informers.Open(v1alpha1.Resource(v1alpha1.EdgeApps))
	stats := clusterinfo.NewLease(c.client.Kubernetes(), join.Namespace, func(node string) bool { return clusterinfo.Candidate(infos, nodes, node) })
	var sink applogs.Sink
	if to := c.config.Logs; to.Endpoint != "" {
		client, err := otlp.New(otlp.Config{Field: "logs", Endpoint: to.Endpoint, CAFile: to.CAFile, TokenFile: to.TokenFile})
		if err != nil {
			return err
		}
		sink = applogs.NewOTLP(client)
	}
	logs := applogs.New(sink, apps, logQuota(c.config.Logs))
	w.relay.Serve(func(ctx context.Context, node types.NodeName, q *topicpb.APIRequest) (*topicpb.APIResponse, bool) {
		if answer, ok := stats.Serve(ctx, node, q); ok {
			return answer, true
		}
		return logs.Serve(ctx, node, q)
	})
	w.collectors = append(w.collectors, logs)
	return nil
}

// metricsTaken reports whether samples of devices' metrics go anywhere; else devices are not asked
// for them.
func metricsTaken(c config.Metrics) bool { return c.Nodes > 0 || c.Endpoint != "" }

func (w *coreWing) takeMetrics(c config.Metrics) error {
	to := nodemetrics.Config{MaxNodes: c.Nodes}
	if c.Endpoint != "" {
		client, err := otlp.New(otlp.Config{Field: "metrics", Endpoint: c.Endpoint, CAFile: c.CAFile, TokenFile: c.TokenFile})
		if err != nil {
			return err
		}
		to.Sink = nodemetrics.NewOTLP(client)
	}
	metrics := nodemetrics.New(to)
	w.carried = append(w.carried, metrics)
	w.collectors = append(w.collectors, metrics)
	return nil
}
