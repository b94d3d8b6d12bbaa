package app

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/cloud/internal/trust/join"
)

// newJoins makes the servers of the ports by which devices come, and the approver of their
// certificates where cloudcore runs it.
func newJoins(c *cluster, trust *trustWing, p *ports, linked func(types.NodeName) bool) (w wing, err error) {
	if kubeconfig := c.config.Approver.Kubeconfig; kubeconfig != "" {
		approver, err := NewApprover(kubeconfig)
		if err != nil {
			return w, fmt.Errorf("approver.kubeconfig: %w", err)
		}
		approver.linked = linked
		w.entries = append(w.entries, restarted("approver", approver.Run))
	}
	if p.devices != nil {
		w.entries = append(w.entries, serving("devices", func(ctx context.Context) error { return p.devices.run(ctx, trust.serving.Certificate) }))
	}
	if len(p.joins()) == 0 {
		return w, nil
	}
	client := c.client.Kubernetes()
	ws, quic := p.linkAddresses(c.config)
	joins := join.NewServer(join.ServerConfig{
		Client: client, Requester: join.RequesterFor(c.client.Config()), Verifier: join.VerifierFor(c.client.Config()), Tokens: join.NewTokens(client),
		CA: trust.ca, Serving: trust.serving, ClientCA: trust.clientCA, WebSocket: ws, QUIC: quic,
		RenewEnded: c.config.Join.RenewEnded.Duration, AsNode: trust.requestAsNode, Admit: trust.revoked.Admit,
	})
	w.collectors = append(w.collectors, joins.Metrics())
	w.entries = append(w.entries, serving("join", func(ctx context.Context) error { return joins.Run(ctx, p.joins()...) }))
	return w, nil
}
