package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/skerry-io/skerry/cloud/internal/access/aggregated"
	"github.com/skerry-io/skerry/cloud/internal/access/aggregated/subresources"
	"github.com/skerry-io/skerry/cloud/internal/access/tunnel"
	"github.com/skerry-io/skerry/cloud/internal/trust/join"
	"github.com/skerry-io/skerry/common/pki"
)

// subresourcesHost is the name by which kube-apiserver's aggregator verifies the server: that of
// the Service in manifests/subresources.
const subresourcesHost = "cloudcore-subresources." + join.Namespace + ".svc"

// subresourcesServer is subresources.skerry.io, its listener and its dependencies.
type subresourcesServer struct {
	*aggregatedServer
	server *subresources.Server
}

// newSubresources makes the server; it closes the listener when it has been served.
func newSubresources(client kubernetes.Interface, ca *join.CA, to *tunnel.Tunnel, l net.Listener) (_ *subresourcesServer, err error) {
	s := &subresourcesServer{}
	if s.aggregatedServer, err = newAggregated(client, ca, subresourcesHost, l); err != nil {
		return nil, err
	}
	s.server = subresources.New(subresources.Config{
		Client: client, User: s.proxy.User,
		Dial: func(ctx context.Context, node types.NodeName) (net.Conn, error) {
			conn, err := to.DialSubresources(ctx, node)
			if errors.Is(err, tunnel.ErrNoEdge) {
				return nil, fmt.Errorf("%w: use kubectl, which reaches it without Skerry", err)
			}
			return conn, err
		},
		DialReport: to.DialReport,
	})
	return s, nil
}

func (s *subresourcesServer) serve(ctx context.Context) error {
	return s.aggregatedServer.serve(ctx, s.server.Serve)
}

// bundleEvery is how often the APIServices are checked: the manifests may be applied again, or with
// another CA.
const bundleEvery = time.Minute

// keepBundles has kube-apiserver verify this cloudcore where it asks it for an API.
func keepBundles(ctx context.Context, client kubernetes.Interface, ca *join.CA) error {
	services := map[string]string{
		subresources.Version + "." + subresources.Group: "cloudcore-subresources",
		"v1beta1.metrics.k8s.io":                        "cloudcore-usage",
	}
	return aggregated.NewBundles(client.Discovery().RESTClient(), join.Namespace, services, pki.EncodeCertificates(ca.Trusted...)).Run(ctx, bundleEvery)
}
