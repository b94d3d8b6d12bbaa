package kube

import "k8s.io/apimachinery/pkg/runtime/schema"

// BuiltIn reports whether a resource is encoded as protobuf.
func BuiltIn(gvr schema.GroupVersionResource) bool {
	_, ok := newCatalog().kind(gvr)
	return ok
}
