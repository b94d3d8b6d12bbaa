package kube

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skerry-io/skerry/common/dependency"
)

// The resources that pods need on their node.
var (
	Pods       = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	ConfigMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	Secrets    = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	Claims     = schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumeclaims"}
	Volumes    = schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumes"}
)

// Key names an object in its collection.
type Key struct{ Namespace, Name string }

func (k Key) String() string {
	if k.Namespace == "" {
		return k.Name
	}
	return k.Namespace + "/" + k.Name
}

// Ref names an object.
type Ref struct {
	Resource schema.GroupVersionResource
	Key
	PerNode bool // see dependency.Ref
}

// On is the ref for one node.
func (r Ref) On(node string) Ref {
	if !r.PerNode {
		return r
	}
	of := dependency.Ref{Resource: r.Resource, Name: r.Name, PerNode: true}.On(node)
	return Ref{Resource: of.Resource, Key: Key{Name: of.Name}}
}

// refsOf lists the objects that o needs on its node.
func refsOf(o runtime.Object) []Ref {
	needs := dependency.Of(o)
	if len(needs) == 0 {
		return nil
	}
	refs := make([]Ref, len(needs))
	for i, n := range needs {
		refs[i] = Ref{Resource: n.Resource, Key: Key{n.Namespace, n.Name}, PerNode: n.PerNode}
	}
	return refs
}
