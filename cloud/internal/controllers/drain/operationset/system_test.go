package operationset_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/cloud/internal/controllers/controller"
	"github.com/skerry-io/skerry/cloud/internal/controllers/drain/operationset"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/tests/cluster"
)

// system is a real kube-apiserver with cloudcore's manifests, and devices that report of their
// operations.
type system struct {
	t                *testing.T
	plane            *cluster.ControlPlane
	client           kubernetes.Interface
	account          *rest.Config // cloudcore's
	sets, operations dynamic.ResourceInterface
	mu               sync.Mutex
	linked           map[string]bool
	device           func(o *v1alpha1.NodeOperation) string // how an operation ends; "": it waits; Running: it runs
	begun            map[types.UID]bool
	ran              map[string][]string // by node: the images of the operations that it took up
	running          map[string]int      // by pool, now
	pool             map[string]string
	atOnce           map[string]int // the most, by pool
}

func newSystem(t *testing.T, nodes ...string) *system {
	plane := cluster.Shared(t)
	plane.Apply(t, "manifests/crds")
	plane.Apply(t, "manifests/cloudcore")
	admin, err := dynamic.NewForConfig(plane.Admin())
	if err != nil {
		t.Fatal(err)
	}
	s := &system{
		t: t, plane: plane, client: plane.Client(), sets: admin.Resource(v1alpha1.Resource(v1alpha1.NodeOperationSets)),
		operations: admin.Resource(v1alpha1.Resource(v1alpha1.NodeOperations)), linked: map[string]bool{}, begun: map[types.UID]bool{}, ran: map[string][]string{},
		running: map[string]int{}, pool: map[string]string{}, atOnce: map[string]int{}, device: func(*v1alpha1.NodeOperation) string { return booted },
	}
	s.account = plane.ServiceAccount(t, "skerry-system", "cloudcore")
	cluster.Eventually(t, "NodeOperationSets to be served", func(ctx context.Context) error {
		_, err := s.sets.List(ctx, metav1.ListOptions{})
		return err
	})
	for _, n := range nodes {
		s.join(n, "")
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var wg sync.WaitGroup
	wg.Go(func() { s.leases(ctx) })
	wg.Go(func() { s.devices(ctx) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
		for _, objects := range []dynamic.ResourceInterface{s.sets, s.operations} {
			if err := objects.DeleteCollection(context.WithoutCancel(t.Context()), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
				t.Error(err)
			}
		}
	})
	return s
}

// join adds a linked device.
func (s *system) join(name, pool string) {
	s.t.Helper()
	s.plane.AddNode(s.t, name)
	if pool != "" {
		s.patch(name, map[string]any{"metadata": map[string]any{"labels": map[string]any{v1alpha1.NodePoolLabel: pool}}}, "")
	}
	s.mu.Lock()
	s.pool[name] = pool
	s.mu.Unlock()
	s.link(name, corev1.ConditionTrue)
}

func (s *system) patch(name string, body any, subresource string) {
	s.t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		s.t.Fatal(err)
	}
	var subresources []string
	if subresource != "" {
		subresources = []string{subresource}
	}
	if _, err := s.client.CoreV1().Nodes().Patch(s.t.Context(), name, types.StrategicMergePatchType, text, metav1.PatchOptions{}, subresources...); err != nil {
		s.t.Fatal(err)
	}
}

// link sets a node's condition Ready, and keeps it.
func (s *system) link(name string, ready corev1.ConditionStatus) {
	s.t.Helper()
	s.mu.Lock()
	s.linked[name] = ready != corev1.ConditionUnknown
	s.mu.Unlock()
	s.renew(s.t.Context(), name)
	s.patch(name, map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: ready, Reason: "Test", LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
	}}}}, "status")
}

// renew renews a Lease, as cloudcore does for a linked node.
func (s *system) renew(ctx context.Context, name string) {
	leases, now := s.client.CoordinationV1().Leases(corev1.NamespaceNodeLease), metav1.NowMicro()
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &name, RenewTime: &now}}
	old, err := leases.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, _ = leases.Create(ctx, l, metav1.CreateOptions{})
	} else if err == nil {
		old.Spec = l.Spec
		_, _ = leases.Update(ctx, old, metav1.UpdateOptions{})
	}
}

func (s *system) leases(ctx context.Context) {
	for {
		s.mu.Lock()
		linked := maps.Clone(s.linked)
		s.mu.Unlock()
		for name, is := range linked {
			if is {
				s.renew(ctx, name)
			}
		}
		if !pause(ctx, 3*time.Second) {
			return
		}
	}
}

func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// devices report of their operations, as the administrator: a device's real report is the subject
// of another test.
func (s *system) devices(ctx context.Context) {
	for pause(ctx, 100*time.Millisecond) {
		list, err := s.operations.List(ctx, metav1.ListOptions{})
		if err != nil {
			continue
		}
		running := map[string]int{}
		for i := range list.Items {
			var o v1alpha1.NodeOperation
			if runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[i].Object, &o) != nil || o.Status.CompletedAt != nil {
				continue
			}
			s.mu.Lock()
			linked := s.linked[o.Spec.NodeName]
			running[s.pool[o.Spec.NodeName]]++
			if linked && !s.begun[o.UID] {
				s.begun[o.UID] = true
				s.ran[o.Spec.NodeName] = append(s.ran[o.Spec.NodeName], o.Spec.Image)
			}
			reason := s.device(&o)
			s.mu.Unlock()
			if !linked || reason == "" {
				continue
			}
			status := ended(reason)
			if reason == "Running" || reason == "Waiting" {
				status = under(reason)
			}
			if c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.OperationDone); c != nil && c.Reason == reason {
				continue
			}
			o.Status = status
			object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&o)
			if err != nil {
				continue
			}
			_, _ = s.operations.UpdateStatus(ctx, &unstructured.Unstructured{Object: object}, metav1.UpdateOptions{})
		}
		s.mu.Lock()
		for pool, n := range running {
			s.atOnce[pool] = max(s.atOnce[pool], n)
		}
		s.mu.Unlock()
	}
}

// booted is the reason of an operation that was carried out.
const booted = "Booted"

func under(reason string) v1alpha1.NodeOperationStatus {
	now := metav1.Now().Rfc3339Copy()
	return v1alpha1.NodeOperationStatus{
		Phase: v1alpha1.DrainNotRequested, RequestedAt: &now,
		Conditions: []metav1.Condition{{Type: v1alpha1.OperationDone, Status: metav1.ConditionFalse, Reason: reason, LastTransitionTime: now}},
	}
}

func ended(reason string) v1alpha1.NodeOperationStatus {
	s := under(reason)
	s.CompletedAt = s.RequestedAt
	switch other := s.Conditions[0]; reason {
	case booted:
		s.Conditions[0].Status = metav1.ConditionTrue
	case "Cancelled":
		other.Type, other.Status = v1alpha1.OperationCancelled, metav1.ConditionTrue
		s.Conditions = append(s.Conditions, other)
	default:
		other.Type, other.Status = v1alpha1.OperationFailed, metav1.ConditionTrue
		s.Conditions = append(s.Conditions, other)
	}
	return s
}

func (s *system) behave(device func(o *v1alpha1.NodeOperation) string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.device = device
}

// dies is a client of a controller that dies at its nth write: before it, or before its answer.
type dies struct {
	*kube.Client
	cancel context.CancelFunc
	mu     sync.Mutex
	left   int // 0: never
	after  bool
}

func (d *dies) Do(ctx context.Context, as kube.Identity, r kube.Request) (*kube.Response, error) {
	if r.Method == http.MethodGet {
		return d.Client.Do(ctx, as, r)
	}
	d.mu.Lock()
	d.left--
	dead := d.left == 0
	d.mu.Unlock()
	if !dead {
		return d.Client.Do(ctx, as, r)
	}
	if d.after {
		_, _ = d.Client.Do(ctx, as, r)
	}
	d.cancel()
	return nil, context.Canceled
}

// run runs the controller until ctx ends or it has died at a write; writes is 0 for one that
// lives.
func (s *system) run(ctx context.Context, writes int, after bool) {
	s.t.Helper()
	client, err := kube.NewClient(s.account, kube.Constrained)
	if err != nil {
		s.t.Error(err)
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	informers := kube.NewInformers(client)
	manager := controller.NewManager(&dies{Client: client, cancel: cancel, left: writes, after: after}, informers)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return informers.Run(ctx) })
	g.Go(func() error { return manager.Run(ctx, operationset.Controller()) })
	if err := g.Wait(); err != nil {
		s.t.Error(err)
	}
}

// lead runs a controller until the test ends.
func (s *system) lead() {
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.t.Context()))
	done := make(chan struct{})
	go func() { defer close(done); s.run(ctx, 0, false) }()
	s.t.Cleanup(func() { cancel(); <-done })
}

// apply makes or changes a set.
func (s *system) apply(name string, spec v1alpha1.NodeOperationSetSpec) {
	s.t.Helper()
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&v1alpha1.NodeOperationSet{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "NodeOperationSet"}, ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec,
	})
	if err != nil {
		s.t.Fatal(err)
	}
	delete(object, "status")
	cluster.Eventually(s.t, "the kind to have a schema", func(ctx context.Context) error { // it comes after discovery
		_, err := s.sets.Apply(ctx, name, &unstructured.Unstructured{Object: object}, metav1.ApplyOptions{FieldManager: "test", Force: true})
		if err != nil && !strings.Contains(err.Error(), "There can be a delay between") {
			s.t.Fatal(err)
		}
		return err
	})
}

func (s *system) get(ctx context.Context, name string) (*v1alpha1.NodeOperationSet, error) {
	u, err := s.sets.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	var set v1alpha1.NodeOperationSet
	return &set, runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &set)
}

// await waits until a set's condition Ready has a reason, for its newest generation.
func (s *system) await(name, reason string, also func(*v1alpha1.NodeOperationSet) bool) *v1alpha1.NodeOperationSet {
	s.t.Helper()
	var set *v1alpha1.NodeOperationSet
	cluster.Eventually(s.t, fmt.Sprintf("set %s to be %s", name, reason), func(ctx context.Context) (err error) {
		if set, err = s.get(ctx, name); err != nil {
			return err
		}
		c := meta.FindStatusCondition(set.Status.Conditions, v1alpha1.SetReady)
		if c == nil || c.Reason != reason || set.Status.ObservedGeneration != set.Generation || also != nil && !also(set) {
			return fmt.Errorf("its status is %+v", set.Status)
		}
		return nil
	})
	return set
}

func (s *system) taken() map[string][]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.ran)
}

func all(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("edge%d", i+1))
	}
	return names
}

func update(image string, change func(*v1alpha1.NodeOperationSetSpec)) v1alpha1.NodeOperationSetSpec {
	many := intstr.FromInt32(500)
	s := v1alpha1.NodeOperationSetSpec{
		Template:     v1alpha1.NodeOperationTemplate{Operation: v1alpha1.OperationImageUpdate, Image: image},
		NodeSelector: &metav1.LabelSelector{}, MaxParallel: &many,
	}
	if change != nil {
		change(&s)
	}
	return s
}
