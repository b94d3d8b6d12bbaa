package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"github.com/skerry-io/skerry/tests/cluster/binary"
)

// Apply applies a kustomize directory of the repository, say "manifests/cloudcore", as the administrator. It may be repeated.
func (c *ControlPlane) Apply(t testing.TB, dir string) {
	t.Helper()
	root, err := binary.Root()
	if err != nil {
		t.Fatal(err)
	}
	objects, err := Kustomize(filepath.Join(root, dir))
	if err != nil {
		t.Fatal(err)
	}
	c.ApplyObjects(t, objects...)
}

// ApplyObjects applies objects by server-side apply, as the administrator.
func (c *ControlPlane) ApplyObjects(t testing.TB, objects ...*unstructured.Unstructured) {
	t.Helper()
	apply, err := newApplier(c.Admin())
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		if err := apply.one(t, o); err != nil {
			t.Fatal(err)
		}
	}
}

// Kustomize builds a directory's objects, namespaces and CRDs first.
func Kustomize(dir string) ([]*unstructured.Unstructured, error) {
	if _, err := os.Stat(filepath.Join(dir, "kustomization.yaml")); err != nil {
		return nil, fmt.Errorf("no kustomization: %w", err)
	}
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		return nil, fmt.Errorf("building %s: %w", dir, err)
	}
	var objects []*unstructured.Unstructured
	for _, r := range built.Resources() {
		raw, err := r.MarshalJSON()
		if err != nil {
			return nil, fmt.Errorf("encoding an object of %s: %w", dir, err)
		}
		o := new(unstructured.Unstructured)
		if err := o.UnmarshalJSON(raw); err != nil {
			return nil, fmt.Errorf("reading an object of %s: %w", dir, err)
		}
		objects = append(objects, o)
	}
	rank := func(o *unstructured.Unstructured) int {
		switch o.GetKind() {
		case "Namespace", "CustomResourceDefinition":
			return 0
		}
		return 1
	}
	slices.SortStableFunc(objects, func(a, b *unstructured.Unstructured) int { return rank(a) - rank(b) })
	return objects, nil
}

type applier struct {
	client dynamic.Interface
	mapper *restmapper.DeferredDiscoveryRESTMapper
}

func newApplier(cfg *rest.Config) (*applier, error) {
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	found, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("making a client for discovery: %w", err)
	}
	return &applier{client: client, mapper: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(found))}, nil
}

func (a *applier) one(t testing.TB, o *unstructured.Unstructured) error {
	kind := o.GroupVersionKind()
	mapping, err := a.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if meta.IsNoMatchError(err) {
		return fmt.Errorf("the cluster does not know %s yet: %w", kind, err)
	}
	if err != nil {
		return fmt.Errorf("looking up %s: %w", kind, err)
	}
	var target dynamic.ResourceInterface = a.client.Resource(mapping.Resource)
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		target = a.client.Resource(mapping.Resource).Namespace(o.GetNamespace())
	}
	if _, err := target.Apply(t.Context(), o.GetName(), o, metav1.ApplyOptions{FieldManager: "tests", Force: true}); err != nil {
		return fmt.Errorf("applying %s %s: %w", kind.Kind, o.GetName(), err)
	}
	return nil
}
