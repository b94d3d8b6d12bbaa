package app

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/cloud/internal/core/balance"
	"github.com/skerry-io/skerry/cloud/internal/core/history"
	"github.com/skerry-io/skerry/cloud/internal/trust/join"
)

// youngSession is the age below which a session is not ended so that another replica serves
// its node. To its device one that ends within a minute is a failure, after which it dials
// later and later.
const youngSession = 2 * time.Minute

// balanceParts share sessions out among the replicas.
func (a *App) balanceParts() ([]beehive.Entry, error) {
	streams := func(node types.NodeName) bool { return a.tunnel != nil && a.tunnel.Busy(node) }
	a.balance = balance.New(balance.Config{
		Leases: a.client.Kubernetes().CoordinationV1().Leases(join.Namespace), Instance: a.instance, Max: a.config.Hub.MaxSessions,
		Ready: func() error {
			for _, check := range a.ready() {
				if err := check(); err != nil {
					return err
				}
			}
			return nil
		},
		Sessions: a.hub.Len,
		End: func(n int) int {
			return a.hub.EndOldest(n, youngSession, streams, "another replica has fewer devices: dial again")
		},
	})
	a.collectors = append(a.collectors, a.balance)
	a.history = history.New(history.Config{
		Leases: a.client.Kubernetes().CoordinationV1().Leases(join.Namespace), Lease: balance.Lease, Replicas: balance.Prefix, Instance: balance.Key(a.instance),
		Changed: a.hub.EndHistories,
	})
	a.client.Revisions().OnLoss(a.history.WentBack)
	return []beehive.Entry{restarted("balance", a.balance.Run), restarted("history", a.history.Run)}, nil
}
