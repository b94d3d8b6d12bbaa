package route_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/cloud/internal/controllers/controller"
	"github.com/skerry-io/skerry/cloud/internal/controllers/reports"
	"github.com/skerry-io/skerry/cloud/internal/controllers/route"
	"github.com/skerry-io/skerry/cloud/internal/core/cloudhub"
	"github.com/skerry-io/skerry/cloud/internal/core/cloudhub/hubtest"
	"github.com/skerry-io/skerry/cloud/internal/core/fence"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/tests/cluster"
	"github.com/skerry-io/skerry/tests/cluster/edges"
)

// system is a real kube-apiserver with the rights of cloudcore's manifests, and two replicas of
// cloudcore's parts for StaticRoutes, one of which leads.
type system struct {
	t      *testing.T
	plane  *cluster.ControlPlane
	client *kube.Client
	admin  dynamic.ResourceInterface
	parts  [2]*reports.Aggregator
	pools  dynamic.NamespaceableResourceInterface
	lead   func(replica int) // the other replica takes over
}

func newSystem(t *testing.T) *system {
	plane := cluster.Run(t)
	plane.Apply(t, "manifests/crds")
	plane.Apply(t, "manifests/cloudcore")
	client, err := kube.NewClient(plane.ServiceAccount(t, "skerry-system", "cloudcore"), kube.Constrained)
	if err != nil {
		t.Fatal(err)
	}
	all, err := dynamic.NewForConfig(plane.Admin())
	if err != nil {
		t.Fatal(err)
	}
	w := &system{t: t, plane: plane, client: client, admin: all.Resource(v1alpha1.Resource(v1alpha1.StaticRoutes)),
		pools: all.Resource(v1alpha1.Resource(v1alpha1.NodePools))}
	cluster.Eventually(t, "StaticRoutes to be served", func(ctx context.Context) error {
		_, err := w.admin.List(ctx, metav1.ListOptions{})
		return err
	})
	informers := kube.NewInformers(client)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return informers.Run(ctx) })
	for i := range w.parts {
		w.parts[i] = reports.New(client, route.Kind())
		g.Go(func() error { return w.parts[i].Run(ctx) })
	}
	stop := func() {}
	w.lead = func(replica int) {
		stop()
		leading, end := context.WithCancel(ctx)
		var wg sync.WaitGroup
		stop = func() { end(); wg.Wait() }
		wg.Go(func() {
			if err := controller.NewManager(client, informers).Run(leading, route.Controller(), w.parts[replica].Sweeper()); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() {
		stop()
		cancel()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	})
	w.lead(0)
	return w
}

// session is a node's link to one replica.
type session struct {
	hubtest.Session
	mux  *message.Mux
	next atomic.Uint64
}

func (w *system) connect(node string, replica int) *session {
	s := &session{Session: hubtest.Session{Name: types.NodeName(node)}, mux: message.NewMux()}
	w.lease(node)
	if err := edges.Allow(w.t.Context(), w.plane.Client(), node); err != nil { // as if it had joined: its Lease is read as the node
		w.t.Fatal(err)
	}
	service := w.parts[replica].Attach(s, s.mux)
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- cloudhub.Serve(ctx, service) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			w.t.Error(err)
		}
	})
	return s
}

// lease gives the node's session the right to write, as package relay does.
func (w *system) lease(node string) {
	w.t.Helper()
	_, err := w.plane.Client().CoordinationV1().Leases(corev1.NamespaceNodeLease).Create(w.t.Context(), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: node, Annotations: map[string]string{fence.EpochAnnotation: "1"}},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		w.t.Fatal(err)
	}
}

// report sends a report as the node, and returns the number of the answer.
func (w *system) report(s *session, name string, uid types.UID, entry *v1alpha1.StaticRouteNode) uint64 {
	w.t.Helper()
	body, err := json.Marshal(entry)
	if err != nil {
		w.t.Fatal(err)
	}
	id := s.next.Add(1)
	err = s.mux.Dispatch(w.t.Context(), topic.ReportWrite.New(message.Resource{}, &topicpb.Write{
		Id: id, Verb: topicpb.Verb_PATCH, Resource: &topicpb.Resource{Group: v1alpha1.Group, Version: v1alpha1.Version, Resource: v1alpha1.StaticRoutes},
		Name: name, Subresource: "status", Uid: string(uid), Body: body,
	}))
	if err != nil {
		w.t.Fatal(err)
	}
	return id
}

func (w *system) answered(s *session, id uint64) (r *topicpb.WriteResult) {
	w.t.Helper()
	cluster.Eventually(w.t, fmt.Sprintf("the answer to report %d of %s", id, s.Name), func(context.Context) error {
		if r = s.Result(id); r == nil {
			return errors.New("not yet")
		}
		return nil
	})
	return r
}

func (w *system) create(name string, spec map[string]any) *v1alpha1.StaticRoute {
	w.t.Helper()
	u, err := w.admin.Create(w.t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "skerry.io/v1alpha1", "kind": "StaticRoute", "metadata": map[string]any{"name": name, "finalizers": []any{"example.com/other"}}, "spec": spec,
	}}, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return typed(w.t, u)
}

func typed(t *testing.T, u *unstructured.Unstructured) *v1alpha1.StaticRoute {
	t.Helper()
	o := &v1alpha1.StaticRoute{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, o); err != nil {
		t.Fatal(err)
	}
	return o
}

// is waits until the status is as wanted.
func (w *system) is(name, want string) {
	w.t.Helper()
	cluster.Eventually(w.t, name+" to be "+want, func(ctx context.Context) error {
		u, err := w.admin.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		o := typed(w.t, u)
		var nodes []string
		for _, e := range o.Status.Nodes {
			nodes = append(nodes, e.Name)
		}
		ready := "?"
		if c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionReady); c != nil {
			ready = c.Reason
		}
		if got := fmt.Sprintf("%d/%d %s %v", o.Status.Applied, o.Status.Desired, ready, nodes); got != want {
			return fmt.Errorf("it is %s", got)
		}
		return nil
	})
}

func (w *system) node(name string, labels map[string]string) {
	w.t.Helper()
	_, err := w.plane.Client().CoreV1().Nodes().Create(w.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
}

func TestReal(t *testing.T) {
	w := newSystem(t)
	edge := map[string]string{v1alpha1.EdgeOwnLabel: "", "zone": "north"}
	for _, n := range []string{"edge1", "edge2", "edge3"} {
		w.node(n, edge)
	}
	w.node("cloud-worker", nil)
	// Nodes 1 and 3 are at one replica, node 2 at the other.
	one, two, three := w.connect("edge1", 0), w.connect("edge2", 1), w.connect("edge3", 0)
	applied := func(o *v1alpha1.StaticRoute) *v1alpha1.StaticRouteNode {
		return &v1alpha1.StaticRouteNode{Name: "edge1", Reason: v1alpha1.RouteApplied, ObservedGeneration: o.Generation}
	}

	t.Run("reports of many nodes through two replicas", func(t *testing.T) {
		o := w.create("office", map[string]any{"subnet": "172.20.0.0/16", "gateway": "10.0.0.1"})
		w.is("office", "0/3 Waiting []")
		type said struct {
			s  *session
			id uint64
		}
		var all []said
		for range 10 {
			for _, s := range []*session{one, two, three} {
				all = append(all, said{s, w.report(s, "office", o.UID, applied(o))})
			}
		}
		for _, x := range all {
			if r := w.answered(x.s, x.id); !r.Accepted {
				t.Errorf("report %d of %s was refused: %s", x.id, x.s.Name, r.Status)
			}
		}
		w.is("office", "3/3 Applied [edge1 edge2 edge3]")
	})

	t.Run("refusals", func(t *testing.T) {
		o := w.create("strict", map[string]any{"subnet": "172.21.0.0/16"})
		for name, c := range map[string]struct {
			object string
			uid    types.UID
			reason metav1.StatusReason
		}{
			"another uid": {"strict", "other", metav1.StatusReasonConflict},
			"no object":   {"nothing", o.UID, metav1.StatusReasonNotFound},
		} {
			r := w.answered(one, w.report(one, c.object, c.uid, applied(o)))
			var s metav1.Status
			if err := json.Unmarshal(r.Status, &s); err != nil || r.Accepted || s.Reason != c.reason {
				t.Errorf("%s: accepted %v, %s; want %s", name, r.Accepted, s.Reason, c.reason)
			}
		}
		if r := w.answered(one, w.report(one, "strict", o.UID, &v1alpha1.StaticRouteNode{})); r.Accepted {
			t.Error("a report without a reason was accepted")
		}
	})

	t.Run("Routes_05 node deleted: status cleaned", func(t *testing.T) {
		w.lead(1) // also after a change of the leader
		if err := w.plane.Client().CoreV1().Nodes().Delete(t.Context(), "edge3", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.is("office", "2/2 Applied [edge1 edge2]")
		w.node("edge3", edge)
		w.is("office", "2/3 Waiting [edge1 edge2]")
		u, err := w.admin.Get(t.Context(), "office", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		w.answered(three, w.report(three, "office", u.GetUID(), applied(typed(t, u))))
		w.is("office", "3/3 Applied [edge1 edge2 edge3]")
	})

	t.Run("the pool says who is in it", func(t *testing.T) {
		members := func(name, want string) {
			t.Helper()
			cluster.Eventually(t, "the members of the pool of "+name, func(ctx context.Context) error {
				u, err := w.admin.Get(ctx, name, metav1.GetOptions{})
				if err != nil {
					return err
				}
				if got := u.GetAnnotations()[v1alpha1.NodePoolAnnotation]; got != want {
					return fmt.Errorf("it is %q, want %q", got, want)
				}
				return nil
			})
		}
		w.create("pooled", map[string]any{"subnet": "172.23.0.0/16", "gateway": "10.0.0.1", "nodePool": "north"})
		members("pooled", `{"pool":"north"}`) // no such NodePool: the nodes' label says it
		w.is("pooled", "0/0 NoNodes []")
		pools := w.pools
		pool := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "skerry.io/v1alpha1", "kind": "NodePool", "metadata": map[string]any{"name": "north"},
			"spec": map[string]any{"nodeSelector": map[string]any{"matchLabels": map[string]any{"zone": "north"}}},
		}}
		if _, err := pools.Create(t.Context(), pool, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		members("pooled", `{"pool":"north","nodeSelector":{"matchLabels":{"zone":"north"}}}`)
		w.is("pooled", "0/3 Waiting []")
		// It continues with the pool, and ends with the field.
		if _, err := pools.Patch(t.Context(), "north", types.MergePatchType, []byte(`{"spec":{"nodeSelector":{"matchLabels":{"zone":"south"}}}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		members("pooled", `{"pool":"north","nodeSelector":{"matchLabels":{"zone":"south"}}}`)
		w.is("pooled", "0/0 NoNodes []")
		if _, err := w.admin.Patch(t.Context(), "pooled", types.MergePatchType, []byte(`{"spec":{"nodePool":null}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		members("pooled", "")
		w.is("pooled", "0/3 Waiting []")
		w.deleted("pooled")
	})

	t.Run("Routes_09 selector that matches none: deletable", func(t *testing.T) {
		w.create("unmatched", map[string]any{"subnet": "172.22.0.0/16", "nodeSelector": map[string]any{"matchLabels": map[string]any{"zone": "nowhere"}}})
		w.is("unmatched", "0/0 NoNodes []")
		w.deleted("unmatched")
	})

	t.Run("Routes_06 deleted when no node has it any more", func(t *testing.T) {
		u, err := w.admin.Get(t.Context(), "office", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.admin.Delete(t.Context(), "office", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.is("office", "0/0 Deleting [edge1 edge2 edge3]")
		for _, s := range []*session{one, two} {
			w.answered(s, w.report(s, "office", u.GetUID(), nil))
		}
		w.is("office", "0/0 Deleting [edge3]")
		// The third never comes back.
		if err := w.plane.Client().CoreV1().Nodes().Delete(t.Context(), "edge3", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.freed("office")
	})
}

// freed waits until our finalizer is removed and only the other one is left.
func (w *system) freed(name string) {
	w.t.Helper()
	cluster.Eventually(w.t, name+" to be let go", func(ctx context.Context) error {
		u, err := w.admin.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if f := u.GetFinalizers(); !slices.Equal(f, []string{"example.com/other"}) {
			return fmt.Errorf("finalizers: %v", f)
		}
		return nil
	})
}

func (w *system) deleted(name string) {
	w.t.Helper()
	if err := w.admin.Delete(w.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		w.t.Fatal(err)
	}
	w.freed(name)
	_, err := w.admin.Patch(w.t.Context(), name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		w.t.Error(err)
	}
}
