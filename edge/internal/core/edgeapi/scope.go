package edgeapi

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/client-go/kubernetes/scheme"
)

// scopes makes the handlers' RequestScope of each resource and keeps it. Bounded by the number of
// resources that were asked for and have a known kind.
type scopes struct {
	discovery *discovery
	mu        *sync.Mutex
	known     map[schema.GroupVersionResource]*handlers.RequestScope
}

func newScopes(d *discovery) scopes {
	return scopes{discovery: d, mu: &sync.Mutex{}, known: map[schema.GroupVersionResource]*handlers.RequestScope{}}
}

// of returns the scope of a resource. A resource without a known kind is served with a list
// of kind List: its items name their kinds themselves.
func (s scopes) of(ctx context.Context, resource schema.GroupVersionResource) *handlers.RequestScope {
	s.mu.Lock()
	scope, ok := s.known[resource]
	s.mu.Unlock()
	if ok {
		return scope
	}
	kind, known := s.discovery.kind(ctx, resource)
	if !known {
		return newScope(resource, resource.GroupVersion().WithKind(""))
	}
	scope = newScope(resource, resource.GroupVersion().WithKind(kind))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known[resource] = scope
	return scope
}

func newScope(resource schema.GroupVersionResource, kind schema.GroupVersionKind) *handlers.RequestScope {
	scope := &handlers.RequestScope{
		Namer:               handlers.ContextBasedNaming{Namer: meta.NewAccessor()},
		Serializer:          codecs,
		ParameterCodec:      scheme.ParameterCodec,
		Creater:             scheme.Scheme,
		Convertor:           convertor{scheme.Scheme},
		Defaulter:           noDefaults{},
		Typer:               scheme.Scheme,
		UnsafeConvertor:     convertor{scheme.Scheme},
		TableConvertor:      tables{resource: resource.GroupResource()},
		Resource:            resource,
		Kind:                kind,
		MetaGroupVersion:    metav1.SchemeGroupVersion,
		HubGroupVersion:     kind.GroupVersion(),
		MaxRequestBodyBytes: maxBody,
	}
	if !scheme.Scheme.Recognizes(kind) {
		scope.Serializer = jsonCodecs
		scope.StandardSerializers = jsonCodecs.SupportedMediaTypes()
		scope.Convertor = asIs{}
		scope.UnsafeConvertor = asIs{}
		scope.TableConvertor = rest.NewDefaultTableConvertor(resource.GroupResource())
	}
	return scope
}

// convertor leaves field labels unchanged: they are validated where they are used (checkFields).
type convertor struct{ *runtime.Scheme }

func (convertor) ConvertFieldLabel(_ schema.GroupVersionKind, label, value string) (string, string, error) {
	return label, value, nil
}

// asIs is the convertor of kinds without a Go type.
type asIs struct{}

func (asIs) Convert(in, out, context any) error {
	return fmt.Errorf("no conversion from %T to %T", in, out)
}

func (asIs) ConvertToVersion(in runtime.Object, _ runtime.GroupVersioner) (runtime.Object, error) {
	return in, nil
}

func (asIs) ConvertFieldLabel(_ schema.GroupVersionKind, label, value string) (string, string, error) {
	return label, value, nil
}

type noDefaults struct{}

func (noDefaults) Default(runtime.Object) {}

// newObject and newList make empty values of a scope's kind.
func newObject(kind schema.GroupVersionKind) runtime.Object {
	if o, err := scheme.Scheme.New(kind); err == nil {
		return o
	}
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(kind)
	return u
}

func newList(kind schema.GroupVersionKind) runtime.Object {
	kind.Kind += "List"
	if o, err := scheme.Scheme.New(kind); err == nil {
		return o
	}
	u := &unstructured.UnstructuredList{}
	u.SetGroupVersionKind(kind)
	return u
}
