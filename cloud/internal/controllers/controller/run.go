package controller

import (
	"context"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/recovery"
)

const (
	// syncPatience is the time after which a controller that waits for a collection logs that.
	syncPatience = 30 * time.Second
	// quiet is the interval within which a controller logs one failure, and the others at a higher
	// verbosity: where kube-apiserver is away every object fails.
	quiet = time.Second
)

// Client makes requests at kube-apiserver; a *kube.Client.
type Client interface {
	Do(ctx context.Context, as kube.Identity, r kube.Request) (*kube.Response, error)
	Kubernetes() kubernetes.Interface
}

// Collections opens the shared copy of a collection; a *kube.Informers.
type Collections interface {
	Open(resource schema.GroupVersionResource) (store *kube.Store, release func())
}

// Config describes a controller. Zero durations have the default given here.
type Config struct {
	// Name is the controller's name in logs.
	Name string
	// Start opens the watches of one run and returns its work. Everything that it starts ends
	// with ctx.
	Start func(ctx context.Context, r *Run) (Work, error)

	// Settle is the time between a change and the reconciliation that it causes: changes often come
	// in waves. 0.
	Settle time.Duration
	// RetryMin and RetryMax bound the delay after a failure, which doubles. 200 ms and 30 s.
	RetryMin, RetryMax time.Duration
	// Timeout bounds one reconciliation. 30 s.
	Timeout time.Duration
}

// Work is a controller's function and how it is called.
type Work struct {
	reconcile func(ctx context.Context, key kube.Key) (again time.Duration, err error)
	workers   int
	level     bool
}

// Level calls sync when the watches have synced, after every change, after the duration that the
// last call returned unless that is 0, and after a failure. One call runs at a time.
func Level(sync func(ctx context.Context) (again time.Duration, err error)) Work {
	return Work{
		reconcile: func(ctx context.Context, _ kube.Key) (time.Duration, error) { return sync(ctx) },
		workers:   1, level: true,
	}
}

// Keyed calls reconcile likewise, for each key that was enqueued. Up to workers calls run at a
// time, of different keys.
func Keyed(workers int, reconcile func(ctx context.Context, key kube.Key) (again time.Duration, err error)) Work {
	return Work{reconcile: reconcile, workers: workers}
}

// Run is one run of a controller, between the gain and the loss of leadership.
type Run struct {
	config   Config
	client   Client
	stores   Collections
	recorder record.EventRecorder
	queue    workqueue.TypedRateLimitingInterface[item]
	level    bool // set before anything is enqueued

	// Of Start.
	watches   []*watch
	factories []informers.SharedInformerFactory
	tasks     []func(ctx context.Context)

	mu     sync.Mutex
	logged time.Time // of the last failure
}

// item is an entry of the queue: a key, or all keys of a collection.
type item struct {
	all lister
	key kube.Key
}

// lister is a collection whose objects can be enqueued: a *Collection, which is comparable.
type lister interface{ keys() []kube.Key }

// watch is a store that a controller follows.
type watch struct {
	store    *kube.Store
	release  func()
	optional bool
	follow   func() (cancel func())
}

func newRun(client Client, collections Collections, recorder record.EventRecorder, c Config) *Run {
	or := func(d *time.Duration, standard time.Duration) {
		if *d == 0 {
			*d = standard
		}
	}
	or(&c.RetryMin, 200*time.Millisecond)
	or(&c.RetryMax, 30*time.Second)
	or(&c.Timeout, 30*time.Second)
	return &Run{
		config: c, client: client, stores: collections, recorder: recorder,
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[item](c.RetryMin, c.RetryMax)),
	}
}

// Kubernetes is the typed client of cloudcore itself.
func (r *Run) Kubernetes() kubernetes.Interface { return r.client.Kubernetes() }

// Wake asks for a call of a level loop.
func (r *Run) Wake() { r.Enqueue(kube.Key{}) }

// Enqueue asks for the reconciliation of an object. A level loop is called whatever the key is.
func (r *Run) Enqueue(key kube.Key) {
	if r.level {
		key = kube.Key{}
	}
	r.queue.AddAfter(item{key: key}, r.config.Settle)
}

// EnqueueAll asks for the reconciliation of every object of a *Collection. It may be called by
// handlers of changes.
func (r *Run) EnqueueAll(c lister) {
	if r.level {
		r.Wake()
		return
	}
	r.queue.Add(item{all: c})
}

// Go runs a function in a goroutine of its own once the watches have synced. It must end with ctx;
// the run waits for it.
func (r *Run) Go(f func(ctx context.Context)) { r.tasks = append(r.tasks, f) }

// Informers makes client-go's informers for objects that the shared copies lack, or have too many
// of: those of one label or name. The run starts them, waits for them and stops them.
func (r *Run) Informers(options ...informers.SharedInformerOption) informers.SharedInformerFactory {
	f := informers.NewSharedInformerFactoryWithOptions(r.client.Kubernetes(), 0, options...)
	r.factories = append(r.factories, f)
	return f
}

// run runs the controller until ctx ends.
func (r *Run) run(ctx context.Context) error {
	ctx, stop := context.WithCancel(klog.NewContext(ctx, klog.FromContext(ctx).WithValues("controller", r.config.Name)))
	defer r.queue.ShutDown()
	defer func() {
		stop()
		for _, f := range r.factories {
			f.Shutdown()
		}
		for _, w := range slices.Backward(r.watches) {
			w.release()
		}
	}()
	work, err := r.config.Start(ctx, r)
	if err != nil {
		return err
	}
	r.level = work.level
	for _, w := range r.watches {
		defer w.follow()()
	}
	for _, f := range r.factories {
		f.StartWithContext(ctx)
	}
	if !r.waitForSync(ctx) {
		return nil
	}
	if r.level {
		r.Wake()
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, f := range r.tasks {
		wg.Go(func() { recovery.Call(ctx, r.config.Name, func() { f(ctx) }) })
	}
	kube.Work(ctx, r.queue, work.workers, func(ctx context.Context, i item) { r.work(ctx, work, i) })
	return nil
}

// waitForSync waits for everything that is not optional. It returns false when ctx has ended.
func (r *Run) waitForSync(ctx context.Context) bool {
	for _, w := range r.watches {
		if w.optional {
			continue
		}
		late := time.AfterFunc(syncPatience, func() {
			klog.FromContext(ctx).Info("Waiting for a collection to sync", "resource", w.store.Resource(), "err", w.store.Failure())
		})
		select {
		case <-w.store.Synced():
		case <-ctx.Done():
		}
		late.Stop()
	}
	for _, f := range r.factories {
		f.WaitForCacheSyncWithContext(ctx)
	}
	return ctx.Err() == nil
}

// work reconciles one key.
func (r *Run) work(ctx context.Context, work Work, i item) {
	if i.all != nil {
		for _, key := range i.all.keys() {
			r.Enqueue(key)
		}
		return
	}
	var again time.Duration
	err := recovery.Do(ctx, r.config.Name, func() (err error) {
		ctx, cancel := context.WithTimeout(ctx, r.config.Timeout)
		defer cancel()
		again, err = work.reconcile(ctx, i.key)
		return err
	})
	switch {
	case ctx.Err() != nil:
		return
	case err != nil:
		r.failed(ctx, i, err)
		r.queue.AddRateLimited(i)
	default:
		r.queue.Forget(i)
	}
	if again > 0 {
		r.queue.AddAfter(i, again)
	}
}

// failed logs a failure, before it is enqueued again: at the default verbosity where a person may
// have to act, one of many, and a rejection once.
func (r *Run) failed(ctx context.Context, i item, err error) {
	log := klog.FromContext(ctx)
	if i.key != (kube.Key{}) {
		log = log.WithValues("key", i.key)
	}
	class := ClassOf(err)
	switch {
	case class == Retry && r.mayLog():
		log.Error(err, "Failed to reconcile, retrying")
	case class == Rejected && r.queue.NumRequeues(i) == 0 && r.mayLog():
		log.Info("kube-apiserver rejected a change, retrying", "err", err)
	default:
		log.V(2).Info("Failed to reconcile, retrying", "class", class, "err", err)
	}
}

// mayLog reports whether the last failure was logged a while ago.
func (r *Run) mayLog() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if now.Sub(r.logged) < quiet {
		return false
	}
	r.logged = now
	return true
}
