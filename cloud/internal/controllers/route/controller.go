// Package route is the cloud's side of StaticRoutes: it merges the nodes' reports into the status,
// counts the nodes that should have a route, and keeps a deleted object until its route is gone
// from every node.
//
// It owns our finalizer (and touches no other), the annotations with the members of the pool that a
// route names and the pods that it covers, the counts, and the conditions. It makes no decision for
// a node: that is the node's agent's, cloud or no cloud. One runs at a time, under a Lease (package
// controller).
package route

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/skerry-io/skerry/cloud/internal/controllers/controller"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/claim"
)

const (
	workers = 2
	// settle is how long further changes are waited for before a status is written: reports come in
	// waves.
	settle   = 250 * time.Millisecond
	retryMax = time.Minute
)

// run is one leadership.
type run struct {
	routes *controller.Collection[v1alpha1.StaticRoute]
	nodes  *controller.Collection[corev1.Node]
	pools  *controller.Collection[v1alpha1.NodePool]
	ranges podRanges
}

// Controller counts and frees.
func Controller() controller.Config {
	return controller.Config{Name: "staticroutes", Settle: settle, RetryMax: retryMax, Start: start}
}

func start(_ context.Context, r *controller.Run) (controller.Work, error) {
	c := &run{routes: controller.Watch[v1alpha1.StaticRoute](r, v1alpha1.Resource(v1alpha1.StaticRoutes), r.Own)}
	all := func() { r.EnqueueAll(c.routes) }
	labelsChanged := controller.LabelsChanged(all)
	c.nodes = controller.Watch[corev1.Node](r, corev1.SchemeGroupVersion.WithResource("nodes"), func(old, now *kube.Object) {
		if c.ranges.update(old, now) {
			all()
		}
		labelsChanged(old, now)
	})
	// Only routes that name a pool wait for the pools: a cluster may not have the kind. A
	// NodePool's status changes with each address.
	c.pools = controller.WatchOptional[v1alpha1.NodePool](r, v1alpha1.Resource(v1alpha1.NodePools), controller.ContentChanged(all))
	r.Go(func(ctx context.Context) {
		select {
		case <-c.pools.Synced():
			all()
		case <-ctx.Done():
		}
	})
	return controller.Keyed(workers, c.reconcile), nil
}

// reconcile brings one object up to date. It reads the newest version, whose status the shared copy
// does not have, and writes on the condition that it still is: another writer that was quicker
// makes it start again.
func (c *run) reconcile(ctx context.Context, key kube.Key) (time.Duration, error) {
	o, err := c.routes.GetLive(ctx, key)
	if o == nil || err != nil {
		return 0, err
	}
	members, known, err := c.members(o)
	if err != nil {
		return 0, err
	}
	note, err := annotation(members)
	if err != nil {
		return 0, err
	}
	subnets, err := c.podSubnets()
	if err != nil {
		return 0, err
	}
	covers := c.ranges.overlapped(o.Spec.Subnet, subnets)
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
		return 0, c.writeMetadata(ctx, o, notes) // its change queues the object again
	case o.DeletionTimestamp == nil && !known:
		return 0, nil // until the pools are known
	case o.DeletionTimestamp != nil && !mine:
		return 0, nil // another finalizer is waited for
	case o.DeletionTimestamp != nil && len(left(&o.Status)) == 0:
		o.Finalizers = slices.DeleteFunc(o.Finalizers, func(f string) bool { return f == v1alpha1.StaticRouteFinalizer })
		return 0, c.writeMetadata(ctx, o, nil)
	}
	before := o.DeepCopy()
	desired, problem := c.desired(o, members)
	summarize(o, desired, problem)
	if reflect.DeepEqual(before.Status, o.Status) {
		return 0, nil
	}
	return 0, c.routes.UpdateStatus(ctx, o)
}

// members returns the members of a StaticRoute's pool; the zero value without a pool. known is
// false until the pools are synced.
func (c *run) members(o *v1alpha1.StaticRoute) (m v1alpha1.PoolMembers, known bool, err error) {
	if o.Spec.NodePool == "" {
		return m, true, nil
	}
	if !c.pools.HasSynced() {
		return m, false, nil
	}
	m.Pool = o.Spec.NodePool
	pool, err := c.pools.Get(kube.Key{Name: m.Pool})
	if err != nil {
		return m, false, err
	}
	if pool != nil {
		m.NodeSelector = pool.Spec.NodeSelector
	}
	return m, true, nil
}

// podSubnets are those of all NodePools.
func (c *run) podSubnets() (all []netip.Prefix, err error) {
	pools, err := c.pools.List()
	for _, pool := range pools {
		all = append(all, claim.Prefixes(pool.Spec.PodSubnets)...)
	}
	return all, err
}

// annotation is a pool's annotation for the nodes; "" without a pool.
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
func (c *run) desired(o *v1alpha1.StaticRoute, members v1alpha1.PoolMembers) (names []string, err error) {
	if o.DeletionTimestamp != nil {
		return nil, nil
	}
	selects, err := selector(o, members)
	if err != nil {
		return nil, err
	}
	c.nodes.Each(func(n *kube.Object) bool {
		if selects(n.Labels) {
			names = append(names, n.Name)
		}
		return true
	})
	slices.Sort(names)
	return names, nil
}

// writeMetadata writes the finalizers and these annotations, "" deletes, and no other field: fields
// of the spec that this version does not know are kept.
func (c *run) writeMetadata(ctx context.Context, o *v1alpha1.StaticRoute, notes map[string]string) error {
	m := map[string]any{"finalizers": o.Finalizers, "resourceVersion": o.ResourceVersion, "uid": o.UID}
	annotations := map[string]any{}
	for key, note := range notes {
		annotations[key] = nil // a merge patch removes a null field (RFC 7396)
		if note != "" {
			annotations[key] = note
		}
	}
	if len(annotations) > 0 {
		m["annotations"] = annotations
	}
	return c.routes.Patch(ctx, kube.Key{Name: o.Name}, "", map[string]any{"metadata": m})
}
