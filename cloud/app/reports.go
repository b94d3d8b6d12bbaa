package app

import (
	"context"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

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
	"github.com/skerry-io/skerry/common/api/v1alpha1"
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

// controllers are those that one replica runs at a time.
func (r *reporting) controllers() []controller.Config {
	return []controller.Config{
		route.Controller(),
		r.vips.Config(),
		r.apps.Config(),
		clusterinfo.Controller(join.Namespace),
		drain.Unknown(),
		rollout.Controller(),
		site.Offers(),
	}
}

// decide runs the controllers, on one replica at a time.
func (r *reporting) decide(ctx context.Context) error {
	nodes, release := r.informers.Open(corev1.SchemeGroupVersion.WithResource("nodes"))
	defer release()
	pools, release := r.informers.Open(v1alpha1.Resource(v1alpha1.NodePools))
	defer release()
	operations, release := r.informers.Open(v1alpha1.Resource(v1alpha1.NodeOperations))
	defer release()
	sets, release := r.informers.Open(v1alpha1.Resource(v1alpha1.NodeOperationSets))
	defer release()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return r.Sweep(ctx, nodes) })
	g.Go(func() error { return controller.NewManager(r.client, r.informers).Run(ctx, r.controllers()...) })
	g.Go(func() error {
		return operationset.New(r.client, operationset.Stores{Sets: sets, Operations: operations, Nodes: nodes, Pools: pools}).Run(ctx)
	})
	return g.Wait()
}
