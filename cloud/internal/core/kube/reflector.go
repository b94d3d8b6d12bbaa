package kube

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// followed is a collection that a reflector follows.
type followed struct {
	client   *Client
	catalog  *catalog
	store    *Store
	catchUps catchUps

	mu      sync.Mutex
	restart context.CancelFunc // ends the reflector; the next one begins with a consistent list
	broken  bool               // a call failed since the last list: its watch is not resumed
	overrun bool               // the collection was read since the reflector's list began, which may then be older than that
}

// follow keeps the store equal to kube-apiserver's collection, until ctx ends. Each reflector ends
// when the collection must be listed again.
func (f *followed) follow(ctx context.Context) {
	log := klog.FromContext(ctx).WithValues("resource", f.store.resource)
	source, expected, err := f.source()
	if err != nil {
		f.store.Fail(err)
		log.Error(err, "Failed to watch a collection, retrying")
		return
	}
	for ctx.Err() == nil {
		run, cancel := context.WithCancel(ctx)
		f.mu.Lock()
		f.restart = cancel
		f.mu.Unlock()
		reflector := cache.NewReflectorWithOptions(f.listerWatcher(source), expected, sink{f, log}, cache.ReflectorOptions{
			Logger: &log, Name: "skerry/" + f.store.resource.Resource,
			// The default waits up to 30 s; an edge waits with us.
			Backoff: &wait.Backoff{Duration: 200 * time.Millisecond, Cap: 5 * time.Second, Steps: 20, Factor: 2, Jitter: 1},
		})
		reflector.RunWithContext(run)
		cancel()
	}
}

// source is how a collection is listed and watched: typed and in protobuf, or as
// unstructured objects.
type source struct {
	list    func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch   func(context.Context, metav1.ListOptions) (watch.Interface, error)
	dynamic *dynamic.DynamicClient // nil for a typed one
}

func (f *followed) source() (*source, any, error) {
	resource := f.store.resource
	kind, builtin := f.catalog.kind(resource)
	if !builtin {
		client := f.client.dynamic.Resource(resource)
		return &source{
			list: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				list, err := client.List(ctx, o)
				if err != nil { // else a nil pointer would be no nil interface
					return nil, err
				}
				return list, nil
			},
			watch: client.Watch, dynamic: f.client.dynamic,
		}, &unstructured.Unstructured{}, nil
	}
	client, err := f.client.rest(kind.GroupVersion())
	if err != nil {
		return nil, nil, err
	}
	example, err := scheme.Scheme.New(kind)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", kind, err)
	}
	return &source{
		list: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := scheme.Scheme.New(kind.GroupVersion().WithKind(kind.Kind + "List"))
			if err != nil {
				return nil, err
			}
			err = client.Get().Resource(resource.Resource).VersionedParams(&o, scheme.ParameterCodec).Do(ctx).Into(list)
			return list, err
		},
		watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.Watch = true
			return client.Get().Resource(resource.Resource).VersionedParams(&o, scheme.ParameterCodec).Watch(ctx)
		},
	}, example, nil
}

// listerWatcher is the source as a reflector uses it. The store receives the result of each call:
// it is the reason that an edge gets while it waits.
//
// A reflector resumes its watch at the last version that it has seen, and lists at a version no
// older than that. Both wait in silence where the cluster went back in time. So a watch is not
// resumed after a call that failed, and every list but the first is consistent.
func (f *followed) listerWatcher(s *source) cache.ListerWatcher {
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			ctx, cancel := context.WithTimeout(ctx, listTimeout)
			defer cancel()
			if o.Continue == "" {
				f.listing()
				if f.store.HasSynced() {
					o.ResourceVersion, o.ResourceVersionMatch = "", ""
				}
			}
			list, err := s.list(ctx, o)
			return list, f.note(err)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			initial := o.SendInitialEvents != nil && *o.SendInitialEvents
			if initial {
				f.listing()
			}
			switch {
			case initial && f.store.HasSynced():
				o.ResourceVersion = ""
			case !initial && f.isBroken():
				return nil, apierrors.NewResourceExpired("a watch is not resumed after a call that failed")
			}
			w, err := openWatch(ctx, func(ctx context.Context) (watch.Interface, error) { return s.watch(ctx, o) })
			if f.note(err) != nil {
				return nil, err
			}
			return w, nil
		},
	}
	if s.dynamic != nil {
		return cache.ToListWatcherWithWatchListSemantics(lw, s.dynamic)
	}
	return lw
}

// note takes the error of a call.
func (f *followed) note(err error) error {
	f.store.Fail(err)
	if unanswered(err) || serverFailed(err) {
		f.mu.Lock()
		f.broken = true
		f.mu.Unlock()
	}
	f.client.revisions.Failed(err)
	return err
}

// serverFailed reports whether err is a server's failure, not its judgement of the request.
func serverFailed(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Code >= http.StatusInternalServerError
}

// listing notes that the reflector begins a list, or a watch that begins with one.
func (f *followed) listing() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.overrun = false
}

// tooLate reports whether the reflector's list, as of a version, is older than a read since it
// began: not one of a cluster that went back in time, but one that took long. Its watch continues
// from there, and its events of versions that were read are ignored. Called with the store's lock
// held.
func (f *followed) tooLate(version uint64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.overrun || version >= f.store.version {
		return false
	}
	f.store.floor = f.store.version
	return true
}

func (f *followed) isBroken() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.broken
}

// read replaces the store's content by a consistent list, unless the watch is ahead of that.
func (f *followed) read(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	s, _, err := f.source()
	if err != nil {
		return err
	}
	before := f.store.Version()
	list, err := s.list(ctx, metav1.ListOptions{})
	if f.client.revisions.Failed(err); err != nil {
		return err
	}
	m, err := meta.ListAccessor(list)
	if err != nil {
		return fmt.Errorf("%s: %w", f.store.resource.Resource, err)
	}
	all, err := meta.ExtractList(list)
	if err != nil {
		return fmt.Errorf("%s: %w", f.store.resource.Resource, err)
	}
	version := parseVersion(m.GetResourceVersion())
	if version < before { // a later read returned an older version: the cluster went back, and the watch is of a lost history
		defer f.begin()
		f.client.revisions.check()
	}
	return f.store.replace(all, version, func() bool {
		if version >= before && f.store.version > version {
			return false
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		f.overrun = true
		return true
	}, true)
}

// catchUp serves waiting callers until no caller is left.
func (f *followed) catchUp(ctx context.Context) {
	failures := 0
	for ctx.Err() == nil {
		due, wait := f.catchUps.look(f.store.Version())
		switch {
		case wait < 0:
			return
		case !due:
			sleep(ctx, wait, nil)
			continue
		}
		began := time.Now()
		err := f.read(ctx)
		if err != nil {
			failures++
			base := min(200*time.Millisecond<<min(failures, 6), 10*time.Second)
			sleep(ctx, base/2+rand.N(base/2), nil)
			continue
		}
		failures = 0
		f.catchUps.served(began)
	}
	f.catchUps.mu.Lock()
	f.catchUps.running = false
	f.catchUps.mu.Unlock()
}

// begin has the collection listed again.
func (f *followed) begin() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.restart != nil {
		f.restart()
	}
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

// sink receives a reflector's objects.
type sink struct {
	*followed
	log klog.Logger
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
	s.store.deleted(Key{m.GetNamespace(), m.GetName()}, parseVersion(m.GetResourceVersion()))
	return nil
}

func (s sink) Replace(list []any, version string) error {
	all := make([]runtime.Object, 0, len(list))
	for _, item := range list {
		o, ok := item.(runtime.Object)
		if !ok {
			return fmt.Errorf("%s: unexpected %T", s.store.resource.Resource, item)
		}
		all = append(all, o)
	}
	of := parseVersion(version)
	if err := s.store.replace(all, of, func() bool { return !s.tooLate(of) }, false); err != nil {
		return err
	}
	s.mu.Lock()
	s.broken = false
	s.mu.Unlock()
	return nil
}

// UpdateResourceVersion is called after every event, and for bookmarks.
func (s sink) UpdateResourceVersion(version string) { s.store.reached(parseVersion(version)) }

func (s sink) Resync() error { return nil }
