package controller_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/skerry-io/skerry/cloud/internal/controllers/controller"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// system is a Manager with two stores that a test fills, and an empty kube-apiserver.
type system struct {
	t            *testing.T
	nodes, pools *kube.Store
	open         map[schema.GroupVersionResource]int
	seen         []string // reconciliations, with the seconds since the start
	begun        time.Time
	fake         kubernetes.Interface
}

func newSystem(t *testing.T) *system {
	return &system{
		t: t, begun: time.Now(), open: map[schema.GroupVersionResource]int{}, fake: fake.NewClientset(),
		nodes: kube.NewStore(corev1.SchemeGroupVersion.WithResource("nodes")), pools: kube.NewStore(v1alpha1.Resource(v1alpha1.NodePools)),
	}
}

func (s *system) Open(resource schema.GroupVersionResource) (*kube.Store, func()) {
	s.open[resource]++
	release := func() { s.open[resource]-- }
	if resource.Resource == "nodes" {
		return s.nodes, release
	}
	return s.pools, release
}

func (s *system) Do(_ context.Context, _ kube.Identity, r kube.Request) (*kube.Response, error) {
	if strings.HasSuffix(r.Path, "/away") {
		return nil, errors.New("connection refused")
	}
	return &kube.Response{Code: http.StatusNotFound, Body: []byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)}, nil
}

func (s *system) Kubernetes() kubernetes.Interface { return s.fake }

func (s *system) see(text string) {
	s.seen = append(s.seen, fmt.Sprintf("%v %s", time.Since(s.begun), text))
}

// run runs a controller until the returned function is called, which checks the reconciliations.
func (s *system) run(c controller.Config) (stop func(want ...string)) {
	ctx, cancel := context.WithCancel(s.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- controller.NewManager(s, s).Run(ctx, c) }()
	return func(want ...string) {
		s.t.Helper()
		synctest.Wait()
		cancel()
		if err := <-ended; err != nil {
			s.t.Error(err)
		}
		if diff := cmp.Diff(want, s.seen); diff != "" {
			s.t.Errorf("reconciled (-want +got):\n%s", diff)
		}
		for resource, n := range s.open {
			if n != 0 {
				s.t.Errorf("%s is open %d times after the run", resource.Resource, n)
			}
		}
	}
}

func (s *system) node(name, zone string) {
	s.t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "u", ResourceVersion: fmt.Sprint(len(s.seen) + 1 + s.nodes.Len()), Labels: map[string]string{"zone": zone}}}
	if err := s.nodes.Put(n); err != nil {
		s.t.Fatal(err)
	}
}

func pool(name string) runtime.Object {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "skerry.io/v1alpha1", "kind": "NodePool", "metadata": map[string]any{"name": name, "uid": "u", "resourceVersion": "7"},
		"spec": map[string]any{"network": "lan"}, "status": map[string]any{"used": int64(3)},
	}}
}

// A level loop waits for every collection, is then called once without a change, once for
// many changes, again after the time that it returned, and after failures with a growing delay.
func TestLevel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(t)
		if err := s.nodes.Replace(nil); err != nil {
			t.Fatal(err)
		}
		fails := 0
		stop := s.run(controller.Config{Name: "c", Settle: time.Second, RetryMin: 2 * time.Second, Start: func(_ context.Context, r *controller.Run) (controller.Work, error) {
			nodes := controller.Watch[corev1.Node](r, corev1.SchemeGroupVersion.WithResource("nodes"), controller.LabelsChanged(r.Wake))
			pools := controller.Watch[v1alpha1.NodePool](r, v1alpha1.Resource(v1alpha1.NodePools), r.Any)
			return controller.Level(func(context.Context) (time.Duration, error) {
				all, err := nodes.List()
				if err != nil {
					t.Error(err)
				}
				p, err := pools.Get(kube.Key{Name: "p"})
				if err != nil || p == nil || p.Spec.Network != "lan" || p.Status.Used != 3 || p.ResourceVersion != "7" {
					t.Errorf("the pool is %+v, %v", p, err)
				}
				s.see(fmt.Sprint(len(all)))
				if fails > 0 {
					if fails--; fails == 1 {
						panic("a bug")
					}
					return 0, errors.New("broken")
				}
				return time.Minute, nil
			}), nil
		}})
		time.Sleep(10 * time.Second)
		if len(s.seen) > 0 {
			t.Errorf("called %q before the pools were known", s.seen)
		}
		if err := s.pools.Replace([]runtime.Object{pool("p")}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second) // called at 11
		s.node("a", "north")
		time.Sleep(100 * time.Millisecond)
		s.node("b", "north") // called at 16
		time.Sleep(5 * time.Second)
		s.node("b", "north") // no label has changed
		fails = 2
		time.Sleep(70 * time.Second) // called at 76, 78, 82 and 142
		stop("11s 0", "16s 2", "1m16s 2", "1m18s 2", "1m22s 2")
	})
}

// A keyed controller gets every object that there is and every one that changes, once however often
// it was enqueued, and all of them for a change that concerns all.
func TestKeyed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(t)
		s.node("a", "north")
		s.node("b", "north")
		if err := s.pools.Replace(nil); err != nil {
			t.Fatal(err)
		}
		s.nodes.Complete()
		stop := s.run(controller.Config{Name: "c", Settle: time.Second, Start: func(_ context.Context, r *controller.Run) (controller.Work, error) {
			nodes := controller.Watch[corev1.Node](r, corev1.SchemeGroupVersion.WithResource("nodes"), r.Own)
			controller.Watch[v1alpha1.NodePool](r, v1alpha1.Resource(v1alpha1.NodePools), controller.ContentChanged(func() { r.EnqueueAll(nodes) }))
			return controller.Keyed(1, func(_ context.Context, key kube.Key) (time.Duration, error) {
				n, err := nodes.Get(key)
				if err != nil {
					t.Error(err)
				}
				s.see(fmt.Sprint(key, " ", n != nil))
				return 0, nil
			}), nil
		}})
		time.Sleep(5 * time.Second)
		slices.Sort(s.seen) // in no order
		s.node("b", "south")
		s.node("b", "west")
		time.Sleep(5 * time.Second)
		s.nodes.Delete(kube.Key{Name: "a"})
		time.Sleep(5 * time.Second)
		if err := s.pools.Put(pool("p")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		stop("1s a true", "1s b true", "6s b true", "11s a false", "16s b true")
	})
}

// Callers don't wait for an optional kind that the cluster does not have; a controller that can't
// start ends the run.
func TestOptionalAndBroken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(t)
		if err := s.nodes.Replace(nil); err != nil {
			t.Fatal(err)
		}
		stop := s.run(controller.Config{Name: "c", Start: func(_ context.Context, r *controller.Run) (controller.Work, error) {
			controller.Watch[corev1.Node](r, corev1.SchemeGroupVersion.WithResource("nodes"), r.Any)
			pools := controller.WatchOptional[v1alpha1.NodePool](r, v1alpha1.Resource(v1alpha1.NodePools), r.Any)
			r.Go(func(ctx context.Context) { <-ctx.Done(); s.see("task ends") })
			return controller.Level(func(context.Context) (time.Duration, error) {
				s.see(fmt.Sprint("known ", pools.HasSynced()))
				return 0, nil
			}), nil
		}})
		time.Sleep(time.Second)
		stop("0s known false", "1s task ends")

		broken := errors.New("broken")
		err := controller.NewManager(s, s).Run(t.Context(), controller.Config{Name: "c", Start: func(context.Context, *controller.Run) (controller.Work, error) {
			return controller.Work{}, broken
		}})
		if !errors.Is(err, broken) || !strings.Contains(err.Error(), "controller c") {
			t.Errorf("the run ended with %v", err)
		}
	})
}

func TestClassOf(t *testing.T) {
	gr := schema.GroupResource{Group: "skerry.io", Resource: "nodepools"}
	conflict, gone := apierrors.NewConflict(gr, "p", errors.New("of another version")), apierrors.NewNotFound(gr, "p")
	invalid := apierrors.NewInvalid(schema.GroupKind{Group: "skerry.io", Kind: "NodePool"}, "p", nil)
	terminating := apierrors.NewForbidden(gr, "p", errors.New("the namespace is being terminated"))
	terminating.ErrStatus.Details.Causes = append(terminating.ErrStatus.Details.Causes, metav1.StatusCause{Type: corev1.NamespaceTerminatingCause})
	for name, c := range map[string]struct {
		err  error
		want controller.Class
	}{
		"conflict":              {fmt.Errorf("updating: %w", conflict), controller.Conflict},
		"not found":             {gone, controller.Conflict},
		"exists":                {apierrors.NewAlreadyExists(gr, "p"), controller.Conflict},
		"namespace terminates":  {terminating, controller.Conflict},
		"not yet":               {fmt.Errorf("planning: %w", controller.NotYet(errors.New("unknown"))), controller.Conflict},
		"invalid":               {invalid, controller.Rejected},
		"forbidden":             {apierrors.NewForbidden(gr, "p", errors.New("a policy")), controller.Rejected},
		"too many requests":     {apierrors.NewTooManyRequests("later", 1), controller.Retry},
		"no answer":             {errors.New("connection refused"), controller.Retry},
		"joined":                {fmt.Errorf("writing: %w", errors.Join(conflict, invalid)), controller.Rejected},
		"joined with no answer": {errors.Join(conflict, invalid, errors.New("connection refused")), controller.Retry},
		"joined conflicts":      {errors.Join(conflict, gone), controller.Conflict},
	} {
		if got := controller.ClassOf(c.err); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
