// Package manifest builds kustomize directories and applies objects to a cluster, as `kubectl apply
// --server-side -k` does.
//
// It is stateless. Its functions may be called from any goroutine.
package manifest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// patience is how long an object waits for its dependencies: its CRD to be served, its namespace to
// be seen.
const patience = 10 * time.Second

// Build builds a kustomize directory's objects, namespaces and CRDs first.
func Build(dir string) ([]*unstructured.Unstructured, error) {
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

// Read reads YAML documents, in order.
func Read(raw []byte) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	for documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(raw))); ; {
		one, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading YAML documents: %w", err)
		}
		o := new(unstructured.Unstructured)
		if err := utilyaml.Unmarshal(one, &o.Object); err != nil {
			return nil, fmt.Errorf("reading a YAML document: %w", err)
		}
		if len(o.Object) > 0 {
			objects = append(objects, o)
		}
	}
}

// Apply applies the objects in order. Fields that others own stay theirs, unless our value differs.
func Apply(ctx context.Context, cfg *rest.Config, objects ...*unstructured.Unstructured) error {
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	found, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return fmt.Errorf("making a client for discovery: %w", err)
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(found))
	for _, o := range objects {
		var last error
		err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
			last = applyOne(ctx, client, mapper, o)
			switch {
			case meta.IsNoMatchError(last):
				mapper.Reset()
				return false, nil
			case apierrors.IsNotFound(last) || apierrors.IsConflict(last):
				return false, nil
			}
			return true, last
		})
		if last == nil {
			last = err
		}
		if last != nil {
			return fmt.Errorf("applying %s %s: %w", o.GetKind(), o.GetName(), last)
		}
	}
	return nil
}

func applyOne(ctx context.Context, client dynamic.Interface, mapper meta.RESTMapper, o *unstructured.Unstructured) error {
	kind := o.GroupVersionKind()
	mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return err
	}
	var target dynamic.ResourceInterface = client.Resource(mapping.Resource)
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		target = client.Resource(mapping.Resource).Namespace(o.GetNamespace())
	}
	_, err = target.Apply(ctx, o.GetName(), o, metav1.ApplyOptions{FieldManager: "skerry-trial", Force: true})
	return err
}
