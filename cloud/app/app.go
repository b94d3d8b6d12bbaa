// Package app assembles cloudcore: a constructor for each wing, and the order of their modules.
//
// It owns the start order, the Lease of the controllers, and the parts' configuration from
// cloudcore.yaml. It makes no other decisions. New reads the CA, opens the listeners and makes the
// wings, each from those that it needs; App.Run starts everything and ends when ctx does.
package app

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/cloud/internal/core/config"
	"github.com/skerry-io/skerry/common/logging"
	"github.com/skerry-io/skerry/common/version"
)

// App is cloudcore.
type App struct {
	config   *config.Config
	instance string // of this replica
	ports    *ports
	access   *accessWing  // nil until it is made
	log      *logging.Log // set by LogsTo
	runner   *beehive.Runner
	metrics  *prometheus.Registry
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
	if a.access != nil {
		a.access.close()
	}
}
