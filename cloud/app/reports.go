package app

import (
	"context"

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

// controllersWing merges the reports of devices, runs the controllers of the objects that they are
// about, and sends devices their sites.
type controllersWing struct {
	wing
	sites *site.Sites
}

func newControllers(c *cluster, trust *trustWing, core *coreWing) *controllersWing {
	policy := vip.Policy{ReservedVRIDs: c.config.VIP.ReservedVRIDs, Quarantine: c.config.VIP.Quarantine.Duration, Hosts: c.config.Advertise}
	merged := newReporting(c.client, core.informers, policy)
	merged.Limit(reportQuota(c.config.Relay))
	sites := site.New(trust.revocations)
	core.publisher.Project(sites)
	sites.OnChange(core.publisher.SitesChanged)
	w := &controllersWing{sites: sites}
	w.entries = append(w.entries,
		restarted("reports", merged.Run),
		restarted("controllers", func(ctx context.Context) error { // on one replica at a time
			return lead(ctx, c.client.Kubernetes(), "cloudcore", c.instance, merged.runControllers)
		}),
		restarted("sites", func(ctx context.Context) error { return runSites(ctx, core.informers, sites) }))
	w.collectors = append(w.collectors, merged, merged.vips, merged.apps)
	w.carried = append(w.carried, merged, sites)
	return w
}

// runSites sends devices their sites, on every replica: each has sessions.
func runSites(ctx context.Context, informers *kube.Informers, sites *site.Sites) error {
	nodes, release := informers.Open(corev1.SchemeGroupVersion.WithResource("nodes"))
	defer release()
	pools, release := informers.Open(v1alpha1.Resource(v1alpha1.NodePools))
	defer release()
	return sites.Run(ctx, nodes, pools)
}

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
