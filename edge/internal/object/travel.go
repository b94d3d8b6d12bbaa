package object

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Travelling lists the resources whose objects come down with the pods that refer to them.
func Travelling() []schema.GroupVersionResource {
	return []schema.GroupVersionResource{
		{Version: "v1", Resource: "configmaps"}, {Version: "v1", Resource: "secrets"},
		{Version: "v1", Resource: "persistentvolumeclaims"}, {Version: "v1", Resource: "persistentvolumes"},
	}
}

// Travels reports whether r is one of Travelling.
func Travels(r schema.GroupVersionResource) bool { return slices.Contains(Travelling(), r) }
