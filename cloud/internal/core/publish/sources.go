package publish

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
)

// Collections are shared copies of kube-apiserver's, followed with cloudcore's own rights.
type Collections interface {
	Open(resource schema.GroupVersionResource) (store *kube.Store, release func())
	// Followable gives the reason a collection can't be followed (refused), or that there is no
	// answer (err).
	Followable(ctx context.Context, resource schema.GroupVersionResource) (refused, err error)
	// CatchUp calls done once the copy is no older than version.
	CatchUp(resource schema.GroupVersionResource, version uint64, done func()) (cancel func())
}

// ObjectWatches are objects that are watched one by one, as the node that needs them.
type ObjectWatches interface {
	Serves(ref kube.Ref) bool
	Watch(ref kube.Ref, node types.NodeName, changed func(kube.ObjectState)) kube.ObjectWatch
}

// Access asks Kubernetes which objects a node may see.
type Access interface {
	Allowed(ctx context.Context, node types.NodeName, at kube.Attributes) (kube.Decision, error)
	Review(ctx context.Context, node types.NodeName, at kube.Attributes) (kube.Decision, error)
}
