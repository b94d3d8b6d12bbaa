// Package app assembles cloudcore: the wiring table, and the construction of the parts.
//
// It owns the start order, the Lease of the controllers, and the parts' configuration from
// cloudcore.yaml. It makes no other decisions. New reads the CA and opens the listeners; App.Run
// starts everything and ends when ctx does.
package app

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/cloud/internal/access/artefacts"
	"github.com/skerry-io/skerry/cloud/internal/access/rescue"
	"github.com/skerry-io/skerry/cloud/internal/access/tunnel"
	"github.com/skerry-io/skerry/cloud/internal/controllers/site"
	"github.com/skerry-io/skerry/cloud/internal/core/balance"
	"github.com/skerry-io/skerry/cloud/internal/core/cloudhub"
	"github.com/skerry-io/skerry/cloud/internal/core/config"
	"github.com/skerry-io/skerry/cloud/internal/core/history"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/cloud/internal/core/publish"
	"github.com/skerry-io/skerry/cloud/internal/core/relay"
	"github.com/skerry-io/skerry/cloud/internal/trust/join"
	"github.com/skerry-io/skerry/common/logging"
	"github.com/skerry-io/skerry/common/version"
)

// App is cloudcore.
type App struct {
	config   *config.Config
	instance string
	client   *kube.Client
	access   *kube.Access

	ca       *join.CA
	serving  *join.Serving
	clientCA *join.ClientCA
	revoked  *join.Revoked
	tokens   *join.Tokens
	ports    ports

	informers *kube.Informers
	objects   *kube.ObjectWatches
	publisher *publish.Publisher
	pods      *relay.Pods
	relay     *relay.Relay
	reports   *reporting
	sites     *site.Sites
	carried   []cloudhub.Part // the parts of the hub's sessions
	hub       *cloudhub.Hub
	balance   *balance.Balancer
	history   *history.Keeper
	nodes     *tunnel.Nodes
	tunnel    *tunnel.Tunnel // nil without a listener
	artefacts *artefacts.Server
	rescue    *rescue.Part
	usage     *usageServer // nil without a listener

	log        *logging.Log // set by LogsTo
	runner     *beehive.Runner
	metrics    *prometheus.Registry
	collectors []prometheus.Collector // of the parts
}

// Run starts the parts in order and serves until ctx ends. The edges are then sent to
// another replica.
func (a *App) Run(ctx context.Context) error {
	log := klog.FromContext(ctx)
	log.Info("Starting cloudcore", "version", version.Skerry(), "instance", a.instance, "advertise", a.config.Advertise)
	err := a.runner.Run(ctx)
	a.close()
	log.Info("Stopped cloudcore")
	return err
}

func (a *App) close() {
	a.ports.close()
	if a.usage != nil {
		a.usage.release()
	}
}
