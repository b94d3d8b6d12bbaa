package object

import (
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
)

// KindFor finds the kind of one of Kubernetes' own resources. It goes through the kinds of a group
// and version: for discovery and for error messages, not for every object.
func KindFor(resource schema.GroupVersionResource) (schema.GroupVersionKind, bool) {
	gv := resource.GroupVersion()
	for name := range scheme.Scheme.KnownTypes(gv) {
		kind := gv.WithKind(name)
		if r, ok := ResourceFor(kind); ok && r == resource {
			return kind, true
		}
	}
	return schema.GroupVersionKind{}, false
}

// ResourceFor finds the resource of one of Kubernetes' own kinds.
func ResourceFor(kind schema.GroupVersionKind) (schema.GroupVersionResource, bool) {
	obj, err := scheme.Scheme.New(kind)
	if err != nil {
		return schema.GroupVersionResource{}, false
	}
	if _, err := meta.Accessor(obj); err != nil { // lists and options are kinds of a group too, but no resources
		return schema.GroupVersionResource{}, false
	}
	plural, _ := meta.UnsafeGuessKindToResource(kind) // right for every built-in kind: a test goes through them
	return plural, true
}
