package table_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/node/install" // the printers alone don't register it
	"k8s.io/kubernetes/pkg/printers"
	"k8s.io/kubernetes/pkg/printers/internalversion"

	"github.com/skerry-io/skerry/edge/internal/core/table"
)

// upstream makes kube-apiserver's table of an object.
func upstream(t *testing.T, generator printers.TableGenerator, o runtime.Object) *metav1.Table {
	t.Helper()
	internal, err := legacyscheme.Scheme.ConvertToVersion(o.DeepCopyObject(), runtime.InternalGroupVersioner)
	if err != nil {
		t.Fatal(err)
	}
	want, err := generator.GenerateTable(internal, printers.GenerateOptions{Wide: true})
	if err != nil {
		t.Fatal(err)
	}
	return want
}

// same compares the printed cells.
func same(t *testing.T, generator printers.TableGenerator, o runtime.Object) {
	t.Helper()
	got, ok := table.Of(o)
	if !ok {
		t.Fatalf("no table of %T", o)
	}
	diff := cmp.Diff(upstream(t, generator, o), got, cmpopts.IgnoreFields(metav1.TableColumnDefinition{}, "Description"),
		cmpopts.IgnoreFields(metav1.TableRow{}, "Object"), cmpopts.EquateEmpty())
	if diff != "" {
		t.Fatalf("kube-apiserver's table (-) and ours (+) of %+v:\n%s", o, diff)
	}
}

// Ages are whole days, so that no second passes between the two tables.
func days(n int) metav1.Time {
	return metav1.NewTime(time.Now().Add(-time.Duration(n)*24*time.Hour - time.Hour))
}

func object(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, CreationTimestamp: days(12), ResourceVersion: "7"}
}

func ptr[T any](v T) *T { return &v }

func TestLikeKubeAPIServer(t *testing.T) {
	generator := printers.NewTableGenerator().With(internalversion.AddHandlers)
	now, left := metav1.Now(), int64(3)
	deleted := object("deleted")
	deleted.DeletionTimestamp = &now
	for name, o := range map[string]runtime.Object{
		"a ConfigMap":            &corev1.ConfigMap{ObjectMeta: object("c"), Data: map[string]string{"a": "", "b": ""}, BinaryData: map[string][]byte{"c": nil}},
		"a Secret":               &corev1.Secret{ObjectMeta: object("s"), Type: corev1.SecretTypeTLS, Data: map[string][]byte{"a": nil}},
		"a ServiceAccount":       &corev1.ServiceAccount{ObjectMeta: object("s")},
		"one without an age":     &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "new"}},
		"a Namespace":            &corev1.Namespace{ObjectMeta: object("n"), Status: corev1.NamespaceStatus{Phase: corev1.NamespaceActive}},
		"a Lease":                &coordinationv1.Lease{ObjectMeta: object("l"), Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr("edge1")}},
		"a Lease without holder": &coordinationv1.Lease{ObjectMeta: object("l")},
		"a RuntimeClass":         &nodev1.RuntimeClass{ObjectMeta: object("r"), Handler: "runc"},
		"no pods":                &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "12"}},
		"a part of a list": &corev1.ConfigMapList{
			ListMeta: metav1.ListMeta{ResourceVersion: "12", Continue: "more", RemainingItemCount: &left},
			Items:    []corev1.ConfigMap{{ObjectMeta: object("a")}, {ObjectMeta: object("b")}},
		},

		"a node that is nothing yet": &corev1.Node{ObjectMeta: object("n")},
		"a Ready node": &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "n", CreationTimestamp: days(3), Labels: map[string]string{
				"node-role.kubernetes.io/edge": "", "node-role.kubernetes.io/": "", "kubernetes.io/role": "gate", "other": "x",
			}},
			Status: corev1.NodeStatus{
				Conditions: []corev1.NodeCondition{{Type: corev1.NodeDiskPressure, Status: corev1.ConditionTrue}, {Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
				Addresses:  []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "n"}, {Type: corev1.NodeInternalIP, Address: "10.0.0.1"}, {Type: corev1.NodeExternalIP, Address: "192.0.2.1"}},
				NodeInfo:   corev1.NodeSystemInfo{KubeletVersion: "v1.37.1", OSImage: "Debian", KernelVersion: "6.1", Architecture: "arm64", ContainerRuntimeVersion: "containerd://2"},
			},
		},
		"a cordoned node, not Ready": &corev1.Node{
			ObjectMeta: object("n"), Spec: corev1.NodeSpec{Unschedulable: true},
			Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}},
		},

		"a ClusterIP": &corev1.Service{ObjectMeta: object("s"), Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIPs: []string{"10.96.0.10", "fd00::10"}, Selector: map[string]string{"b": "2", "a": "1"},
			Ports: []corev1.ServicePort{{Port: 53, Protocol: corev1.ProtocolUDP}, {Port: 80, NodePort: 30080, Protocol: corev1.ProtocolTCP}},
		}},
		"a headless one without ports": &corev1.Service{ObjectMeta: object("s"), Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIPs: []string{"None"}}},
		"external addresses":           &corev1.Service{ObjectMeta: object("s"), Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, ExternalIPs: []string{"192.0.2.1", "192.0.2.2"}}},
		"an external name":             &corev1.Service{ObjectMeta: object("s"), Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.com"}},
		"a pending LoadBalancer":       &corev1.Service{ObjectMeta: object("s"), Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer}},
		"a served LoadBalancer": &corev1.Service{
			ObjectMeta: object("s"), Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ExternalIPs: []string{"192.0.2.1"}},
			Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{
				{IP: "192.168.10.234", Hostname: "pool"}, {Hostname: "name"}, {}, {IP: "192.168.10.12"}, {IP: "192.168.10.234"},
			}}},
		},
		"no type": &corev1.Service{ObjectMeta: object("s")},

		"an event": &corev1.Event{
			ObjectMeta: object("e"), FirstTimestamp: days(3), LastTimestamp: days(2), Count: 4, Type: "Normal", Reason: "Pulled", Message: " said \n",
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: "p", FieldPath: "spec.containers{c}"}, Source: corev1.EventSource{Component: "kubelet", Host: "edge1"},
		},
		"an event of the new kind": &corev1.Event{
			ObjectMeta: object("e"), EventTime: metav1.NewMicroTime(days(4).Time), ReportingController: "kubelet", ReportingInstance: "edge1", InvolvedObject: corev1.ObjectReference{Kind: "Node"},
		},
		"a series": &corev1.Event{
			ObjectMeta: object("e"), EventTime: metav1.NewMicroTime(days(4).Time), Series: &corev1.EventSeries{Count: 9, LastObservedTime: metav1.NewMicroTime(days(1).Time)}, ReportingController: "c",
		},
		"an event without times": &corev1.Event{ObjectMeta: object("e")},

		"a volume": &corev1.PersistentVolume{
			ObjectMeta: object("v"), Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound, Reason: "r"},
			Spec: corev1.PersistentVolumeSpec{
				Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("5Gi")}, ClaimRef: &corev1.ObjectReference{Namespace: "n", Name: "c"}, StorageClassName: "fast",
				AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod, corev1.ReadWriteMany, corev1.ReadOnlyMany, corev1.ReadWriteOnce, corev1.ReadWriteOnce},
				PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain, VolumeMode: ptr(corev1.PersistentVolumeBlock), VolumeAttributesClassName: ptr("gold"),
			},
		},
		"a bare volume":      &corev1.PersistentVolume{ObjectMeta: deleted},
		"a bare claim":       &corev1.PersistentVolumeClaim{ObjectMeta: deleted},
		"an unbound claim":   &corev1.PersistentVolumeClaim{ObjectMeta: object("c"), Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}}},
		"a claim of old age": &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c", CreationTimestamp: days(1), Annotations: map[string]string{corev1.BetaStorageClassAnnotation: "old"}}},
		"a bound claim": &corev1.PersistentVolumeClaim{
			ObjectMeta: object("c"), Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "v", StorageClassName: ptr("fast"), VolumeMode: ptr(corev1.PersistentVolumeFilesystem)},
			Status: corev1.PersistentVolumeClaimStatus{
				Phase: corev1.ClaimBound, Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1500Mi")}, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany},
			},
		},
	} {
		t.Run(name, func(t *testing.T) { same(t, generator, o) })
	}
}

// one picks at random.
func one[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

func state(r *rand.Rand) corev1.ContainerState {
	var s corev1.ContainerState
	switch r.IntN(5) {
	case 0:
		s.Waiting = &corev1.ContainerStateWaiting{Reason: one(r, "", "PodInitializing", "ContainerCreating", "CrashLoopBackOff", "ImagePullBackOff")}
	case 1, 2:
		s.Running = &corev1.ContainerStateRunning{}
	case 3:
		s.Terminated = &corev1.ContainerStateTerminated{
			ExitCode: one(r, int32(0), 0, 1, 137), Signal: one(r, int32(0), 9), Reason: one(r, "", "Completed", "Completed", "Error", "OOMKilled"), FinishedAt: days(2),
		}
	}
	return s
}

func statuses(r *rand.Rand, prefix string, n int) []corev1.ContainerStatus {
	var all []corev1.ContainerStatus
	for i := range n {
		c := corev1.ContainerStatus{Name: fmt.Sprint(prefix, i), Ready: one(r, true, false), State: state(r), Started: one(r, nil, ptr(true), ptr(false)), RestartCount: one(r, int32(0), 0, 3)}
		if r.IntN(3) == 0 {
			c.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{FinishedAt: one(r, days(1), days(5), metav1.Time{})}
		}
		all = append(all, c)
	}
	return all
}

// somePod is a pod that may be in any state, those included that no kubelet reports.
func somePod(r *rand.Rand) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: object("p")}
	p.Spec.NodeName, p.Status.NominatedNodeName = one(r, "", "edge1"), one(r, "", "edge2")
	p.Status.Phase = one(r, corev1.PodPending, corev1.PodRunning, corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed, corev1.PodUnknown)
	p.Status.Reason = one(r, "", "", "", "Evicted", "NodeLost")
	if r.IntN(4) == 0 {
		p.DeletionTimestamp = ptr(metav1.Now())
	}
	if r.IntN(2) == 0 {
		p.Status.PodIPs = []corev1.PodIP{{IP: one(r, "", "10.244.1.2")}, {IP: "fd00::2"}}
	}
	for _, gate := range []corev1.PodConditionType{"a", "b"} {
		if r.IntN(3) == 0 {
			p.Spec.ReadinessGates = append(p.Spec.ReadinessGates, corev1.PodReadinessGate{ConditionType: gate})
		}
	}
	for _, condition := range []corev1.PodConditionType{corev1.PodScheduled, corev1.PodInitialized, corev1.PodReady, "a"} {
		for range r.IntN(3) { // two of one type: the first counts, or any does
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{
				Type: condition, Status: one(r, corev1.ConditionTrue, corev1.ConditionFalse), Reason: one(r, "", "", corev1.PodReasonSchedulingGated),
			})
		}
	}
	inits, mains := r.IntN(4), r.IntN(4)
	for i := range inits {
		p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{Name: fmt.Sprint("i", i), RestartPolicy: one(r, nil, ptr(corev1.ContainerRestartPolicyAlways))})
	}
	for i := range mains {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: fmt.Sprint("c", i)})
	}
	p.Status.InitContainerStatuses, p.Status.ContainerStatuses = statuses(r, "i", r.IntN(inits+1)), statuses(r, "c", r.IntN(mains+1))
	return p
}

func TestPodsInAnyState(t *testing.T) {
	generator := printers.NewTableGenerator().With(internalversion.AddHandlers)
	const pods = 20_000
	seen := map[string]int{}
	for seed := range uint64(pods) {
		p := somePod(rand.New(rand.NewPCG(seed, 1)))
		same(t, generator, p)
		own, _ := table.Of(p)
		seen[own.Rows[0].Cells[2].(string)]++
	}
	// The pods must cover all statuses.
	for _, status := range []string{"Running", "NotReady", "Terminating", "Unknown", "SchedulingGated", "Evicted", "Completed", "Signal:9", "ExitCode:1", "Init:0/1", "Init:Signal:9", "Init:CrashLoopBackOff"} {
		if seen[status] == 0 {
			t.Errorf("none of %d pods is %s", pods, status)
		}
	}
}

func TestNoColumnsOfItsOwn(t *testing.T) {
	for _, o := range []runtime.Object{&storagev1.CSIDriver{}, &storagev1.CSIDriverList{}, &metav1.Status{}} {
		if got, ok := table.Of(o); ok {
			t.Errorf("%T: %+v", o, got)
		}
	}
}
