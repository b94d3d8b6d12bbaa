package app

import (
	"context"

	"github.com/skerry-io/skerry/cloud/internal/controllers/app"
	"github.com/skerry-io/skerry/cloud/internal/controllers/clusterinfo"
	"github.com/skerry-io/skerry/cloud/internal/controllers/controller"
	"github.com/skerry-io/skerry/cloud/internal/controllers/drain"
	"github.com/skerry-io/skerry/cloud/internal/controllers/drain/operationset"
	"github.com/skerry-io/skerry/cloud/internal/controllers/marks"
	"github.com/skerry-io/skerry/cloud/internal/controllers/reports"
	"github.com/skerry-io/skerry/cloud/internal/controllers/rollout"
	"github.com/skerry-io/skerry/cloud/internal/controllers/route"
	"github.com/skerry-io/skerry/cloud/internal/controllers/site"
	"github.com/skerry-io/skerry/cloud/internal/controllers/vip"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/cloud/internal/trust/join"
)

// reporting merges the reports of the edges' agents, and runs the controllers of the objects that
// they are about.
type reporting struct {
	*reports.Aggregator
	client    *kube.Client
	informers *kube.Informers
	vips      *vip.Controller
	apps      *app.Controller
}

func newReporting(client *kube.Client, informers *kube.Informers, policy vip.Policy) *reporting {
	kinds := []reports.Kind{route.Kind(), vip.Kind(), drain.Kind(), marks.Kind(), app.Kind()}
	aggregator := reports.New(client, kinds...)
	for _, k := range kinds {
		objects, _ := informers.Open(k.Resource()) // for as long as cloudcore lives
		aggregator.Know(k.Resource(), objects)
	}
	return &reporting{aggregator, client, informers, vip.NewController(client, policy), app.NewController(app.NoFencer{})}
}

// controllers are those that one replica runs at a time. tests/arch holds that there are no others.
func (r *reporting) controllers() []controller.Config {
	return []controller.Config{
		route.Controller(),
		r.vips.Config(),
		r.apps.Config(),
		clusterinfo.Controller(join.Namespace),
		drain.Unknown(),
		operationset.Controller(),
		r.Sweeper(),
		drain.Expired(),
		rollout.Controller(),
		site.Offers(),
	}
}

// runControllers runs them until ctx ends.
func (r *reporting) runControllers(ctx context.Context) error {
	return controller.NewManager(r.client, r.informers).Run(ctx, r.controllers()...)
}
