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

// SystemNamespace is the namespace of cloudcore and its own objects.
const SystemNamespace = "skerry-system"

// SiteAnnotation of an EndpointSlice that was made for one site is the site's name. The endpoints on the site's devices have it as their zone.
const SiteAnnotation = "skerry.io/site"

// IsEdge reports whether edgecore runs on a node with these labels.
func IsEdge(labels map[string]string) bool {
	_, role := labels[EdgeLabel]
	_, own := labels[EdgeOwnLabel]
	return role || own
}

// SchemeGroupVersion is the group and version of this package's kinds.
var SchemeGroupVersion = schema.GroupVersion{Group: Group, Version: Version}

// Resource is a resource of this group and version, by its plural name.
func Resource(plural string) schema.GroupVersionResource {
	return SchemeGroupVersion.WithResource(plural)
}

// AddToScheme makes a scheme know the kinds.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(SchemeGroupVersion, &StaticRoute{}, &StaticRouteList{}, &NodePool{}, &NodePoolList{}, &VirtualIP{}, &VirtualIPList{},
		&ServiceCollection{}, &ServiceCollectionList{}, &NodeOperation{}, &NodeOperationList{}, &NodeOperationSet{}, &NodeOperationSetList{},
		&EdgeApp{}, &EdgeAppList{}, &ClusterInfo{}, &ClusterInfoList{})
	metav1.AddToGroupVersion(s, SchemeGroupVersion)
	return nil
}
