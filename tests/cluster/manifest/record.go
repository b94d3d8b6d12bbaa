package manifest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
)

// A Record is a file with the objects of earlier applies. Applying the same objects again costs
// kube-apiserver the validation of each CRD and policy, 0.6 s of a processor; comparing their
// metadata costs a list of each resource.
type Record struct {
	// File is where the record is kept. Without it everything is applied.
	File string
	// Inputs identifies what the objects are built from: a record of other inputs isn't used.
	Inputs string
}

type contents struct {
	Inputs  string    `json:"inputs"`
	Applied []Applied `json:"applied"`
}

// Apply is the function Apply for the objects that changed since the record was written: all that
// build returns, if there is no record of these inputs.
func (r Record) Apply(ctx context.Context, cfg *rest.Config, build func() ([]*unstructured.Unstructured, error)) error {
	before, err := r.read()
	if err != nil {
		return err
	}
	var objects []*unstructured.Unstructured
	if before.Inputs != r.Inputs || len(before.Applied) == 0 {
		before = contents{Inputs: r.Inputs}
		objects, err = build()
	} else {
		objects, err = changed(ctx, cfg, before.Applied)
	}
	if err != nil || len(objects) == 0 {
		return err
	}
	done, err := apply(ctx, cfg, objects)
	if err != nil {
		return err
	}
	return r.write(before, done)
}

// changed returns the objects that are gone, or that somebody changed.
func changed(ctx context.Context, cfg *rest.Config, all []Applied) ([]*unstructured.Unstructured, error) {
	client, err := metadata.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("making a client of metadata: %w", err)
	}
	live := map[schema.GroupVersionResource]map[types.NamespacedName]state{}
	var objects []*unstructured.Unstructured
	for _, a := range all {
		if live[a.Resource] == nil {
			if live[a.Resource], err = list(ctx, client, a.Resource); err != nil {
				return nil, err
			}
		}
		key := types.NamespacedName{Namespace: a.Object.GetNamespace(), Name: a.Object.GetName()}
		if !reflect.DeepEqual(live[a.Resource][key], a.Left) {
			objects = append(objects, a.Object)
		}
	}
	return objects, nil
}

func list(ctx context.Context, client metadata.Interface, resource schema.GroupVersionResource) (map[types.NamespacedName]state, error) {
	states := map[types.NamespacedName]state{}
	found, err := client.Resource(resource).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) { // with its CRD
		return states, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing %s: %w", resource.Resource, err)
	}
	for _, o := range found.Items {
		states[types.NamespacedName{Namespace: o.Namespace, Name: o.Name}] = stateOf(&o)
	}
	return states, nil
}

func (r Record) read() (contents, error) {
	var c contents
	if r.File == "" {
		return c, nil
	}
	raw, err := os.ReadFile(r.File)
	if errors.Is(err, os.ErrNotExist) {
		return c, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &c)
	}
	if err != nil {
		return c, fmt.Errorf("reading the record of applied objects: %w", err)
	}
	return c, nil
}

// write replaces the objects of a record by those that were applied now.
func (r Record) write(c contents, done []Applied) error {
	if r.File == "" {
		return nil
	}
next:
	for _, d := range done {
		for i, a := range c.Applied {
			if a.Object == d.Object {
				c.Applied[i] = d
				continue next
			}
		}
		c.Applied = append(c.Applied, d)
	}
	raw, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("encoding the record of applied objects: %w", err)
	}
	if err := os.WriteFile(r.File+".new", raw, 0o644); err != nil {
		return fmt.Errorf("writing the record of applied objects: %w", err)
	}
	if err := os.Rename(r.File+".new", r.File); err != nil {
		return fmt.Errorf("replacing the record of applied objects: %w", err)
	}
	return nil
}
