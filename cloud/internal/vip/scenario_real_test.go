package vip_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/cloud/internal/vip"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/tests/cluster"
)

// vips are the names of all VirtualIPs.
func (r *real) vips() []string {
	r.t.Helper()
	list, err := r.dynamic.Resource(resource(v1alpha1.VirtualIPs)).List(r.t.Context(), metav1.ListOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	names := []string{}
	for _, o := range list.Items {
		names = append(names, o.GetName())
	}
	slices.Sort(names)
	return names
}

// poolAddresses waits until a pool's spec has these.
func (r *real) poolAddresses(pool string, want ...string) {
	r.t.Helper()
	cluster.Eventually(r.t, "the addresses of pool "+pool, func(ctx context.Context) error {
		u, err := r.dynamic.Resource(resource(v1alpha1.NodePools)).Get(ctx, pool, metav1.GetOptions{})
		if err != nil {
			return err
		}
		have, _, err := unstructured.NestedStringSlice(u.Object, "spec", "addresses")
		if err != nil || !slices.Equal(have, want) {
			return errors.Join(err, fmt.Errorf("they are %q, want %q", have, want))
		}
		return nil
	})
}

func (r *real) releasing(name string) {
	r.t.Helper()
	cluster.Eventually(r.t, name+" is being released", func(context.Context) error {
		if r.vip(name).DeletionTimestamp == nil {
			return errors.New("it is not")
		}
		return nil
	})
}

func (r *real) deleteService(name string) {
	r.t.Helper()
	if err := plane.Client().CoreV1().Services("default").Delete(r.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		r.t.Fatal(err)
	}
}

func TestVIPs_02_OtherPoolsGetNothing(t *testing.T) {
	r := newReal(t)
	r.create(r.pool("chosen", map[string]any{"addresses": []any{"10.20.0.10"}}))
	for name, labels := range map[string]map[string]any{"unlabelled": {}, "other": {"lb": "no"}} {
		p := r.pool(name, map[string]any{"addresses": []any{"10.20.1.10"}, "network": name})
		p.Object["metadata"].(map[string]any)["labels"] = labels
		r.create(p)
	}
	// A pool of the cloud's own nodes serves nobody, whatever its labels.
	r.create(r.pool("central", map[string]any{"type": "Cloud", "addresses": []any{"10.20.2.10"}, "network": "central"}))
	r.service("web", nil)
	r.service("unchosen", map[string]string{v1alpha1.VIPPoolSelector: "lb=nowhere"})
	r.service("silent", map[string]string{v1alpha1.VIPPoolSelector: ""})
	r.is("web", vip.ReasonAllocated, "chosen 10.20.0.10")
	r.is("unchosen", vip.ReasonNoPool)
	r.is("silent", vip.ReasonNoPoolSelector)
	if got := r.vips(); !slices.Equal(got, []string{"10.20.0.10"}) {
		t.Errorf("VirtualIPs: %q", got)
	}
	cluster.Eventually(t, "an event says that no pool was chosen", func(ctx context.Context) error {
		list, err := plane.Client().CoreV1().Events("default").List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(list.Items, func(e corev1.Event) bool {
			return e.InvolvedObject.Name == "silent" && e.Reason == vip.ReasonNoPoolSelector
		}) {
			return errors.New("there is none")
		}
		return nil
	})
}

func TestVIPs_03_OtherClassIgnored(t *testing.T) {
	r := newReal(t)
	r.create(r.pool("classes", map[string]any{"addresses": []any{"10.21.0.10-10.21.0.19"}}))
	of := func(name, kind string, class *string) *corev1.Service {
		return &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{v1alpha1.VIPPoolSelector: "lb=yes"}},
			Spec: corev1.ServiceSpec{
				Type: corev1.ServiceType(kind), LoadBalancerClass: class, Selector: map[string]string{"app": name}, Ports: []corev1.ServicePort{{Port: 80}},
			},
		}
	}
	other := "example.com/metal"
	for _, s := range []*corev1.Service{of("foreign", "LoadBalancer", &other), of("classless", "LoadBalancer", nil), of("internal", "ClusterIP", nil)} {
		if _, err := plane.Client().CoreV1().Services("default").Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	// Somebody else's result is somebody else's.
	if _, err := plane.Client().CoreV1().Services("default").Patch(t.Context(), "foreign", types.MergePatchType,
		[]byte(`{"status":{"loadBalancer":{"ingress":[{"ip":"10.99.0.1"}]}}}`), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	r.service("ours", nil) // the last: when it is served, the others have been looked at
	r.is("ours", vip.ReasonAllocated, "classes 10.21.0.10")
	if got := r.vips(); !slices.Equal(got, []string{"10.21.0.10"}) {
		t.Errorf("VirtualIPs: %q", got)
	}
	for name, want := range map[string]int{"foreign": 1, "classless": 0, "internal": 0} {
		s, err := plane.Client().CoreV1().Services("default").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(s.Status.Conditions) > 0 || len(s.Status.LoadBalancer.Ingress) != want {
			t.Errorf("Service %s was written to: %+v", name, s.Status)
		}
	}
}

func TestVIPs_05_ExplicitOutsideJoinsThePool(t *testing.T) {
	r := newReal(t)
	r.edgeNode("join-a", "joined", "10.22.0.1")
	r.create(r.pool("joined", map[string]any{"addresses": []any{"10.22.0.10-10.22.0.11"}, "allowRequested": true}))
	r.service("asked", map[string]string{v1alpha1.VIPAddressPrefix + "joined": "10.22.0.99"})
	r.is("asked", vip.ReasonAllocated, "joined 10.22.0.99")
	r.poolAddresses("joined", "10.22.0.10-10.22.0.11", "10.22.0.99")
	if v := r.vip("10.22.0.99"); !v.Spec.AddedToPool {
		t.Error("it does not say that it was added to the pool")
	}
	r.deleteService("asked")
	r.releasing("10.22.0.99")
	r.report("10.22.0.99", v1alpha1.VIPReleased)
	r.gone("10.22.0.99")
	r.poolAddresses("joined", "10.22.0.10-10.22.0.11")
	// It was not left to others.
	r.service("next", nil)
	r.is("next", vip.ReasonAllocated, "joined 10.22.0.10")
}

func TestVIPs_06_SameExplicitAddressTwice(t *testing.T) {
	r := newReal(t)
	r.create(r.pool("twice", map[string]any{"addresses": []any{"10.23.0.10-10.23.0.19"}}))
	asks := map[string]string{v1alpha1.VIPAddressPrefix + "twice": "10.23.0.15"}
	r.service("first", asks)
	r.is("first", vip.ReasonAllocated, "twice 10.23.0.15")
	r.service("second", asks)
	r.is("second", vip.ReasonAddressInUse)
	first := r.vip("10.23.0.15")
	if first.Spec.Service.Name != "first" {
		t.Errorf("%s has it", first.Spec.Service.Name)
	}
	// Making the object is the claim: kube-apiserver itself refuses a second one, whoever makes it.
	u, err := r.dynamic.Resource(resource(v1alpha1.VirtualIPs)).Get(t.Context(), "10.23.0.15", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	u.SetResourceVersion("")
	u.SetUID("")
	if _, err := r.dynamic.Resource(resource(v1alpha1.VirtualIPs)).Create(t.Context(), u, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		t.Errorf("a second claim: %v", err)
	}
	r.deleteService("first")
	r.is("second", vip.ReasonAllocated, "twice 10.23.0.15")
	if now := r.vip("10.23.0.15"); now.Spec.Service.Name != "second" || now.UID == first.UID {
		t.Errorf("it is %+v", now.Spec.Service)
	}
}

// The first election ends, for the nodes too, when one has held the address: their copies have no status.
func TestReal_Elected(t *testing.T) {
	r := newReal(t)
	r.edgeNode("elect-a", "elects", "10.24.0.1")
	r.create(r.pool("elects", map[string]any{"addresses": []any{"10.24.0.10"}}))
	r.service("web", nil)
	r.is("web", vip.ReasonAllocated, "elects 10.24.0.10")
	at := time.Now()
	r.report("10.24.0.10", v1alpha1.VIPHolder)
	cluster.Eventually(t, "its spec says so", func(context.Context) error {
		if !r.vip("10.24.0.10").Spec.Elected {
			return fmt.Errorf("not after %v", time.Since(at))
		}
		return nil
	})
}
