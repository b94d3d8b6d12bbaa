package app

import (
	"context"
	"time"

	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/cloud/internal/controllers/site"
	"github.com/skerry-io/skerry/cloud/internal/core/balance"
	"github.com/skerry-io/skerry/cloud/internal/core/cloudhub"
	"github.com/skerry-io/skerry/cloud/internal/core/history"
	"github.com/skerry-io/skerry/cloud/internal/core/relay"
	"github.com/skerry-io/skerry/cloud/internal/trust/join"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/version"
)

// sessionsWing has the sessions of devices.
type sessionsWing struct {
	wing
	hub *cloudhub.Hub
}

// newSessions makes the hub, whose sessions have these parts. ready returns an error where devices
// should not be sent here.
func newSessions(c *cluster, trust *trustWing, access *accessWing, links []link.Listener, ready func() error, parts []cloudhub.Part) *sessionsWing {
	// Both need the hub; it calls them once it runs.
	var (
		balancer *balance.Balancer
		keeper   *history.Keeper
	)
	hub := cloudhub.New(cloudhub.Config{
		Rescue:   []cloudhub.Part{access.rescue},
		Instance: c.instance, Version: version.Skerry(), Admission: trust.revoked, SameMachine: relay.SameMachine, Trust: trust.bundle, MaxSessions: c.config.Hub.MaxSessions,
		MaxHandshakes: handshakesAtOnce, Streams: access.tunnel != nil, Metrics: metricsTaken(c.config.Metrics),
		History:   func(ctx context.Context) string { return keeper.ID(ctx) },
		Elsewhere: func() bool { return balancer.Elsewhere() },
	}, links, parts)
	balancer = newBalancer(c, hub, access.busy, ready)
	keeper = newHistory(c, hub)
	w := &sessionsWing{hub: hub}
	sessions := serving("cloudhub", hub.Run)
	sessions.StopTimeout = 30 * time.Second
	w.entries = append(w.entries, sessions, restarted("balance", balancer.Run), restarted("history", keeper.Run))
	w.collectors = append(w.collectors, hub, balancer)
	return w
}

// endRevoked ends the sessions whose certificate has been revoked.
func (w *sessionsWing) endRevoked(ctx context.Context, revoked *join.Revoked, sites *site.Sites) {
	sites.Changed()
	for _, s := range w.hub.Sessions() {
		peer, ok := w.hub.Peer(s.Node)
		if !ok {
			continue
		}
		if err := revoked.Check(s.Node, peer); err != nil {
			klog.FromContext(ctx).Info("Ended the session of a node whose certificate is revoked", "node", s.Node, "reason", err.Error())
			w.hub.Kick(s.Node, link.CloseForbidden, err.Error())
		}
	}
}
