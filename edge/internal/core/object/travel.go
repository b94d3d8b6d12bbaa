package object

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skerry-io/skerry/common/dependency"
)

// Travelling lists the resources whose objects are delivered with the pods that refer to them.
func Travelling() []schema.GroupVersionResource { return dependency.Resources() }

// Travels reports whether r is one of Travelling.
func Travels(r schema.GroupVersionResource) bool { return slices.Contains(Travelling(), r) }
