package operationset_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
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
	account          *rest.Config // cloudcore\'s
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

// devices report of their operations, as the administrator: what a device's report becomes is
// another test's.
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

// controller runs a controller until ctx ends or it has died at a write; writes is 0 for one that
// lives.
func (s *system) controller(ctx context.Context, writes int, after bool) {
	s.t.Helper()
	client, err := kube.NewClient(s.account, kube.Constrained)
	if err != nil {
		s.t.Error(err)
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	informers := kube.NewInformers(client)
	open := func(plural string) *kube.Store {
		store, _ := informers.Open(v1alpha1.Resource(plural))
		return store
	}
	nodes, _ := informers.Open(corev1.SchemeGroupVersion.WithResource("nodes"))
	c := operationset.New(&dies{Client: client, cancel: cancel, left: writes, after: after}, operationset.Stores{
		Sets: open(v1alpha1.NodeOperationSets), Operations: open(v1alpha1.NodeOperations), Nodes: nodes, Pools: open(v1alpha1.NodePools),
	})
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return informers.Run(ctx) })
	g.Go(func() error { return c.Run(ctx) })
	if err := g.Wait(); err != nil {
		s.t.Error(err)
	}
}

// lead runs a controller until the test ends.
func (s *system) lead() {
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.t.Context()))
	done := make(chan struct{})
	go func() { defer close(done); s.controller(ctx, 0, false) }()
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
	if _, err := s.sets.Apply(s.t.Context(), name, &unstructured.Unstructured{Object: object}, metav1.ApplyOptions{FieldManager: "test", Force: true}); err != nil {
		s.t.Fatal(err)
	}
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

// Scenario 18: an away device and a new one get the newest template alone, long after the waves.
func TestFleet_18_LateAndNewDevicesGoStraightToTheNewest(t *testing.T) {
	s := newSystem(t, all(3)...)
	s.link("edge3", corev1.ConditionUnknown)
	s.lead()
	waves := func(spec *v1alpha1.NodeOperationSetSpec) {
		spec.Waves = []v1alpha1.OperationWave{{Percent: percent(30)}, {Percent: percent(30)}}
	}
	for i, image := range []string{"v1", "v2", "v3"} {
		s.apply("a", update(image, waves))
		set := s.await("a", "Complete", nil)
		if set.Status.Done != 2 || set.Status.Offline != 1 {
			t.Fatalf("template %d: %+v", i+1, set.Status)
		}
	}
	s.link("edge3", corev1.ConditionTrue)
	s.join("new", "")
	s.await("a", "Complete", func(set *v1alpha1.NodeOperationSet) bool { return set.Status.Done == 4 })
	ran := s.taken()
	if strings.Join(ran["edge3"], " ") != "v3" || strings.Join(ran["new"], " ") != "v3" || strings.Join(ran["edge1"], " ") != "v1 v2 v3" {
		t.Errorf("devices had %v", ran)
	}
}

// Scenario 19: the leader dies at its writes, before and behind them, in each wave; no device has
// an operation twice, and none is left out.
func TestFleet_19_LeaderIsKilledInEachWave(t *testing.T) {
	const nodes = 9
	s := newSystem(t, all(nodes)...)
	s.apply("a", update("v1", func(spec *v1alpha1.NodeOperationSetSpec) {
		spec.Waves = []v1alpha1.OperationWave{{Percent: percent(12), Soak: soak(2 * time.Second)}, {Percent: percent(33)}}
	}))
	killed := map[string]int{}
	for n := range 60 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		done := make(chan struct{})
		go func() { defer close(done); s.controller(ctx, 1+n%4, n%2 == 0) }()
		<-done
		cancel()
		set, err := s.get(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		wave := map[bool]string{set.Status.Done < 2: "1", set.Status.Done >= 2 && set.Status.Done < 5: "2", set.Status.Done >= 5: "3"}[true]
		killed[wave]++
		if set.Status.Done == nodes {
			break
		}
	}
	s.lead()
	s.await("a", "Complete", func(set *v1alpha1.NodeOperationSet) bool { return set.Status.Done == nodes })
	if killed["1"] == 0 || killed["2"] == 0 || killed["3"] == 0 {
		t.Errorf("it was killed so often in the waves: %v", killed)
	}
	for node, ran := range s.taken() {
		if len(ran) != 1 {
			t.Errorf("%s had %d operations", node, len(ran))
		}
	}
	if ran := s.taken(); len(ran) != nodes {
		t.Errorf("operations ran on %v", slices.Sorted(maps.Keys(ran)))
	}
	t.Logf("killed in wave 1, 2, 3: %v", killed)
}

// Scenario 20: a pause takes back what waits and lets run what runs; abort cancels that; a deletion
// leaves nothing on any Node.
func TestFleet_20_PauseAbortAndDelete(t *testing.T) {
	s := newSystem(t, all(3)...)
	s.behave(func(o *v1alpha1.NodeOperation) string {
		switch {
		case o.Spec.Cancel:
			return "Cancelled"
		case o.Spec.NodeName == "edge1":
			return "Running"
		}
		return "Waiting"
	})
	s.lead()
	s.apply("a", update("v1", nil))
	s.await("a", "Progressing", func(set *v1alpha1.NodeOperationSet) bool { return set.Status.Running == 3 })
	left := func(want ...string) {
		t.Helper()
		cluster.Eventually(t, fmt.Sprintf("operations to be left on %v", want), func(ctx context.Context) error {
			list, err := s.operations.List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			var names []string
			for _, o := range list.Items {
				name, _, _ := unstructured.NestedString(o.Object, "spec", "nodeName")
				names = append(names, name)
			}
			if slices.Sort(names); !slices.Equal(names, want) {
				return fmt.Errorf("they are on %v", names)
			}
			return nil
		})
	}
	s.apply("a", update("v1", func(spec *v1alpha1.NodeOperationSetSpec) { spec.Paused = true }))
	s.await("a", "Paused", nil)
	left("edge1")
	s.apply("a", update("v1", func(spec *v1alpha1.NodeOperationSetSpec) { spec.Abort = true }))
	s.await("a", "Aborted", nil)
	left()
	s.behave(func(*v1alpha1.NodeOperation) string { return booted })
	s.apply("a", update("v1", nil))
	s.await("a", "Complete", func(set *v1alpha1.NodeOperationSet) bool { return set.Status.Done == 3 })
	if err := s.sets.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	left()
	cluster.Eventually(t, "nothing to be left on Nodes", func(ctx context.Context) error {
		list, err := s.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, n := range list.Items {
			if text, ok := n.Annotations[v1alpha1.OperationSetsAnnotation]; ok || n.Spec.Unschedulable {
				return fmt.Errorf("node %s has %q", n.Name, text)
			}
		}
		return nil
	})
}

// Scenario 21: of two sets that want the same node and kind, the older continues; the newer has
// Conflict, and the nodes that the older does not select.
func TestFleet_21_TwoSets(t *testing.T) {
	s := newSystem(t, all(3)...)
	s.apply("older", update("v1", func(spec *v1alpha1.NodeOperationSetSpec) {
		spec.NodeSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: corev1.LabelHostname, Operator: metav1.LabelSelectorOpIn, Values: []string{"edge1", "edge2"}}}
	}))
	cluster.Eventually(t, "a second of its own", func(ctx context.Context) error { // creation times are seconds
		set, err := s.get(ctx, "older")
		if err == nil && time.Since(set.CreationTimestamp.Time) < 2*time.Second {
			err = errors.New("not yet")
		}
		return err
	})
	s.apply("newer", update("v2", nil))
	s.lead()
	s.await("older", "Complete", func(set *v1alpha1.NodeOperationSet) bool { return set.Status.Done == 2 })
	newer := s.await("newer", "Complete", func(set *v1alpha1.NodeOperationSet) bool { return set.Status.Done == 1 })
	if c := meta.FindStatusCondition(newer.Status.Conditions, v1alpha1.SetConflict); c == nil || c.Status != metav1.ConditionTrue || !strings.Contains(c.Message, "on 2 nodes: older") {
		t.Errorf("the newer one's condition is %+v", c)
	}
	if ran := s.taken(); fmt.Sprint(ran) != "map[edge1:[v1] edge2:[v1] edge3:[v2]]" {
		t.Errorf("operations were %v", ran)
	}
	if err := s.sets.Delete(t.Context(), "older", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.await("newer", "Complete", func(set *v1alpha1.NodeOperationSet) bool { return set.Status.Done == 3 })
}

// Scenario 23: never two devices of a pool at once.
func TestFleet_23_NeverTwoDevicesOfAPoolAtOnce(t *testing.T) {
	s := newSystem(t)
	for i := range 9 {
		s.join(fmt.Sprintf("edge%d", i+1), fmt.Sprintf("pool%d", i%3))
	}
	s.link("edge1", corev1.ConditionFalse) // pool0 has one that is unavailable: it alone gets an operation, until it is back
	s.behave(func(o *v1alpha1.NodeOperation) string {
		if time.Since(o.CreationTimestamp.Time) < time.Second {
			return "Running"
		}
		return booted
	})
	s.apply("a", update("v1", nil))
	s.lead()
	s.await("a", "Progressing", func(set *v1alpha1.NodeOperationSet) bool { return set.Status.Done == 7 }) // 3 + 3 + edge1
	if ran := s.taken(); len(ran["edge4"])+len(ran["edge7"]) > 0 || len(ran["edge1"]) != 1 {
		t.Errorf("while edge1 is NotReady operations began on %v", slices.Sorted(maps.Keys(ran)))
	}
	s.link("edge1", corev1.ConditionTrue)
	s.await("a", "Complete", func(set *v1alpha1.NodeOperationSet) bool { return set.Status.Done == 9 })
	s.mu.Lock()
	defer s.mu.Unlock()
	for pool, n := range s.atOnce {
		if n != 1 {
			t.Errorf("%d devices of %s had an operation at once", n, pool)
		}
	}
}

// Rights: a set needs those of its operations; a node writes no results; cloudcore changes nothing
// else of Nodes and no operations of others; the requester is known.
func TestFleet_16_SetNeedsTheRightsOfItsOperations(t *testing.T) {
	s := newSystem(t, "edge1")
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "sets"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{v1alpha1.Group}, Resources: []string{v1alpha1.NodeOperationSets, v1alpha1.NodeOperations}, Verbs: []string{"create", "get"}},
	}}
	if _, err := s.client.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.client.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "sets"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "sets"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "alice"}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	alice, err := dynamic.NewForConfig(s.plane.User(t, "alice"))
	if err != nil {
		t.Fatal(err)
	}
	set := func(name string, spec v1alpha1.NodeOperationSetSpec) *unstructured.Unstructured {
		object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&v1alpha1.NodeOperationSet{
			TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "NodeOperationSet"}, ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec,
		})
		if err != nil {
			t.Fatal(err)
		}
		delete(object, "status")
		return &unstructured.Unstructured{Object: object}
	}
	upgrade := update("", func(spec *v1alpha1.NodeOperationSetSpec) {
		spec.Template.Operation, spec.Template.Upgrade = v1alpha1.OperationUpgrade, &v1alpha1.UpgradeSpec{Version: "v9.0.0"}
	})
	sets := alice.Resource(v1alpha1.Resource(v1alpha1.NodeOperationSets))
	cluster.Eventually(t, "a set without the right to its operations to be refused", func(ctx context.Context) error {
		_, err := sets.Create(ctx, set("upgrade", upgrade), metav1.CreateOptions{})
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "nodeoperations/upgrade") {
			_ = s.sets.Delete(ctx, "upgrade", metav1.DeleteOptions{}) // the policy was not there yet
			return fmt.Errorf("it is %w", err)
		}
		return nil
	})
	cluster.Eventually(t, "a set to note who made it", func(ctx context.Context) error {
		made, err := sets.Create(ctx, set("update", update("v1", nil)), metav1.CreateOptions{})
		if err == nil && made.GetAnnotations()[v1alpha1.RequestedByAnnotation] != "alice" {
			err = errors.Join(errors.New("it does not"), s.sets.Delete(ctx, "update", metav1.DeleteOptions{}))
		}
		return err
	})
	s.lead()
	s.await("update", "Complete", nil)
	list, err := s.operations.List(t.Context(), metav1.ListOptions{LabelSelector: v1alpha1.OperationSetLabel + "=update"})
	if err != nil || len(list.Items) != 1 || list.Items[0].GetAnnotations()[v1alpha1.RequestedByAnnotation] != "alice" {
		t.Errorf("its operations are %v, %v", list, err)
	}
	edge := kubernetes.NewForConfigOrDie(s.plane.Node(t, "edge1"))
	own := kubernetes.NewForConfigOrDie(s.plane.ServiceAccount(t, "skerry-system", "cloudcore"))
	annotation := func(c kubernetes.Interface, key, value string) error {
		_, err := c.CoreV1().Nodes().Patch(t.Context(), "edge1", types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, key, value), metav1.PatchOptions{})
		return err
	}
	for name, err := range map[string]error{
		"a node's write of its results":         annotation(edge, v1alpha1.OperationSetsAnnotation, "[]"),
		"cloudcore's of another annotation":     annotation(own, v1alpha1.CordonAnnotation, "me"),
		"a node's operation of a set by itself": forged(t, s.plane, "edge1"),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := annotation(edge, "example.com/mine", "x"); err != nil {
		t.Errorf("a node's other annotation: %v", err)
	}
	manual := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "skerry.io/v1alpha1", "kind": "NodeOperation", "metadata": map[string]any{"name": "manual"}, "spec": map[string]any{"nodeName": "edge1", "operation": "Reboot"},
	}}
	if _, err := s.operations.Create(t.Context(), manual, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	cloudcore, err := dynamic.NewForConfig(s.plane.ServiceAccount(t, "skerry-system", "cloudcore"))
	if err != nil {
		t.Fatal(err)
	}
	if err := cloudcore.Resource(v1alpha1.Resource(v1alpha1.NodeOperations)).Delete(t.Context(), "manual", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("cloudcore's deletion of an operation that no set made: %v", err)
	}
}

func forged(t *testing.T, plane *cluster.ControlPlane, node string) error {
	t.Helper()
	c, err := dynamic.NewForConfig(plane.Node(t, node))
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Resource(v1alpha1.Resource(v1alpha1.NodeOperations)).Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "skerry.io/v1alpha1", "kind": "NodeOperation", "metadata": map[string]any{"name": "forged", "labels": map[string]any{v1alpha1.OperationSetLabel: "a"}},
		"spec": map[string]any{"nodeName": node, "operation": "Reboot"},
	}}, metav1.CreateOptions{})
	return err
}

// Every example is accepted, and a bad one is refused with the field's name.
func TestOperationSet_Validation(t *testing.T) {
	plane := cluster.Shared(t)
	plane.Apply(t, "manifests/crds")
	admin, err := dynamic.NewForConfig(plane.Admin())
	if err != nil {
		t.Fatal(err)
	}
	sets := admin.Resource(v1alpha1.Resource(v1alpha1.NodeOperationSets))
	cluster.Eventually(t, "NodeOperationSets to be served", func(ctx context.Context) error {
		_, err := sets.List(ctx, metav1.ListOptions{})
		return err
	})
	plane.Apply(t, "manifests/examples/fleet")
	defer func() {
		if err := sets.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			t.Error(err)
		}
	}()
	for want, change := range map[string]func(spec map[string]any){
		"":                                func(map[string]any) {},
		"either nodeSelector or nodePool": func(spec map[string]any) { spec["nodePool"] = "p" },
		"spec.template.image":             func(spec map[string]any) { spec["template"].(map[string]any)["image"] = strings.Repeat("x", 1025) },
		"image is needed":                 func(spec map[string]any) { spec["template"].(map[string]any)["image"] = "x" },
		"upgrade is needed":               func(spec map[string]any) { spec["template"].(map[string]any)["operation"] = "Upgrade" },
		"spec.maxParallel":                func(spec map[string]any) { spec["maxParallel"] = "0%" },
		"spec.maxParallel: Invalid":       func(spec map[string]any) { spec["maxParallel"] = int64(501) },
		"spec.failureThreshold":           func(spec map[string]any) { spec["failureThreshold"] = "101%" },
		"spec.nodeDeadline":               func(spec map[string]any) { spec["nodeDeadline"] = "1s" },
		"spec.waves[0]":                   func(spec map[string]any) { spec["waves"] = []any{map[string]any{"soak": "1h"}} },
		"spec.waves: Too many": func(spec map[string]any) {
			spec["waves"] = slices.Repeat([]any{map[string]any{"percent": int64(1)}}, 9)
		},
		"spec.maxUnavailablePerPool": func(spec map[string]any) { spec["maxUnavailablePerPool"] = int64(0) },
	} {
		spec := map[string]any{"template": map[string]any{"operation": "Reboot"}, "nodeSelector": map[string]any{}}
		change(spec)
		_, err := sets.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "skerry.io/v1alpha1", "kind": "NodeOperationSet", "metadata": map[string]any{"name": "a"}, "spec": spec,
		}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
