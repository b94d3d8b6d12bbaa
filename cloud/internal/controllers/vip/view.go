package vip

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/skerry-io/skerry/cloud/internal/controllers/controller"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// view has the stores that one run reads.
type view struct {
	services *kube.Mirror[corev1.Service]
	nodes    *kube.Mirror[corev1.Node]
	pools    *kube.Mirror[v1alpha1.NodePool]
	vips     *kube.Mirror[v1alpha1.VirtualIP]
}

func newView(r *controller.Run) *view {
	core, ours := corev1.SchemeGroupVersion.WithResource, v1alpha1.Resource
	return &view{
		services: controller.Mirror(r, core("services"), controller.Of[corev1.Service](r, core("services")).Read, nil, r.Wake),
		// Nodes are written every few seconds by their kubelets; few of these writes
		// concern a pool.
		nodes: controller.Mirror(r, core("nodes"), readNode, sameNode, r.Wake),
		pools: controller.Mirror(r, ours(v1alpha1.NodePools), controller.Of[v1alpha1.NodePool](r, ours(v1alpha1.NodePools)).Read, nil, r.Wake),
		vips:  controller.Mirror(r, ours(v1alpha1.VirtualIPs), controller.Of[v1alpha1.VirtualIP](r, ours(v1alpha1.VirtualIPs)).Read, nil, r.Wake),
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

// readNode reads the fields that a plan needs. The largest part of a Node is its kubelet's report,
// and there may be thousands: its metadata are those of the shared copy.
func readNode(o *kube.Object) (*corev1.Node, error) {
	n := &corev1.Node{}
	if err := kube.FromProtobuf(o.Raw, corev1.SchemeGroupVersion.WithKind("Node"), n); err != nil {
		return nil, err
	}
	out := &corev1.Node{Spec: corev1.NodeSpec{PodCIDRs: n.Spec.PodCIDRs}, Status: corev1.NodeStatus{Addresses: n.Status.Addresses}}
	out.Name, out.UID, out.ResourceVersion, out.Labels, out.DeletionTimestamp = o.Name, o.UID, o.Revision, o.Labels, n.DeletionTimestamp
	return out, nil
}

// sameNode reports whether a plan made for either is the same.
func sameNode(a, b *corev1.Node) bool {
	return labels.Equals(a.Labels, b.Labels) && slices.Equal(a.Status.Addresses, b.Status.Addresses) && slices.Equal(a.Spec.PodCIDRs, b.Spec.PodCIDRs) &&
		(a.DeletionTimestamp == nil) == (b.DeletionTimestamp == nil)
}
