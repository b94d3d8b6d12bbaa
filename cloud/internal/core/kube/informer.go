package kube

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// idleStop is how long a collection without edges is still followed: an edge that reconnects should
// not cost a new list.
const idleStop = 5 * time.Minute

// Informers follow collections, one watch for each, with cloudcore's own rights. A collection is
// followed from the first Open to some minutes after the last release.
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
	*followed
	users  int                // of both kinds
	own    int                // users that are cloudcore's own parts
	cancel context.CancelFunc // nil while it isn't running
	idle   *time.Timer
}

// NewInformers returns Informers. They start no watch before Run.
func NewInformers(client *Client) *Informers {
	i := &Informers{
		client: client, catalog: newCatalog(), feeds: map[schema.GroupVersionResource]*informer{},
		changes: map[schema.GroupVersionResource]func(runtime.Object){},
	}
	client.revisions.OnRestart(i.restart)
	return i
}

// restart has every collection listed again.
func (i *Informers) restart() {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, f := range i.feeds {
		f.mu.Lock()
		if f.restart != nil {
			f.restart()
		}
		f.mu.Unlock()
	}
}

// Change has every object of a collection changed before it enters the store. It is called before
// the first Open.
func (i *Informers) Change(resource schema.GroupVersionResource, change func(runtime.Object)) {
	i.changes[resource] = change
}

// Run follows the open collections until ctx ends.
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
	i.ctx = nil // no more starts; Run may be called again
	for _, f := range i.feeds {
		f.cancel = nil
	}
	i.mu.Unlock()
	i.wg.Wait()
	return nil
}

// Open returns the store of a collection for one of cloudcore's own parts and starts to follow it
// if no other does. Call release once when done with it. Ready depends on it in the meantime.
func (i *Informers) Open(resource schema.GroupVersionResource) (store *Store, release func()) {
	return i.open(resource, 1)
}

// open counts the user among cloudcore's own parts where own is 1; it is 0 for a node's request.
func (i *Informers) open(resource schema.GroupVersionResource, own int) (store *Store, release func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	f, ok := i.feeds[resource]
	if !ok {
		e := i.catalog.encoder(resource)
		e.change = i.changes[resource]
		f = &informer{followed: &followed{client: i.client, catalog: i.catalog, store: newStore(resource, e)}}
		i.feeds[resource] = f
		i.start(f)
	}
	f.users++
	f.own += own
	if f.idle != nil {
		f.idle.Stop()
		f.idle = nil
	}
	return f.store, sync.OnceFunc(func() { i.release(resource, f, own) })
}

func (i *Informers) release(resource schema.GroupVersionResource, f *informer, own int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	f.own -= own
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

// Status describes one followed collection, for health and metrics.
type Status struct {
	Resource schema.GroupVersionResource
	Objects  int
	Synced   bool
	Own      bool  // followed for cloudcore itself, not for nodes alone
	Failure  error // of the last attempt to list or watch
}

// Status lists the followed collections.
func (i *Informers) Status() []Status {
	i.mu.Lock()
	defer i.mu.Unlock()
	out := make([]Status, 0, len(i.feeds))
	for _, f := range i.feeds {
		s := f.store
		out = append(out, Status{Resource: s.resource, Objects: s.Len(), Synced: s.HasSynced(), Own: f.own > 0, Failure: s.Failure()})
	}
	return out
}

// Ready returns nil while every collection of cloudcore itself can be listed and watched. Those
// that nodes ask for do not count: no device may make cloudcore unready.
func (i *Informers) Ready() error {
	var errs []error
	for _, s := range i.Status() {
		// A kind that the cluster lacks (a CRD that was not applied) does not keep edges away: its
		// users wait for it.
		if s.Own && s.Failure != nil && !apierrors.IsNotFound(s.Failure) {
			errs = append(errs, fmt.Errorf("%s: %w", s.Resource.Resource, s.Failure))
		}
	}
	return errors.Join(errs...)
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
		f.follow(ctx)
	})
}
