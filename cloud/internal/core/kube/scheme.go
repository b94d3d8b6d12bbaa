package kube

import (
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
)

// catalog has the kinds that are built into Kubernetes: they are encoded as protobuf, all others as
// JSON.
type catalog struct {
	kinds  map[schema.GroupVersionResource]schema.GroupVersionKind
	protos map[schema.GroupVersion]runtime.Encoder
}

func newCatalog() *catalog {
	c := &catalog{kinds: map[schema.GroupVersionResource]schema.GroupVersionKind{}, protos: map[schema.GroupVersion]runtime.Encoder{}}
	object := reflect.TypeFor[metav1.ObjectMetaAccessor]()
	serializer := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
	for kind, t := range scheme.Scheme.AllKnownTypes() {
		if kind.Version == runtime.APIVersionInternal || strings.HasSuffix(kind.Kind, "List") || !reflect.PointerTo(t).Implements(object) {
			continue
		}
		plural, _ := meta.UnsafeGuessKindToResource(kind)
		c.kinds[plural] = kind
		if _, ok := c.protos[kind.GroupVersion()]; !ok {
			c.protos[kind.GroupVersion()] = scheme.Codecs.EncoderForVersion(serializer, kind.GroupVersion())
		}
	}
	return c
}

func (c *catalog) kind(resource schema.GroupVersionResource) (schema.GroupVersionKind, bool) {
	k, ok := c.kinds[resource]
	return k, ok
}
