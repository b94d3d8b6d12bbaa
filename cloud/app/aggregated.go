package app

import (
	"context"
	"crypto/tls"
	"net"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"

	"github.com/skerry-io/skerry/cloud/internal/trust/join"
	"github.com/skerry-io/skerry/common/pki"
)

// aggregatedServer is the server side of an API that kube-apiserver's aggregator calls: its
// listener, which is closed when it has been served, a certificate, and the clients allowed.
type aggregatedServer struct {
	listener net.Listener
	serving  *join.Serving
	proxy    *join.FrontProxy
}

func newAggregated(client kubernetes.Interface, ca *join.CA, host string, l net.Listener) (*aggregatedServer, error) {
	serving, err := ca.Serving([]string{host})
	if err != nil {
		return nil, err
	}
	proxy, err := join.NewFrontProxy(client)
	if err != nil {
		return nil, err
	}
	return &aggregatedServer{l, serving, proxy}, nil
}

// serve serves the aggregator.
func (a *aggregatedServer) serve(ctx context.Context, serve func(context.Context, net.Listener) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return a.proxy.Run(ctx) })
	g.Go(func() error {
		secure := pki.ServerTLS(pki.Server{Certificate: a.serving.Certificate, Protocols: []string{"h2", "http/1.1"}, ClientCAs: a.proxy.Pool})
		return serve(ctx, tls.NewListener(a.listener, secure))
	})
	return g.Wait()
}
