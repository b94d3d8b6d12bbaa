package controller

import (
	"encoding/json"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
)

// Changed handles a change of an object: old is nil for an object that is new to the controller,
// now is nil for one that was deleted. At the start of a run it is called for every object with a
// nil old, then perhaps once more for one that has changed since.
type Changed func(old, now *kube.Object)

// Own enqueues the object that has changed.
func (r *Run) Own(old, now *kube.Object) {
	if now == nil {
		now = old
	}
	r.Enqueue(now.Key)
}

// Any wakes a level loop at every change.
func (r *Run) Any(_, _ *kube.Object) { r.Wake() }

// LabelsChanged calls do where an object is new, deleted or has other labels. It is for Nodes,
// which their kubelets write every few seconds.
func LabelsChanged(do func()) Changed {
	return func(old, now *kube.Object) {
		if old == nil || now == nil || !labels.Equals(old.Labels, now.Labels) {
			do()
		}
	}
}

// ContentChanged calls do where an object is new, deleted or has changed for nodes: not where only
// its status has, of a kind whose status stays in the cloud.
func ContentChanged(do func()) Changed {
	return func(old, now *kube.Object) {
		if old == nil || now == nil || old.Sum != now.Sum {
			do()
		}
	}
}

// Collection is the shared copy of a collection, and its Kind. Objects are decoded when they are
// read; Mirror is for collections that are read whole at each change.
type Collection[T any] struct {
	*Kind[T]
	store *kube.Store
}

// Watch opens a collection for a run; changed may be nil. It is called by Config.Start.
func Watch[T any, P Object[T]](r *Run, resource schema.GroupVersionResource, changed Changed) *Collection[T] {
	return open[T, P](r, resource, changed, false)
}

// WatchOptional is Watch for a kind that the cluster may not have: the controller does not wait for
// it; Collection.Synced reports when it is known.
func WatchOptional[T any, P Object[T]](r *Run, resource schema.GroupVersionResource, changed Changed) *Collection[T] {
	return open[T, P](r, resource, changed, true)
}

func open[T any, P Object[T]](r *Run, resource schema.GroupVersionResource, changed Changed, optional bool) *Collection[T] {
	store, release := r.stores.Open(resource)
	follow := func() func() { return func() {} }
	if changed != nil {
		follow = func() func() {
			cancel := store.Observe(changed)
			store.Each(everything(), func(o *kube.Object) bool { changed(nil, o); return true })
			return cancel
		}
	}
	r.watches = append(r.watches, &watch{store, release, optional, follow})
	return &Collection[T]{Of[T, P](r, resource), store}
}

// Mirror opens a collection whose objects are decoded once for each version, by read, which keeps
// the fields that the controller needs. changed is called after a change, unless same reports that
// it does not matter; same may be nil.
func Mirror[T any](r *Run, resource schema.GroupVersionResource, read func(*kube.Object) (*T, error), same func(old, now *T) bool, changed func()) *kube.Mirror[T] {
	store, release := r.stores.Open(resource)
	m := kube.NewMirror(read, same)
	r.watches = append(r.watches, &watch{store, release, false, func() func() { return m.Follow(store, changed) }})
	return m
}

func everything() *kube.Selection {
	return &kube.Selection{Labels: labels.Everything(), Fields: fields.Everything()}
}

// Synced is closed once the whole collection is known.
func (c *Collection[T]) Synced() <-chan struct{} { return c.store.Synced() }

// HasSynced reports whether Synced is closed.
func (c *Collection[T]) HasSynced() bool { return c.store.HasSynced() }

// Get returns an object of the shared copy; nil: it does not exist.
func (c *Collection[T]) Get(key kube.Key) (*T, error) {
	o := c.store.Get(key)
	if o == nil {
		return nil, nil
	}
	return c.Read(o)
}

// Object returns an object of the shared copy as it is there, encoded; nil: it does not exist.
func (c *Collection[T]) Object(key kube.Key) *kube.Object { return c.store.Get(key) }

// Each calls f for every object, encoded, in no order, until f returns false. f must not read the
// Collection.
func (c *Collection[T]) Each(f func(*kube.Object) bool) { c.store.Each(everything(), f) }

// List returns all objects of the shared copy that can be decoded, in no order, and an error that
// names the others.
func (c *Collection[T]) List() (all []*T, err error) {
	var errs []error
	c.Each(func(o *kube.Object) bool {
		if one, err := c.Read(o); err == nil {
			all = append(all, one)
		} else {
			errs = append(errs, err)
		}
		return true
	})
	return all, errors.Join(errs...)
}

func (c *Collection[T]) keys() (all []kube.Key) {
	c.Each(func(o *kube.Object) bool { all = append(all, o.Key); return true })
	return all
}

// Read decodes an object of the shared copy, which holds the status and the resourceVersion of some
// kinds apart.
func (k *Kind[T]) Read(o *kube.Object) (*T, error) {
	into := new(T)
	if err := k.decode(o, into); err != nil {
		return nil, fmt.Errorf("reading %s %s: %w", k.kind.Kind, o.Key, err)
	}
	return into, nil
}

func (k *Kind[T]) decode(o *kube.Object, into *T) error {
	if kube.IsProtobuf(o.Raw) {
		p, ok := any(into).(interface{ Unmarshal([]byte) error })
		if !ok {
			return fmt.Errorf("%T has no protobuf", into)
		}
		return kube.FromProtobuf(o.Raw, k.kind, p)
	}
	if err := json.Unmarshal(o.Raw, into); err != nil {
		return fmt.Errorf("decoding it: %w", err)
	}
	if len(o.Status) > 0 {
		status := append(append([]byte(`{"status":`), o.Status...), '}')
		if err := json.Unmarshal(status, into); err != nil {
			return fmt.Errorf("decoding its status: %w", err)
		}
	}
	metaOf(into).SetResourceVersion(o.Revision)
	return nil
}
