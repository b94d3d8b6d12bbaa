package app

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/cloud/internal/core/balance"
	"github.com/skerry-io/skerry/cloud/internal/core/cloudhub"
	"github.com/skerry-io/skerry/cloud/internal/core/history"
	"github.com/skerry-io/skerry/cloud/internal/trust/join"
)

// youngSession is the age below which a session is not ended so that another replica serves
// its node. To its device one that ends within a minute is a failure, after which it dials
// later and later.
const youngSession = 2 * time.Minute

// newBalancer shares the hub's sessions out among the replicas; those of busy nodes end last.
func newBalancer(c *cluster, hub *cloudhub.Hub, busy func(types.NodeName) bool, ready func() error) *balance.Balancer {
	return balance.New(balance.Config{
		Leases: c.client.Kubernetes().CoordinationV1().Leases(join.Namespace), Instance: c.instance, Max: c.config.Hub.MaxSessions,
		Ready:    ready,
		Sessions: hub.Len,
		End: func(n int) int {
			return hub.EndOldest(n, youngSession, busy, "another replica has fewer devices: dial again")
		},
	})
}

// newHistory gives the cluster's history its name, by the Lease of the balancer.
func newHistory(c *cluster, hub *cloudhub.Hub) *history.Keeper {
	keeper := history.New(history.Config{
		Leases: c.client.Kubernetes().CoordinationV1().Leases(join.Namespace), Lease: balance.Lease, Replicas: balance.Prefix, Instance: balance.Key(c.instance),
		Changed: hub.EndHistories,
	})
	c.client.Revisions().OnLoss(keeper.WentBack)
	return keeper
}
