// Package manifest builds kustomize directories and applies objects to a cluster, as `kubectl apply
// --server-side -k` does.
//
// It is stateless. Its functions may be called from any goroutine.
package manifest

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
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

// Sum returns a digest of all files below directories of the repository, which are given relative
// to its root.
func Sum(root string, dirs ...string) (string, error) {
	sum := sha256.New()
	for _, dir := range dirs {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, e fs.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() {
				return err
			}
			raw, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			fmt.Fprintf(sum, "%s %d\n", path, len(raw))
			sum.Write(raw)
			return nil
		})
		if err != nil {
			return "", fmt.Errorf("reading the files of %s: %w", dir, err)
		}
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
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
	_, err := apply(ctx, cfg, objects)
	return err
}

// Applied is one object of a record.
type Applied struct {
	Resource schema.GroupVersionResource `json:"resource"`
	Object   *unstructured.Unstructured  `json:"object"` // as applied
	Left     state                       `json:"left"`   // as kube-apiserver had it then
}

// A state changes whenever somebody changes an object's desired state.
type state struct {
	UID types.UID `json:"uid"`
	// Revision is the resource version of objects without a generation.
	Revision    string            `json:"revision,omitempty"`
	Generation  int64             `json:"generation,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Deleted     bool              `json:"deleted,omitempty"`
}

func stateOf(o metav1.Object) state {
	s := state{UID: o.GetUID(), Deleted: o.GetDeletionTimestamp() != nil}
	if s.Generation = o.GetGeneration(); s.Generation == 0 {
		s.Revision = o.GetResourceVersion()
		return s
	}
	if s.Labels = o.GetLabels(); len(s.Labels) == 0 {
		s.Labels = nil
	}
	if s.Annotations = o.GetAnnotations(); len(s.Annotations) == 0 {
		s.Annotations = nil
	}
	return s
}

// apply returns the objects as kube-apiserver has them then.
func apply(ctx context.Context, cfg *rest.Config, objects []*unstructured.Unstructured) ([]Applied, error) {
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	found, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("making a client for discovery: %w", err)
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(found))
	all := make([]Applied, 0, len(objects))
	for _, o := range objects {
		var last error
		var one Applied
		err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
			one, last = applyOne(ctx, client, mapper, o)
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
			return all, fmt.Errorf("applying %s %s: %w", o.GetKind(), o.GetName(), last)
		}
		all = append(all, one)
	}
	return all, nil
}

func applyOne(ctx context.Context, client dynamic.Interface, mapper meta.RESTMapper, o *unstructured.Unstructured) (Applied, error) {
	kind := o.GroupVersionKind()
	mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return Applied{}, err
	}
	var target dynamic.ResourceInterface = client.Resource(mapping.Resource)
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		target = client.Resource(mapping.Resource).Namespace(o.GetNamespace())
	}
	live, err := target.Apply(ctx, o.GetName(), o, metav1.ApplyOptions{FieldManager: "skerry-trial", Force: true})
	if err != nil {
		return Applied{}, err
	}
	return Applied{Resource: mapping.Resource, Object: o, Left: stateOf(live)}, nil
}
