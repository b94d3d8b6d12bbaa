package campaign

import (
	"context"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

const (
	// operations, routes and vips are the resources that devices report of.
	operations = v1alpha1.NodeOperations
	routes     = v1alpha1.StaticRoutes
	vips       = v1alpha1.VirtualIPs

	// pool is the NodePool of the virtual IPs.
	pool = "campaign"
)

// A level is the state that a device has reported of an object.
type level struct {
	resource, name string
	uid            types.UID
}

// onces are the levels that a device has reported once, and must report again when the cluster's
// history is another one.
type onces struct {
	mu  sync.Mutex
	all []level
}

func (o *onces) add(l level) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all = append(o.all, l)
}

func (o *onces) list() []level {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.all)
}

// reportedResources makes clients of the resources that devices report of, and the pool of virtual
// IPs.
func reportedResources(ctx context.Context, own dynamic.Interface) (map[string]dynamic.ResourceInterface, error) {
	all := map[string]dynamic.ResourceInterface{}
	for _, r := range []string{operations, routes, vips} {
		all[r] = own.Resource(v1alpha1.Resource(r))
	}
	return all, await(ctx, "the pool of virtual IPs", func(ctx context.Context) error {
		_, err := own.Resource(v1alpha1.Resource(v1alpha1.NodePools)).Create(ctx, objectOf("NodePool", pool, map[string]any{
			"addresses": []any{"192.0.2.0/24"}, "nodeSelector": map[string]any{"matchLabels": map[string]any{v1alpha1.EdgeOwnLabel: ""}},
		}), metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
}

func objectOf(kind, name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.SchemeGroupVersion.String(), "kind": kind, "metadata": map[string]any{"name": name, "labels": map[string]any{"campaign": pool}}, "spec": spec,
	}}
}
