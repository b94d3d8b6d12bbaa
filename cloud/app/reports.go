package app

import (
	"context"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skerry-io/skerry/cloud/internal/controllers/app"
	"github.com/skerry-io/skerry/cloud/internal/controllers/clusterinfo"
	"github.com/skerry-io/skerry/cloud/internal/controllers/controller"
	"github.com/skerry-io/skerry/cloud/internal/controllers/drain"
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

// reporting is what becomes of the reports of the edges' agents, and the controllers of the objects
// that they are about.
type reporting struct {
	*reports.Aggregator
	client    *kube.Client
	informers *kube.Informers
	vips      *vip.Controller
	apps      *app.Controller
}

func newReporting(client *kube.Client, informers *kube.Informers, policy vip.Policy) (*reporting, error) {
	vips, err := vip.NewController(client.Config(), policy)
	if err != nil {
		return nil, err
	}
	kinds := []reports.Kind{route.Kind(), vip.Kind(), drain.Kind(), marks.Kind(), app.Kind()}
	reports := reports.New(client, kinds...)
	for _, k := range kinds {
		objects, _ := informers.Open(k.Resource()) // for as long as cloudcore lives
		reports.Know(k.Resource(), objects)
	}
	return &reporting{reports, client, informers, vips, app.NewController(app.NoFencer{})}, nil
}

// decide runs what one replica does at a time.
func (r *reporting) decide(ctx context.Context) error {
	nodes, release := r.informers.Open(schema.GroupVersionResource{Version: "v1", Resource: "nodes"})
	defer release()
	pools, release := r.informers.Open(v1alpha1.Resource(v1alpha1.NodePools))
	defer release()
	vips, release := r.informers.Open(v1alpha1.Resource(v1alpha1.VirtualIPs))
	defer release()
	services, release := r.informers.Open(schema.GroupVersionResource{Version: "v1", Resource: "services"})
	defer release()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return r.Sweep(ctx, nodes) })
	g.Go(func() error {
		return controller.NewManager(r.client, r.informers).Run(ctx, route.Controller(), drain.Unknown(), rollout.Controller(), site.Offers(), r.apps.Config(), clusterinfo.Controller(join.Namespace))
	})
	g.Go(func() error {
		return r.vips.Run(ctx, vip.Stores{Services: services, Nodes: nodes, Pools: pools, VIPs: vips})
	})
	return g.Wait()
}
