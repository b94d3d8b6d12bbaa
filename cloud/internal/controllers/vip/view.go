package vip

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// Stores are the collections that a plan is made from. All parts of cloudcore share them.
type Stores struct{ Services, Nodes, Pools, VIPs *kube.Store }

// view is what one run reads from.
type view struct {
	services *kube.Mirror[corev1.Service]
	nodes    *kube.Mirror[corev1.Node]
	pools    *kube.Mirror[v1alpha1.NodePool]
	vips     *kube.Mirror[v1alpha1.VirtualIP]
}

func newView() *view {
	return &view{
		services: kube.NewMirror(readService, nil),
		// Nodes are written every few seconds by their kubelets; few of these writes
		// concern a pool.
		nodes: kube.NewMirror(readNode, sameNode),
		pools: kube.NewMirror(readOwn[v1alpha1.NodePool], nil),
		vips:  kube.NewMirror(readOwn[v1alpha1.VirtualIP], nil),
	}
}

// follow keeps the view as the stores are until cancel is called. It returns once they are known,
// or ctx has ended.
func (v *view) follow(ctx context.Context, s Stores, changed func()) (cancel func()) {
	var cancels []func()
	cancels = append(cancels, v.services.Follow(s.Services, changed), v.nodes.Follow(s.Nodes, changed), v.pools.Follow(s.Pools, changed), v.vips.Follow(s.VIPs, changed))
	for _, store := range []*kube.Store{s.Services, s.Nodes, s.Pools, s.VIPs} {
		select {
		case <-store.Synced():
		case <-ctx.Done():
		}
	}
	return func() {
		for _, f := range cancels {
			f()
		}
	}
}

// state is a copy for the planner, which may change its pools and virtual IPs.
func (v *view) state() (s State, err error) {
	if s.Services, err = v.services.List(); err != nil {
		return s, err
	}
	if s.Nodes, err = v.nodes.List(); err != nil {
		return s, err
	}
	pools, err := v.pools.List()
	if err != nil {
		return s, err
	}
	for _, o := range pools {
		s.Pools = append(s.Pools, o.DeepCopy())
	}
	vips, err := v.vips.List()
	for _, o := range vips {
		s.VIPs = append(s.VIPs, o.DeepCopy())
	}
	return s, err
}

func readService(o *kube.Object) (*corev1.Service, error) {
	s := &corev1.Service{}
	return s, kube.FromProtobuf(o.Raw, corev1.SchemeGroupVersion.WithKind("Service"), s)
}

// readNode reads what a plan needs. Of a Node, the largest part is what its kubelet says of itself,
// and there may be thousands.
func readNode(o *kube.Object) (*corev1.Node, error) {
	n := &corev1.Node{}
	if err := kube.FromProtobuf(o.Raw, corev1.SchemeGroupVersion.WithKind("Node"), n); err != nil {
		return nil, err
	}
	out := &corev1.Node{Spec: corev1.NodeSpec{PodCIDRs: n.Spec.PodCIDRs}, Status: corev1.NodeStatus{Addresses: n.Status.Addresses}}
	out.Name, out.UID, out.ResourceVersion, out.Labels, out.DeletionTimestamp = n.Name, n.UID, n.ResourceVersion, n.Labels, n.DeletionTimestamp
	return out, nil
}

// sameNode reports whether a plan made for either is the same.
func sameNode(a, b *corev1.Node) bool {
	return labels.Equals(a.Labels, b.Labels) && slices.Equal(a.Status.Addresses, b.Status.Addresses) && slices.Equal(a.Spec.PodCIDRs, b.Spec.PodCIDRs) &&
		(a.DeletionTimestamp == nil) == (b.DeletionTimestamp == nil)
}

// readOwn reads an object of ours, whose status and version are apart: edges get neither.
func readOwn[T any, P interface {
	*T
	SetResourceVersion(string)
}](o *kube.Object) (*T, error) {
	out := new(T)
	if err := json.Unmarshal(o.Raw, out); err != nil {
		return nil, fmt.Errorf("decoding it: %w", err)
	}
	if len(o.Status) > 0 {
		status := append(append([]byte(`{"status":`), o.Status...), '}')
		if err := json.Unmarshal(status, out); err != nil {
			return nil, fmt.Errorf("decoding its status: %w", err)
		}
	}
	P(out).SetResourceVersion(o.Revision)
	return out, nil
}
