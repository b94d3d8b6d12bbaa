package serviceview_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/skerry-io/skerry/edge/internal/core/agent/agenttest"
	"github.com/skerry-io/skerry/edge/internal/site/serviceview"
)

func ptr[T any](v T) *T { return &v }

var born = metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))

func service(name string) *corev1.Service {
	return &corev1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: name, UID: "u", CreationTimestamp: born, Annotations: map[string]string{"a": "b"}, Finalizers: []string{"f"},
			Labels: map[string]string{"team": "x", "service.kubernetes.io/service-proxy-name": "other"},
		},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "x"}, Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.96.0.7", ClusterIPs: []string{"10.96.0.7"}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			SessionAffinity: corev1.ServiceAffinityNone, InternalTrafficPolicy: ptr(corev1.ServiceInternalTrafficPolicyCluster), TrafficDistribution: ptr("PreferSameZone"),
			Ports: []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, TargetPort: intstr.FromString("web"), NodePort: 30080}},
		},
		Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: "192.0.2.9"}}}},
	}
}

func slice(name string) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: name, GenerateName: "web-", UID: "u", CreationTimestamp: born,
			Labels:          map[string]string{discoveryv1.LabelServiceName: "web", discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io", "service.kubernetes.io/headless": ""},
			Annotations:     map[string]string{corev1.EndpointsLastChangeTriggerTime: "2026-01-02T03:04:05Z"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: "web", UID: "u", Controller: ptr(true)}},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr("http"), Protocol: ptr(corev1.ProtocolTCP), Port: ptr(int32(8080))}},
		Endpoints: []discoveryv1.Endpoint{{
			Addresses: []string{"10.244.1.5"}, Hostname: ptr("db-0"), NodeName: ptr("edge1"), Zone: ptr("plant"),
			Conditions: discoveryv1.EndpointConditions{Ready: ptr(true), Serving: ptr(true), Terminating: ptr(false)},
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: "db-0", UID: "p"},
			Hints:      &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "plant"}}, ForNodes: []discoveryv1.ForNode{{Name: "edge1"}}},
		}},
	}
}

// follow runs a View until the test ends.
func follow(t *testing.T, api *agenttest.API, corrected <-chan struct{}) *serviceview.View {
	t.Helper()
	v, err := serviceview.New(api.Config(), corrected)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { v.Follow(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	synctest.Wait()
	return v
}

// A View keeps the fields that a proxy and a name server use, and no others.
func TestView_keepsWhatIsUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := agenttest.NewAPI()
		api.Put(t, "services", service("web"))
		api.Put(t, "endpointslices", slice("web-1"))
		corrected := make(chan struct{})
		close(corrected)
		v := follow(t, api, corrected)

		want := service("web")
		want.TypeMeta = metav1.TypeMeta{}
		want.ObjectMeta = metav1.ObjectMeta{
			Namespace: "shop", Name: "web", ResourceVersion: "1", CreationTimestamp: born, Labels: map[string]string{"service.kubernetes.io/service-proxy-name": "other"},
		}
		want.Spec.Selector = nil
		have, _, _ := v.Services().GetStore().GetByKey("shop/web")
		got := have.(*corev1.Service).DeepCopy()
		got.TypeMeta = metav1.TypeMeta{}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("Service (-want +got):\n%s", diff)
		}

		wantSlice := slice("web-1")
		wantSlice.TypeMeta = metav1.TypeMeta{}
		wantSlice.ObjectMeta = metav1.ObjectMeta{
			Namespace: "shop", Name: "web-1", ResourceVersion: "2", CreationTimestamp: born, Labels: map[string]string{discoveryv1.LabelServiceName: "web", "service.kubernetes.io/headless": ""},
		}
		wantSlice.Endpoints[0].TargetRef = nil
		have, _, _ = v.Slices().GetStore().GetByKey("shop/web-1")
		gotSlice := have.(*discoveryv1.EndpointSlice).DeepCopy()
		gotSlice.TypeMeta = metav1.TypeMeta{}
		if diff := cmp.Diff(wantSlice, gotSlice); diff != "" {
			t.Errorf("EndpointSlice (-want +got):\n%s", diff)
		}
	})
}

// Objects share equal parts; texts beyond the bound they have each
// for itself.
func TestView_shares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := agenttest.NewAPI()
		const many = 5000 // more node names than are shared
		for n := range many {
			s := slice(fmt.Sprint("web-", n))
			s.Endpoints[0].NodeName = ptr(fmt.Sprint("node-", n))
			api.Put(t, "endpointslices", s)
		}
		corrected := make(chan struct{})
		close(corrected)
		v := follow(t, api, corrected)
		all := v.Slices().GetStore().List()
		if len(all) != many {
			t.Fatalf("%d slices", len(all))
		}
		ready, ports := map[*bool]bool{}, map[*string]bool{}
		for _, o := range all {
			s := o.(*discoveryv1.EndpointSlice)
			ready[s.Endpoints[0].Conditions.Ready], ports[s.Ports[0].Name] = true, true
			if *s.Endpoints[0].NodeName != "node-"+s.Name[len("web-"):] {
				t.Errorf("%s is on %s", s.Name, *s.Endpoints[0].NodeName)
			}
		}
		if len(ready) != 1 || len(ports) != 1 {
			t.Errorf("%d slices have %d conditions and %d names of ports", many, len(ready), len(ports))
		}
	})
}

// Services are available at once, EndpointSlices not before they are corrected.
func TestView_waits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := agenttest.NewAPI()
		api.Put(t, "services", service("web"))
		api.Put(t, "endpointslices", slice("web-1"))
		corrected := make(chan struct{})
		v := follow(t, api, corrected)
		time.Sleep(time.Minute)
		if n := len(v.Services().GetStore().ListKeys()); n != 1 || v.HasSynced() || len(v.Slices().GetStore().ListKeys()) != 0 {
			t.Errorf("before the correction: %d Services, synced: %v, slices: %v", n, v.HasSynced(), v.Slices().GetStore().ListKeys())
		}
		close(corrected)
		time.Sleep(time.Minute)
		if !v.HasSynced() || len(v.Slices().GetStore().ListKeys()) != 1 {
			t.Errorf("after the correction: synced: %v, slices: %v", v.HasSynced(), v.Slices().GetStore().ListKeys())
		}
	})
}

// Two that read the same state of a Service have one copy, whichever comes first; another state is
// another copy. Deleted ones are dropped.
func TestView_shared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := agenttest.NewAPI()
		read := func(s *corev1.Service) *corev1.Service { return s.DeepCopy() } // as decoded once more
		first := service("first")
		api.Put(t, "services", first)
		v := follow(t, api, nil)
		of := func(name string) *corev1.Service {
			o, _, _ := v.Services().GetStore().GetByKey("shop/" + name)
			return o.(*corev1.Service)
		}
		if v.Shared(read(first)) != of("first") {
			t.Error("who reads after the View has a copy of its own")
		}
		second := service("second")
		second.ResourceVersion = "2" // as the API is going to have it
		early := v.Shared(read(second))
		api.Put(t, "services", second)
		time.Sleep(time.Second)
		if of("second") != early {
			t.Error("the View has a copy of its own beside who read before it")
		}
		before := of("first")
		first.Spec.Ports[0].Port = 81
		api.Put(t, "services", first)
		time.Sleep(time.Second)
		if now := v.Shared(read(first)); now == before || now != of("first") || now.Spec.Ports[0].Port != 81 || before.Spec.Ports[0].Port != 80 {
			t.Error("a changed Service is not a copy of its own")
		}
		if a, b := v.Shared(&corev1.Service{}), v.Shared(&corev1.Service{}); a == b {
			t.Error("Services without a version are taken for one")
		}
	})
}
