package agent

import (
	"context"
	"fmt"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// Selection selects the watched objects of a resource, and the handling of changes.
type Selection struct {
	Namespace string // "" for all
	// Fields and Labels are selectors as kubectl takes them.
	Fields, Labels string
	// Optional: Sync is called although this watch has not synced yet. It asks Synced.
	Optional bool
	// Wakes reports whether a change is worth a call of Sync; nil: each is.
	Wakes func() bool
}

// Objects are the objects of a watch, at any time a consistent snapshot. They are shared and must
// not be changed.
type Objects[T runtime.Object] struct{ *watch }

// watch is Objects without their type.
type watch struct {
	resource string
	optional bool
	informer cache.SharedIndexInformer
	handled  cache.ResourceEventHandlerRegistration
	wake     func()

	mu      sync.Mutex
	changed map[string]struct{} // keys, since the last Changed; bounded by the number of objects
}

// Watch opens a watch of the edge API for the length of a run; Start calls it. example has its
// type.
func Watch[T runtime.Object](r *Run, resource schema.GroupVersionResource, example T, s Selection) (*Objects[T], error) {
	client, err := clientFor(r.api, resource.GroupVersion())
	if err != nil {
		return nil, fmt.Errorf("making the client for %s: %w", resource.Resource, err)
	}
	source := cache.NewFilteredListWatchFromClient(client, resource.Resource, s.Namespace, func(o *metav1.ListOptions) {
		o.FieldSelector, o.LabelSelector = s.Fields, s.Labels
	})
	w := &watch{
		resource: resource.Resource, optional: s.Optional, wake: r.Wake, changed: map[string]struct{}{},
		informer: cache.NewSharedIndexInformer(source, example, 0, cache.Indexers{}),
	}
	// Not client-go's own handler, whose delay all watches of the process share. The reflector has
	// a back-off too.
	if err := w.informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, _ *cache.Reflector, err error) {
		klog.FromContext(ctx).V(2).Info("Watch of the edge API ended, reopening it", "resource", resource.Resource, "err", err)
	}); err != nil {
		return nil, fmt.Errorf("watching %s: %w", resource.Resource, err)
	}
	changed := func(o any) {
		if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(o); err == nil {
			w.mu.Lock()
			w.changed[key] = struct{}{}
			w.mu.Unlock()
		}
		if s.Wakes == nil || s.Wakes() {
			r.Wake()
		}
	}
	w.handled, err = w.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: changed, UpdateFunc: func(_, o any) { changed(o) }, DeleteFunc: changed,
	})
	if err != nil {
		return nil, fmt.Errorf("watching %s: %w", resource.Resource, err)
	}
	r.watches = append(r.watches, w)
	return &Objects[T]{w}, nil
}

// clientFor makes the client of a group. Kubernetes' own objects travel as protobuf, CRDs can't.
func clientFor(config *rest.Config, gv schema.GroupVersion) (*rest.RESTClient, error) {
	config = rest.CopyConfig(config)
	config.GroupVersion, config.APIPath = &gv, "/apis"
	if gv.Group == "" {
		config.APIPath = "/api"
	}
	if gv.Group != v1alpha1.Group {
		config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
		config.ContentType = runtime.ContentTypeProtobuf
		config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
		return rest.RESTClientFor(config)
	}
	own := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(own); err != nil {
		return nil, fmt.Errorf("learning the kinds of %s: %w", v1alpha1.Group, err)
	}
	config.NegotiatedSerializer = serializer.NewCodecFactory(own).WithoutConversion()
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	return rest.RESTClientFor(config)
}

// run follows the resource until ctx ends. An empty set is noticed by being synced.
func (w *watch) run(ctx context.Context) error {
	var synced sync.WaitGroup
	synced.Go(func() {
		if cache.WaitForCacheSync(ctx.Done(), w.Synced) {
			w.wake()
		}
	})
	w.informer.RunWithContext(ctx)
	synced.Wait()
	return nil
}

// Synced reports whether all cached objects of the resource have been received.
func (w *watch) Synced() bool { return w.handled.HasSynced() }

func (w *watch) missing() string {
	if w.optional || w.Synced() {
		return ""
	}
	return "the cluster's " + w.resource + " are not known yet"
}

// Changed returns the keys (NAMESPACE/NAME, or NAME) of the objects that were added, changed or
// deleted since the last call.
func (w *watch) Changed() map[string]struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	changed := w.changed
	w.changed = map[string]struct{}{}
	return changed
}

// List are all objects, in no order.
func (o *Objects[T]) List() []T {
	held := o.informer.GetStore().List()
	all := make([]T, 0, len(held))
	for _, x := range held {
		if x, ok := x.(T); ok {
			all = append(all, x)
		}
	}
	return all
}

// Get is the object of a key: NAMESPACE/NAME, or NAME.
func (o *Objects[T]) Get(key string) (object T, ok bool) {
	held, there, err := o.informer.GetStore().GetByKey(key)
	if err != nil || !there {
		return object, false
	}
	object, ok = held.(T)
	return object, ok
}

// Len is how many objects there are.
func (o *Objects[T]) Len() int { return len(o.informer.GetStore().ListKeys()) }
