// Package object is a Kubernetes object as the edge caches it: raw bytes, and the few fields that
// every reader needs.
//
// It owns decoding, encoding, the field selectors' fields and the application of patches. It is
// stateless. Its values are immutable.
package object

import (
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Ref names one object.
type Ref struct {
	Resource  schema.GroupVersionResource
	Namespace string
	Name      string
}

func (r Ref) String() string {
	if r.Namespace == "" {
		return r.Resource.GroupResource().String() + " " + r.Name
	}
	return r.Resource.GroupResource().String() + " " + r.Namespace + "/" + r.Name
}

// Object is one object. Version is the edge's own resource version: it grows with every change that
// a client at the edge can see, and is served by the edge API as metadata.resourceVersion.
// CloudVersion is kube-apiserver's.
type Object struct {
	Ref
	UID          types.UID
	Labels       Labels
	Version      uint64
	CloudVersion string
	Raw          []byte // Kubernetes protobuf ("k8s\0" envelope) for built-in types, else JSON
}

// Selection has the parameters of a list or a watch.
type Selection struct {
	Resource  schema.GroupVersionResource
	Namespace string // "" for all
	Labels    labels.Selector
	Fields    fields.Selector
}
