package kube

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// idleStop is how long a collection that nobody wants any more is still followed: an edge that reconnects should not cost a new list.
const idleStop = 5 * time.Minute

// Informers follow collections, one watch for each, with cloudcore's own rights. A collection is followed from the first Open to some minutes
// after the last release.
type Informers struct {
	client  *Client
	catalog *catalog
	changes map[schema.GroupVersionResource]func(runtime.Object) // set before the first Open

	mu    sync.Mutex
	ctx   context.Context // of Run; nil while it doesn't run
	wg    sync.WaitGroup
	feeds map[schema.GroupVersionResource]*informer
}

type informer struct {
	store  *Store
	users  int
	cancel context.CancelFunc // nil while it isn't running
	idle   *time.Timer
}

// NewInformers returns Informers. They follow nothing before Run.
func NewInformers(client *Client) *Informers {
	return &Informers{
		client: client, catalog: newCatalog(), feeds: map[schema.GroupVersionResource]*informer{},
		changes: map[schema.GroupVersionResource]func(runtime.Object){},
	}
}

// Change has every object of a collection changed before anybody sees it. It is called before the first Open.
func (i *Informers) Change(resource schema.GroupVersionResource, change func(runtime.Object)) {
	i.changes[resource] = change
}

// Run follows what is open until ctx ends.
func (i *Informers) Run(ctx context.Context) error {
	i.mu.Lock()
	if i.ctx != nil {
		i.mu.Unlock()
		return fmt.Errorf("informers run already")
	}
	i.ctx = ctx
	for _, f := range i.feeds {
		i.start(f)
	}
	i.mu.Unlock()
	<-ctx.Done()
	i.mu.Lock()
	i.ctx = nil // nothing starts any more; Run may be called again
	for _, f := range i.feeds {
		f.cancel = nil
	}
	i.mu.Unlock()
	i.wg.Wait()
	return nil
}

// Open returns the store of a collection and starts to follow it if nobody else has. Call release once when done with it.
func (i *Informers) Open(resource schema.GroupVersionResource) (store *Store, release func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	f, ok := i.feeds[resource]
	if !ok {
		e := i.catalog.encoder(resource)
		e.change = i.changes[resource]
		f = &informer{store: newStore(resource, e)}
		i.feeds[resource] = f
		i.start(f)
	}
	f.users++
	if f.idle != nil {
		f.idle.Stop()
		f.idle = nil
	}
	return f.store, sync.OnceFunc(func() { i.release(resource, f) })
}

func (i *Informers) release(resource schema.GroupVersionResource, f *informer) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if f.users--; f.users > 0 {
		return
	}
	f.idle = time.AfterFunc(idleStop, func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		if f.users > 0 || i.feeds[resource] != f {
			return
		}
		delete(i.feeds, resource)
		if f.cancel != nil {
			f.cancel()
		}
	})
}

// Status is what is followed, for health and metrics.
type Status struct {
	Resource schema.GroupVersionResource
	Objects  int
	Synced   bool
	Failure  error
}

// Status lists what is followed.
func (i *Informers) Status() []Status {
	i.mu.Lock()
	stores := make([]*Store, 0, len(i.feeds))
	for _, f := range i.feeds {
		stores = append(stores, f.store)
	}
	i.mu.Unlock()
	out := make([]Status, 0, len(stores))
	for _, s := range stores {
		out = append(out, Status{Resource: s.resource, Objects: s.Len(), Synced: s.HasSynced(), Failure: s.Failure()})
	}
	return out
}

// start is called with the lock held.
func (i *Informers) start(f *informer) {
	if i.ctx == nil || i.ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithCancel(i.ctx)
	f.cancel = cancel
	i.wg.Go(func() {
		defer cancel()
		i.follow(ctx, f.store)
	})
}

func (i *Informers) follow(ctx context.Context, store *Store) {
	log := klog.FromContext(ctx).WithValues("resource", store.resource)
	lw, expected, err := i.listWatch(store)
	if err != nil {
		store.Fail(err)
		log.Error(err, "Following a collection is impossible")
		return
	}
	reflector := cache.NewReflectorWithOptions(lw, expected, sink{store, log}, cache.ReflectorOptions{
		Logger: &log, Name: "skerry/" + store.resource.Resource,
		// The default waits up to 30 s; an edge waits with us.
		Backoff: &wait.Backoff{Duration: 200 * time.Millisecond, Cap: 10 * time.Second, Steps: 20, Factor: 2, Jitter: 1},
	})
	reflector.RunWithContext(ctx)
}

// listWatch tells the store how each list or watch went: without that, an edge could never be told why it waits.
func (i *Informers) listWatch(store *Store) (cache.ListerWatcher, any, error) {
	resource := store.resource
	note := func(err error) error {
		store.Fail(err)
		return err
	}
	kind, builtin := i.catalog.kind(resource)
	if !builtin {
		client := i.client.dynamic.Resource(resource)
		return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				list, err := client.List(ctx, o)
				return list, note(err)
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				w, err := client.Watch(ctx, o)
				return w, note(err)
			},
		}, i.client.dynamic), &unstructured.Unstructured{}, nil
	}
	client, err := i.client.rest(kind.GroupVersion())
	if err != nil {
		return nil, nil, err
	}
	example, err := scheme.Scheme.New(kind)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", kind, err)
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := scheme.Scheme.New(kind.GroupVersion().WithKind(kind.Kind + "List"))
			if err != nil {
				return nil, err
			}
			err = client.Get().Resource(resource.Resource).VersionedParams(&o, scheme.ParameterCodec).Do(ctx).Into(list)
			return list, note(err)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.Watch = true
			w, err := client.Get().Resource(resource.Resource).VersionedParams(&o, scheme.ParameterCodec).Watch(ctx)
			return w, note(err)
		},
	}, example, nil
}

// rest is a client for one group and version, on the shared connections.
func (c *Client) rest(gv schema.GroupVersion) (*rest.RESTClient, error) {
	config := rest.CopyConfig(c.own)
	config.GroupVersion = &gv
	config.APIPath = "/apis"
	if gv.Group == "" {
		config.APIPath = "/api"
	}
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	client, err := rest.RESTClientForConfigAndClient(config, c.http)
	if err != nil {
		return nil, fmt.Errorf("client for %s: %w", gv, err)
	}
	return client, nil
}

// sink is where a reflector puts what it sees.
type sink struct {
	store *Store
	log   klog.Logger
}

func (s sink) Add(obj any) error {
	o, ok := obj.(runtime.Object)
	if !ok {
		return fmt.Errorf("%s: unexpected %T", s.store.resource.Resource, obj)
	}
	return s.store.Put(o)
}

func (s sink) Update(obj any) error { return s.Add(obj) }

func (s sink) Delete(obj any) error {
	if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	s.store.Delete(Key{m.GetNamespace(), m.GetName()})
	return nil
}

func (s sink) Replace(list []any, _ string) error {
	all := make([]runtime.Object, 0, len(list))
	for _, item := range list {
		o, ok := item.(runtime.Object)
		if !ok {
			return fmt.Errorf("%s: unexpected %T", s.store.resource.Resource, item)
		}
		all = append(all, o)
	}
	return s.store.Replace(all)
}

func (s sink) Resync() error { return nil }
