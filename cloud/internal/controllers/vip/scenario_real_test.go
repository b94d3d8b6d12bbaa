package vip_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/cloud/internal/controllers/vip"
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
	plane := cluster.Shared(r.t)
	if err := plane.Client().CoreV1().Services("default").Delete(r.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		r.t.Fatal(err)
	}
}

func TestVIPs_02_OtherPoolsGetNothing(t *testing.T) {
	plane := cluster.Shared(t)
	r := newReal(t)
	r.create(r.pool("chosen", map[string]any{"addresses": []any{"10.20.0.10"}}))
	for name, labels := range map[string]map[string]any{"unlabelled": {}, "other": {"lb": "no"}} {
		p := r.pool(name, map[string]any{"addresses": []any{"10.20.1.10"}, "network": name})
		p.Object["metadata"].(map[string]any)["labels"] = labels
		r.create(p)
	}
	// A pool of the cloud's own nodes serves no Service, whatever its labels.
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
	plane := cluster.Shared(t)
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
	// Another controller's result is left alone.
	if _, err := plane.Client().CoreV1().Services("default").Patch(t.Context(), "foreign", types.MergePatchType,
		[]byte(`{"status":{"loadBalancer":{"ingress":[{"ip":"10.99.0.1"}]}}}`), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	r.service("ours", nil) // the last: when it is served, the others have been processed
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
	// Making the object is the claim: kube-apiserver itself refuses a second one, from any client.
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

// A requested address is judged by the cluster's objects: kube-apiserver's address, its ClusterIP,
// another Service's, the range of Services, a node's, a node's pods', cloudcore's by its name, and
// the pool's ranges.
func TestHostile_03_RequestsForAddressesOfOthersAreRefused(t *testing.T) {
	plane := cluster.Shared(t)
	r := newReal(t)
	ctx := t.Context()
	kubernetes, err := plane.Client().CoreV1().Services("default").Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// As kube-apiserver writes it where it serves more than this machine.
	endpoints := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "kubernetes-of-test", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.26.0.77"}}},
	}
	if _, err := plane.Client().DiscoveryV1().EndpointSlices("default").Create(ctx, endpoints, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := plane.Client().DiscoveryV1().EndpointSlices("default").Delete(context.Background(), endpoints.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	r.stop() // a new leader plans at once
	r.start()
	r.edgeNode("victim", "guarded", "10.26.0.1")
	if _, err := plane.Client().CoreV1().Nodes().Patch(ctx, "victim", types.MergePatchType, []byte(`{"spec":{"podCIDR":"10.26.8.0/24","podCIDRs":["10.26.8.0/24"]}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	dns, err := plane.Client().CoreV1().Services("default").Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "dns"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 53}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r.create(r.pool("guarded", map[string]any{"addresses": []any{"10.26.0.10-10.26.0.19"}, "allowRequested": true, "podSubnets": []any{"10.26.8.0/21"}}))
	closed := r.pool("closed", map[string]any{"addresses": []any{"10.27.0.10-10.27.0.19"}, "network": "closed"})
	closed.Object["metadata"].(map[string]any)["labels"] = map[string]any{"lb": "closed"}
	r.create(closed)
	for name, c := range map[string]struct{ address, reason string }{
		"cluster-ip": {kubernetes.Spec.ClusterIP, vip.ReasonProtected},
		"other-ip":   {dns.Spec.ClusterIP, vip.ReasonProtected},
		"node":       {"10.26.0.1", vip.ReasonAddressOfNode},
		"pods":       {"10.26.8.77", vip.ReasonProtected},
		"cloudcore":  {advertised, vip.ReasonProtected},
		"apiserver":  {"10.26.0.77", vip.ReasonProtected},
	} {
		r.service(name, map[string]string{v1alpha1.VIPAddressPrefix + "guarded": c.address})
		r.is(name, c.reason)
	}
	r.service("outside", map[string]string{v1alpha1.VIPPoolSelector: "lb=closed", v1alpha1.VIPAddressPrefix + "closed": "10.27.0.99"})
	r.is("outside", vip.ReasonOutsidePool)
	if got := r.vips(); len(got) > 0 {
		t.Errorf("given are %q", got)
	}
	r.service("allowed", map[string]string{v1alpha1.VIPAddressPrefix + "guarded": "10.26.0.99"})
	r.is("allowed", vip.ReasonAllocated, "guarded 10.26.0.99")
}

// VRIDs by kube-apiserver's own state: reserved ones are honoured, all are used, the next waits and
// is served as soon as one is free; numbers in use by routers are not given away.
func TestVIPs_09_ReservedAndHeardVRIDsAreNotGiven(t *testing.T) {
	r := newReal(t)
	reserved := []any{}
	for n := 3; n <= 252; n++ { // 1 and 2 are the policy's
		reserved = append(reserved, int64(n))
	}
	r.create(r.pool("numbers", map[string]any{"addresses": []any{"10.28.0.10-10.28.0.29"}, "reservedVRIDs": reserved}))
	for i, name := range []string{"one", "two", "three"} { // one after another: those of one moment are served by name
		r.service(name, nil)
		r.is(name, vip.ReasonAllocated, fmt.Sprintf("numbers 10.28.0.%d", 10+i))
	}
	used := map[int32]bool{}
	for _, name := range r.vips() {
		used[r.vip(name).Spec.VRID] = true
	}
	if len(used) != 3 || !used[253] || !used[254] || !used[255] {
		t.Errorf("numbers %v", used)
	}
	r.service("four", nil)
	r.is("four", vip.ReasonVRIDsExhausted)
	r.deleteService("two")
	r.is("four", vip.ReasonAllocated, "numbers 10.28.0.13")
}

func TestVIPs_11_AddressStaysInTheClusterWhenItsPoolShrinks(t *testing.T) {
	r := newReal(t)
	r.create(r.pool("shrinks", map[string]any{"addresses": []any{"10.29.0.10-10.29.0.19"}}))
	r.service("web", nil)
	r.is("web", vip.ReasonAllocated, "shrinks 10.29.0.10")
	before := r.vip("10.29.0.10")
	addresses := func(text string) {
		t.Helper()
		if _, err := r.dynamic.Resource(resource(v1alpha1.NodePools)).Patch(t.Context(), "shrinks", types.MergePatchType,
			[]byte(`{"spec":{"addresses":["`+text+`"]}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	outOfRange := func(want bool) {
		t.Helper()
		cluster.Eventually(t, fmt.Sprintf("OutOfRange is %t", want), func(context.Context) error {
			v := r.vip("10.29.0.10")
			if meta.IsStatusConditionTrue(v.Status.Conditions, v1alpha1.VIPConditionOutOfRange) != want || v.UID != before.UID || v.DeletionTimestamp != nil {
				return fmt.Errorf("%+v", v.Status.Conditions)
			}
			return nil
		})
	}
	addresses("10.29.0.15-10.29.0.19")
	outOfRange(true)
	r.is("web", vip.ReasonAllocated, "shrinks 10.29.0.10")
	r.service("next", nil)
	r.is("next", vip.ReasonAllocated, "shrinks 10.29.0.15")
	addresses("10.29.0.10-10.29.0.19")
	outOfRange(false)
}

func TestVIPs_12_YoungerPoolSaysItOverlaps(t *testing.T) {
	r := newReal(t)
	r.create(r.pool("first", map[string]any{"addresses": []any{"10.30.0.10-10.30.0.11"}}))
	r.service("web", nil)
	r.is("web", vip.ReasonAllocated, "first 10.30.0.10")
	r.create(r.pool("second", map[string]any{"addresses": []any{"10.30.0.11-10.30.0.20", "10.30.0.40"}}))
	r.is("web", vip.ReasonAllocated, "first 10.30.0.10", "second 10.30.0.40")
	cluster.Eventually(t, "the younger pool says that it overlaps", func(ctx context.Context) error {
		u, err := r.dynamic.Resource(resource(v1alpha1.NodePools)).Get(ctx, "second", metav1.GetOptions{})
		if err != nil {
			return err
		}
		conditions, _, err := unstructured.NestedSlice(u.Object, "status", "conditions")
		for _, c := range conditions {
			if c := c.(map[string]any); c["type"] == v1alpha1.PoolOverlap && c["status"] == "True" && strings.Contains(c["message"].(string), "of pool first") {
				return nil
			}
		}
		return errors.Join(err, fmt.Errorf("%v", conditions))
	})
	r.service("more", nil)
	r.is("more", vip.ReasonExhausted, "first 10.30.0.11")
}

// familyService makes a Service of these families that chooses one pool.
func (r *real) familyService(name, pool string, annotations map[string]string, families ...corev1.IPFamily) {
	r.t.Helper()
	plane := cluster.Shared(r.t)
	class, policy := v1alpha1.VIPClass, corev1.IPFamilyPolicySingleStack
	if len(families) > 1 {
		policy = corev1.IPFamilyPolicyRequireDualStack
	}
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{v1alpha1.VIPPoolSelector: "pool=" + pool}},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: &class, Selector: map[string]string{"app": name}, Ports: []corev1.ServicePort{{Port: 80}},
			IPFamilies: families, IPFamilyPolicy: &policy,
		},
	}
	for k, v := range annotations {
		s.Annotations[k] = v
	}
	if _, err := plane.Client().CoreV1().Services("default").Create(r.t.Context(), s, metav1.CreateOptions{}); err != nil {
		r.t.Fatal(err)
	}
}

// named is a pool that a Service can choose by its name.
func (r *real) named(name string, addresses ...any) {
	p := r.pool(name, map[string]any{"addresses": addresses, "network": name})
	p.Object["metadata"].(map[string]any)["labels"] = map[string]any{"pool": name}
	r.create(p)
}

// Single addresses, networks, ranges and IPv6, by kube-apiserver's own validation and allocation:
// both ends are given, and no address outside them. One Service more than there are addresses
// waits.
func TestVIPs_07_RangesAreGivenToTheLastAddress(t *testing.T) {
	r := newReal(t)
	for pool, c := range map[string]struct {
		addresses []any
		family    corev1.IPFamily
		want      []string
	}{
		"single":    {[]any{"10.31.0.7"}, corev1.IPv4Protocol, []string{"10.31.0.7"}},
		"network":   {[]any{"10.31.1.0/30"}, corev1.IPv4Protocol, []string{"10.31.1.1", "10.31.1.2"}},
		"range":     {[]any{"10.31.2.255-10.31.3.0"}, corev1.IPv4Protocol, []string{"10.31.2.255", "10.31.3.0"}},
		"six":       {[]any{"2001:db8:31::1-2001:db8:31::2"}, corev1.IPv6Protocol, []string{"2001:db8:31::1", "2001:db8:31::2"}},
		"sixsingle": {[]any{"2001:db8:32::ffff"}, corev1.IPv6Protocol, []string{"2001:db8:32::ffff"}},
	} {
		r.named(pool, c.addresses...)
		for i, want := range c.want {
			name := fmt.Sprintf("%s-%d", pool, i)
			r.familyService(name, pool, nil, c.family)
			r.is(name, vip.ReasonAllocated, pool+" "+want)
		}
		r.familyService(pool+"-more", pool, nil, c.family)
		r.is(pool+"-more", vip.ReasonExhausted)
	}
}

// A Service of both families has an address of each, in the families' order; each is an object of
// its own, and goes with the family. A pool without one of the families reports it.
func TestVIPs_13_DualStackFollowsTheServicesFamilies(t *testing.T) {
	plane := cluster.Shared(t)
	r := newReal(t)
	r.named("both", "10.33.0.10-10.33.0.11", "2001:db8:33::10-2001:db8:33::11")
	r.named("four", "10.33.1.10")
	r.familyService("web", "both", nil, corev1.IPv6Protocol, corev1.IPv4Protocol)
	r.is("web", vip.ReasonAllocated, "both 10.33.0.10", "both 2001:db8:33::10")
	const six = "2001-0db8-0033-0000-0000-0000-0000-0010.both"
	if got := r.vips(); !slices.Equal(got, []string{"10.33.0.10.both", six}) {
		t.Errorf("VirtualIPs: %q", got)
	}
	if a, b := r.vip("10.33.0.10.both"), r.vip(six); a.Spec.Service.UID != b.Spec.Service.UID || b.Spec.Address != "2001:db8:33::10" {
		t.Errorf("%+v and %+v", a.Spec, b.Spec)
	}
	r.familyService("asked", "both", map[string]string{v1alpha1.VIPAddressPrefix + "both": "10.33.0.11,2001:db8:33::11"}, corev1.IPv4Protocol, corev1.IPv6Protocol)
	r.is("asked", vip.ReasonAllocated, "both 10.33.0.11", "both 2001:db8:33::11")
	r.familyService("half", "four", nil, corev1.IPv4Protocol, corev1.IPv6Protocol)
	r.is("half", vip.ReasonExhausted, "four 10.33.1.10")

	// One family less: its address is given back, the other one stays as it is.
	before := r.vip("10.33.0.11.both")
	if _, err := plane.Client().CoreV1().Services("default").Patch(t.Context(), "asked", types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"`+v1alpha1.VIPAddressPrefix+`both":"10.33.0.11"}},"spec":{"ipFamilyPolicy":"SingleStack","ipFamilies":["IPv4"]}}`),
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	r.gone("2001-0db8-0033-0000-0000-0000-0000-0011.both")
	r.is("asked", vip.ReasonAllocated, "both 10.33.0.11")
	if now := r.vip("10.33.0.11.both"); now.UID != before.UID {
		t.Error("the other address was allocated again")
	}
}

// The first election ends, for the nodes too, when one has held the address: their copies
// have no status.
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
