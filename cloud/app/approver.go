package app

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/cloud/internal/trust/join"
	"github.com/skerry-io/skerry/common/version"
)

// Approver approves the certificates of devices and names which nodes cloudcore may act as. It has
// an account of its own, cloudcore-approver, so that a token stolen from cloudcore can't approve
// (docs/dev/decisions/0031-an-account-that-approves.md).
type Approver struct {
	client   kubernetes.Interface
	instance string
	linked   func(types.NodeName) bool // may be nil: the Lease of a node shows as much, a little later
}

// NewApprover makes an approver by a kubeconfig of its account; "" means the account of the pod
// that it runs in. It does not connect yet.
func NewApprover(kubeconfig string) (*Approver, error) {
	cfg, err := restConfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	cfg.UserAgent = "cloudcore-approver/" + version.Skerry()
	cfg.QPS = -1 // joins are limited at their door
	kube.BoundReads(cfg)
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("client of kube-apiserver: %w", err)
	}
	return &Approver{client: client, instance: instanceName()}, nil
}

// Run approves while it holds the Lease cloudcore-approver, until ctx ends. It waits for the Lease.
func (p *Approver) Run(ctx context.Context) error {
	klog.FromContext(ctx).Info("Starting the approver", "version", version.Skerry(), "instance", p.instance)
	return lead(ctx, p.client, "cloudcore-approver", p.instance, p.approve)
}

func (p *Approver) approve(ctx context.Context) error {
	revoked := join.NewRevoked(p.client, nil)
	approver := join.NewApprover(join.ApproverConfig{
		Client: p.client, Tokens: join.NewTokens(p.client), Revoked: revoked, Linked: p.linked,
	})
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return approver.Run(ctx) })
	g.Go(func() error { return join.NewKubeletApprover(p.client, revoked).Run(ctx) })
	return g.Wait()
}
