// Package route is the cloud's side of StaticRoutes: what nodes report becomes a status, which
// nodes should have a route is counted, and an object that is deleted stays until its route is gone
// from every node.
//
// It owns our finalizer (and touches no other), the annotations that say who is in the pool that a
// route names and which pods it covers, the counts, and the conditions. It refuses to decide
// anything for a node: that is the node's agent's, cloud or no cloud. One Controller runs at a
// time, under a Lease; its goroutines are those of Run.
package route

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"reflect"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/claim"
	"github.com/skerry-io/skerry/common/rerun"
)

const (
	workers = 2
	// settle is how long further changes are waited for before a status is written: reports come in
	// waves.
	settle = 250 * time.Millisecond
)

// Client makes requests at kube-apiserver, as cloudcore itself.
type Client interface {
	Do(ctx context.Context, as kube.Identity, r kube.Request) (*kube.Response, error)
}

// Store is a collection that is followed; a *kube.Store.
type Store interface {
	Synced() <-chan struct{}
	Each(sel *kube.Selection, fn func(*kube.Object) bool)
	Observe(changed func(old, new *kube.Object)) (cancel func())
}

// Controller counts and frees.
type Controller struct {
	client Client
	routes Store
	nodes  Store
	pools  Store
	queue  workqueue.TypedRateLimitingInterface[string]
	pods   podRanges
}

// New makes a Controller. It starts nothing.
func New(client Client, routes, nodes, pools Store) *Controller {
	return &Controller{client: client, routes: routes, nodes: nodes, pools: pools}
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	c.queue = workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](200*time.Millisecond, time.Minute))
	all := rerun.New(func(context.Context) (time.Duration, error) {
		c.enqueueAll()
		return 0, nil
	}, rerun.Config{})
	defer c.routes.Observe(func(old, now *kube.Object) {
		if now != nil {
			c.queue.AddAfter(now.Name, settle)
		}
	})()
	defer c.nodes.Observe(func(old, now *kube.Object) {
		if c.pods.update(old, now) {
			all.Wake()
		}
		if old == nil || now == nil || !labels.Equals(old.Labels, now.Labels) {
			all.Wake()
		}
	})()
	defer c.pools.Observe(func(old, now *kube.Object) {
		if old == nil || now == nil || old.Sum != now.Sum { // a NodePool's status changes with each address
			all.Wake()
		}
	})()
	for _, s := range []Store{c.routes, c.nodes} {
		select {
		case <-s.Synced():
		case <-ctx.Done():
			c.queue.ShutDown()
			return nil
		}
	}
	var wg sync.WaitGroup
	wg.Go(func() { // only routes that name a pool wait for the pools: a cluster may not have the kind
		select {
		case <-c.pools.Synced():
			all.Wake()
		case <-ctx.Done():
		}
	})
	wg.Go(func() { kube.Work(ctx, c.queue, workers, c.work) })
	defer wg.Wait()
	all.Run(ctx)
	return nil
}

func (c *Controller) enqueueAll() {
	var names []string
	c.routes.Each(everything(), func(o *kube.Object) bool {
		names = append(names, o.Name)
		return true
	})
	for _, name := range names {
		c.queue.AddAfter(name, settle)
	}
}

func (c *Controller) work(ctx context.Context, name string) {
	if err := c.reconcile(ctx, name); err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).V(2).Info("Failed to reconcile a StaticRoute, retrying", "staticRoute", name, "err", err)
		c.queue.AddRateLimited(name)
	} else {
		c.queue.Forget(name)
	}
}

// reconcile brings one object up to date. It reads the newest version, and writes on the condition
// that it still is: another writer that was quicker makes it start again.
func (c *Controller) reconcile(ctx context.Context, name string) error {
	o, err := c.get(ctx, name)
	if o == nil || err != nil {
		return err
	}
	members, known, err := c.members(o)
	if err != nil {
		return err
	}
	note, err := annotation(members)
	if err != nil {
		return err
	}
	subnets, err := c.podSubnets()
	if err != nil {
		return err
	}
	covers := c.pods.overlapped(o.Spec.Subnet, subnets)
	mine := slices.Contains(o.Finalizers, v1alpha1.StaticRouteFinalizer)
	switch {
	case o.DeletionTimestamp == nil && (!mine || known && o.Annotations[v1alpha1.NodePoolAnnotation] != note ||
		o.Annotations[v1alpha1.RouteCoversAnnotation] != covers):
		if !mine {
			o.Finalizers = append(o.Finalizers, v1alpha1.StaticRouteFinalizer)
		}
		notes := map[string]string{v1alpha1.RouteCoversAnnotation: covers}
		if known {
			notes[v1alpha1.NodePoolAnnotation] = note
		}
		return c.writeMetadata(ctx, o, notes) // its change brings us here again
	case o.DeletionTimestamp == nil && !known:
		return nil // until the pools are known
	case o.DeletionTimestamp != nil && !mine:
		return nil // another finalizer is waited for
	case o.DeletionTimestamp != nil && len(left(&o.Status)) == 0:
		o.Finalizers = slices.DeleteFunc(o.Finalizers, func(f string) bool { return f == v1alpha1.StaticRouteFinalizer })
		return c.writeMetadata(ctx, o, nil)
	}
	before := o.DeepCopy()
	desired, problem := c.desired(o, members)
	summarize(o, desired, problem)
	if reflect.DeepEqual(before.Status, o.Status) {
		return nil
	}
	return c.writeStatus(ctx, o)
}

// members is who is in the pool that a StaticRoute names; the zero value where it names none. known
// is false while the pools are not.
func (c *Controller) members(o *v1alpha1.StaticRoute) (m v1alpha1.PoolMembers, known bool, err error) {
	if o.Spec.NodePool == "" {
		return m, true, nil
	}
	select {
	case <-c.pools.Synced():
	default:
		return m, false, nil
	}
	m.Pool = o.Spec.NodePool
	var raw []byte
	one := everything()
	one.Name = o.Spec.NodePool
	c.pools.Each(one, func(p *kube.Object) bool {
		raw = p.Raw
		return false
	})
	if raw == nil {
		return m, true, nil
	}
	pool := &v1alpha1.NodePool{}
	if err := json.Unmarshal(raw, pool); err != nil {
		return m, false, fmt.Errorf("reading NodePool %s: %w", o.Spec.NodePool, err)
	}
	m.NodeSelector = pool.Spec.NodeSelector
	return m, true, nil
}

// podSubnets are those of all NodePools.
func (c *Controller) podSubnets() (all []netip.Prefix, err error) {
	c.pools.Each(everything(), func(o *kube.Object) bool {
		pool := &v1alpha1.NodePool{}
		if err = json.Unmarshal(o.Raw, pool); err != nil {
			err = fmt.Errorf("reading NodePool %s: %w", o.Name, err)
			return false
		}
		all = append(all, claim.Prefixes(pool.Spec.PodSubnets)...)
		return true
	})
	return all, err
}

// annotation is what the nodes learn of a pool; "" for none.
func annotation(m v1alpha1.PoolMembers) (string, error) {
	if m.Pool == "" {
		return "", nil
	}
	raw, err := json.Marshal(m)
	if err != nil {
		return "", fmt.Errorf("writing down who is in NodePool %s: %w", m.Pool, err)
	}
	return string(raw), nil
}

// desired names the nodes that should have the route.
func (c *Controller) desired(o *v1alpha1.StaticRoute, members v1alpha1.PoolMembers) (names []string, err error) {
	if o.DeletionTimestamp != nil {
		return nil, nil
	}
	selects, err := selector(o, members)
	if err != nil {
		return nil, err
	}
	c.nodes.Each(everything(), func(n *kube.Object) bool {
		if selects(n.Labels) {
			names = append(names, n.Name)
		}
		return true
	})
	slices.Sort(names)
	return names, nil
}

func (c *Controller) get(ctx context.Context, name string) (*v1alpha1.StaticRoute, error) {
	resp, err := c.client.Do(ctx, kube.Identity{}, kube.Request{Method: http.MethodGet, Path: path(name)})
	if err != nil {
		return nil, err
	}
	if resp.Code == http.StatusNotFound {
		return nil, nil
	}
	if err := resp.Err(); err != nil {
		return nil, err
	}
	o := &v1alpha1.StaticRoute{}
	if err := json.Unmarshal(resp.Body, o); err != nil {
		return nil, fmt.Errorf("reading StaticRoute %s: %w", name, err)
	}
	return o, nil
}

// writeStatus writes the status of an object, on the condition that it was not written meanwhile.
func (c *Controller) writeStatus(ctx context.Context, o *v1alpha1.StaticRoute) error {
	body, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("writing StaticRoute %s: %w", o.Name, err)
	}
	return c.do(ctx, kube.Request{Method: http.MethodPut, Path: path(o.Name) + "/status", ContentType: "application/json", Body: body})
}

// writeMetadata writes nothing but the finalizers and these annotations, "" deletes, on the same
// condition: what this version does not know of the spec is not lost.
func (c *Controller) writeMetadata(ctx context.Context, o *v1alpha1.StaticRoute, notes map[string]string) error {
	m := map[string]any{"finalizers": o.Finalizers, "resourceVersion": o.ResourceVersion, "uid": o.UID}
	annotations := map[string]any{}
	for key, note := range notes {
		annotations[key] = nil // a merge patch takes away what is null (RFC 7396)
		if note != "" {
			annotations[key] = note
		}
	}
	if len(annotations) > 0 {
		m["annotations"] = annotations
	}
	body, err := json.Marshal(map[string]any{"metadata": m})
	if err != nil {
		return fmt.Errorf("writing StaticRoute %s: %w", o.Name, err)
	}
	return c.do(ctx, kube.Request{Method: http.MethodPatch, Path: path(o.Name), ContentType: "application/merge-patch+json", Body: body})
}

func (c *Controller) do(ctx context.Context, r kube.Request) error {
	resp, err := c.client.Do(ctx, kube.Identity{}, r)
	if err != nil {
		return err
	}
	if resp.Code == http.StatusNotFound {
		return nil
	}
	return resp.Err()
}

func path(name string) string {
	r := v1alpha1.Resource(v1alpha1.StaticRoutes)
	return "/apis/" + r.Group + "/" + r.Version + "/" + r.Resource + "/" + url.PathEscape(name)
}

func everything() *kube.Selection {
	return &kube.Selection{Labels: labels.Everything(), Fields: fields.Everything()}
}
