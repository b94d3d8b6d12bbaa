package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Group and Version are the group's name and this version of it.
const (
	Group   = "skerry.io"
	Version = "v1alpha1"
)

// Labels of Nodes.
const (
	// EdgeLabel and EdgeOwnLabel mark the nodes that edgecore runs on, either of them; their values do not matter. A node registers with the second; the role, which
	// no node may give itself, follows (manifests/cloudcore/role.yaml).
	EdgeLabel    = "node-role.kubernetes.io/edge"
	EdgeOwnLabel = "skerry.io/edge"
	// NodePoolLabel names the pool that a node belongs to.
	NodePoolLabel = "skerry.io/node-pool"
)

// SchemeGroupVersion is the group and version of this package's kinds.
var SchemeGroupVersion = schema.GroupVersion{Group: Group, Version: Version}

// Resource is a resource of this group and version, by its plural name.
func Resource(plural string) schema.GroupVersionResource {
	return SchemeGroupVersion.WithResource(plural)
}

// AddToScheme makes a scheme know the kinds.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(SchemeGroupVersion, &StaticRoute{}, &StaticRouteList{}, &NodePool{}, &NodePoolList{}, &VirtualIP{}, &VirtualIPList{},
		&ServiceCollection{}, &ServiceCollectionList{}, &NodeOperation{}, &NodeOperationList{}, &EdgeApp{}, &EdgeAppList{})
	metav1.AddToGroupVersion(s, SchemeGroupVersion)
	return nil
}
