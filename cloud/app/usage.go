package app

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/cloud/internal/access/aggregated/usage"
	"github.com/skerry-io/skerry/cloud/internal/access/tunnel"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/cloud/internal/trust/join"
)

const (
	// usageHost is the name by which kube-apiserver's aggregator verifies the server: that of the
	// Service in manifests/usage.
	usageHost = "cloudcore-usage." + join.Namespace + ".svc"
	// usageAccount is the account for requests to kubelets. Its token is seen by every device, so
	// its only right is to read these figures.
	usageAccount  = "cloudcore-usage"
	usageLifetime = 10 * time.Minute // the shortest that kube-apiserver gives
)

// usageServer is metrics.k8s.io, its listener and its dependencies.
type usageServer struct {
	*aggregatedServer
	usage   *usage.Usage
	release func()
}

// newUsage makes the server of metrics.k8s.io, which reads the kubelets by the tunnel.
func newUsage(c *cluster, ca *join.CA, informers *kube.Informers, by *tunnel.Tunnel, l net.Listener) (_ *usageServer, err error) {
	client := c.client.Kubernetes()
	s := &usageServer{}
	if s.aggregatedServer, err = newAggregated(client, ca, usageHost, l); err != nil {
		return nil, err
	}
	roots, err := clusterRoots(c.client.Config())
	if err != nil {
		return nil, err
	}
	nodes, releaseNodes := informers.Open(corev1.SchemeGroupVersion.WithResource("nodes"))
	pods, releasePods := informers.Open(corev1.SchemeGroupVersion.WithResource("pods"))
	s.release = func() { releaseNodes(); releasePods() }
	s.usage = usage.New(usage.Config{
		Dial: func(ctx context.Context, node types.NodeName) (net.Conn, error) {
			return by.DialKubelet(ctx, node)
		},
		Token: (&accountToken{get: func(ctx context.Context) (*authenticationv1.TokenRequest, error) {
			return requestToken(ctx, client)
		}}).current,
		Roots: func() *x509.CertPool { return roots },
		Nodes: nodes, Pods: pods,
	})
	return s, nil
}

func requestToken(ctx context.Context, client kubernetes.Interface) (*authenticationv1.TokenRequest, error) {
	seconds := int64(usageLifetime / time.Second)
	return client.CoreV1().ServiceAccounts(join.Namespace).CreateToken(ctx, usageAccount,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}, metav1.CreateOptions{})
}

// clusterRoots is the CA by which kube-apiserver is known. Kubelets' serving certificates are
// signed by the same one, unless the cluster's signer was given another.
func clusterRoots(cfg *rest.Config) (*x509.CertPool, error) {
	pem := cfg.CAData
	if len(pem) == 0 && cfg.CAFile != "" {
		var err error
		if pem, err = os.ReadFile(cfg.CAFile); err != nil {
			return nil, fmt.Errorf("reading the cluster's CA: %w", err)
		}
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, errors.New("usage.listen: kubelets can't be verified: the kubeconfig names no CA of the cluster")
	}
	return roots, nil
}

func (s *usageServer) serve(ctx context.Context) error {
	return s.aggregatedServer.serve(ctx, func(ctx context.Context, l net.Listener) error { return s.usage.Serve(ctx, l, s.proxy.Allowed) })
}

// accountToken is a token that is renewed before it expires.
type accountToken struct {
	get func(context.Context) (*authenticationv1.TokenRequest, error)

	mu    sync.Mutex // held while it is got: one request is enough
	token string
	until time.Time
}

func (a *accountToken) current(ctx context.Context) (string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	if now.Before(a.until) {
		return a.token, nil
	}
	got, err := a.get(ctx)
	if err != nil {
		return "", err
	}
	a.token = got.Status.Token
	a.until = now.Add(got.Status.ExpirationTimestamp.Sub(now) * 4 / 5)
	return a.token, nil
}
