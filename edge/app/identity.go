package app

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/edge/internal/core/edgehub"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
)

// identityModule renews the certificate through the link, and passes the cloud's time to the clock.
type identityModule struct {
	*base
	client *rest.Config // of the edge API
}

func (*identityModule) Name() message.Name { return "identity" }

func (m *identityModule) Run(ctx context.Context, port *beehive.Port) error {
	client, err := kubernetes.NewForConfig(m.client)
	if err != nil {
		return fmt.Errorf("making the client for certificate requests: %w", err)
	}
	g, ctx := errgroup.WithContext(ctx)
	m.identity.Servers = func() []string { return append([]string{m.identity.Cluster().Server}, m.servers()...) }
	m.identity.Renewed = func() {
		if err := port.Send(ctx, edgehub.Name, linkstate.Renew.New(message.Resource{}, struct{}{})); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Failed to request a new link with the renewed certificate; the next link uses it")
		}
	}
	g.Go(func() error { return m.identity.Run(ctx, client.CertificatesV1().CertificateSigningRequests()) })
	g.Go(func() error {
		port.Ready()
		for {
			said, err := port.Receive(ctx)
			if err != nil {
				if ctx.Err() != nil {
					return nil
				}
				return err
			}
			if up, err := linkstate.Up.Content(said); err == nil && !up.CloudTime.IsZero() {
				m.clock.Sync(up.CloudTime)
			}
		}
	})
	return g.Wait()
}
