package vip_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"

	"github.com/skerry-io/skerry/cloud/internal/controllers/controller"
	"github.com/skerry-io/skerry/cloud/internal/controllers/vip"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/tests/cluster"
	"github.com/skerry-io/skerry/tests/cluster/edges"
)

// advertised is where cloudcore is.
const advertised = "10.26.0.66"

func resource(plural string) schema.GroupVersionResource { return v1alpha1.Resource(plural) }

// real is the cluster with a controller that has the rights of the manifests and no others.
type real struct {
	t       *testing.T
	dynamic dynamic.Interface
	stop    func()
}

func newReal(t *testing.T) *real {
	t.Helper()
	plane := cluster.Shared(t)
	plane.Apply(t, "manifests/crds")
	plane.Apply(t, "manifests/cloudcore")
	r := &real{t: t, dynamic: dynamic.NewForConfigOrDie(plane.Admin())}
	cluster.Eventually(t, "the kinds are served", func(ctx context.Context) error {
		for _, kind := range []string{v1alpha1.NodePools, v1alpha1.VirtualIPs} {
			if _, err := r.dynamic.Resource(resource(kind)).List(ctx, metav1.ListOptions{}); err != nil {
				return err
			}
		}
		return nil
	})
	r.start()
	t.Cleanup(func() {
		ctx := context.Background()
		services := plane.Client().CoreV1().Services("default")
		if list, err := services.List(ctx, metav1.ListOptions{}); err != nil {
			t.Error(err)
		} else {
			for _, s := range list.Items {
				if s.Name != "kubernetes" {
					_ = services.Delete(ctx, s.Name, metav1.DeleteOptions{})
				}
			}
		}
		r.stop()
		for _, kind := range []string{v1alpha1.VirtualIPs, v1alpha1.NodePools} {
			list, err := r.dynamic.Resource(resource(kind)).List(ctx, metav1.ListOptions{})
			if err != nil {
				t.Error(err)
				continue
			}
			for _, o := range list.Items {
				_, err := r.dynamic.Resource(resource(kind)).Patch(ctx, o.GetName(), types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
				if err == nil {
					err = r.dynamic.Resource(resource(kind)).Delete(ctx, o.GetName(), metav1.DeleteOptions{})
				}
				if err != nil && !apierrors.IsNotFound(err) {
					t.Error(err)
				}
			}
		}
	})
	return r
}

func (r *real) start() {
	plane := cluster.Shared(r.t)
	config := plane.ServiceAccount(r.t, "skerry-system", "cloudcore")
	rules := policy()
	rules.Hosts = []string{advertised, "no-such-host.invalid"}
	client, err := kube.NewClient(config, kube.Constrained)
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	informers := kube.NewInformers(client)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return informers.Run(ctx) })
	g.Go(func() error { return client.Revisions().Run(ctx) })
	g.Go(func() error {
		return controller.NewManager(client, informers).Run(ctx, vip.NewController(client, rules).Config())
	})
	r.stop = func() {
		cancel()
		if err := g.Wait(); err != nil {
			r.t.Error(err)
		}
	}
	r.t.Cleanup(cancel)
}

// file applies an example as `kubectl apply` does, with unknown fields refused.
func (r *real) file(name string) {
	r.t.Helper()
	raw, err := os.ReadFile(filepath.Join("../../../../manifests/examples/vip", name))
	if err != nil {
		r.t.Fatal(err)
	}
	d := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(raw), 4096)
	for {
		var o unstructured.Unstructured
		if d.Decode(&o) != nil {
			return
		}
		r.create(&o)
	}
}

func (r *real) create(o *unstructured.Unstructured) {
	r.t.Helper()
	options := metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}
	var err error
	if o.GetKind() == "Service" {
		_, err = r.dynamic.Resource(corev1.SchemeGroupVersion.WithResource("services")).Namespace("default").Create(r.t.Context(), o, options)
	} else {
		_, err = r.dynamic.Resource(resource(v1alpha1.NodePools)).Create(r.t.Context(), o, options)
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *real) pool(name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "skerry.io/v1alpha1", "kind": "NodePool", "metadata": map[string]any{"name": name, "labels": map[string]any{"lb": "yes"}}, "spec": spec,
	}}
}

func (r *real) service(name string, annotations map[string]string) {
	r.t.Helper()
	plane := cluster.Shared(r.t)
	class := v1alpha1.VIPClass
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{v1alpha1.VIPPoolSelector: "lb=yes"}},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: &class, Selector: map[string]string{"app": name}, Ports: []corev1.ServicePort{{Port: 80}},
		},
	}
	for k, v := range annotations {
		s.Annotations[k] = v
	}
	if _, err := plane.Client().CoreV1().Services("default").Create(r.t.Context(), s, metav1.CreateOptions{}); err != nil {
		r.t.Fatal(err)
	}
}

// is waits until a Service has these addresses ("pool address") and its condition this reason.
func (r *real) is(name, reason string, want ...string) {
	r.t.Helper()
	plane := cluster.Shared(r.t)
	cluster.Eventually(r.t, "addresses of Service "+name, func(ctx context.Context) error {
		s, err := plane.Client().CoreV1().Services("default").Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		var have []string
		for _, i := range s.Status.LoadBalancer.Ingress {
			have = append(have, i.Hostname+" "+i.IP)
		}
		c := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.VIPAllocated)
		if !slices.Equal(have, want) || c == nil || c.Reason != reason {
			return fmt.Errorf("it has %q, condition %+v; want %q, reason %s", have, c, want, reason)
		}
		return nil
	})
}

func (r *real) vip(name string) *v1alpha1.VirtualIP {
	r.t.Helper()
	u, err := r.dynamic.Resource(resource(v1alpha1.VirtualIPs)).Get(r.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	v := &v1alpha1.VirtualIP{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, v); err != nil {
		r.t.Fatal(err)
	}
	return v
}

// report writes the nodes' reports into a VirtualIP's status.
func (r *real) report(name string, state v1alpha1.VirtualIPState) {
	r.t.Helper()
	cluster.Eventually(r.t, "a report", func(ctx context.Context) error {
		v := r.vip(name)
		var entries []v1alpha1.VirtualIPNodeStatus
		for _, n := range v.Spec.Nodes {
			entries = append(entries, v1alpha1.VirtualIPNodeStatus{Name: n.Name, State: state, Programmed: true})
		}
		vip.Merge(v, entries, time.Now())
		raw, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": v.ResourceVersion}, "status": v.Status})
		if err != nil {
			return err
		}
		_, err = r.dynamic.Resource(resource(v1alpha1.VirtualIPs)).Patch(ctx, name, types.MergePatchType, raw, metav1.PatchOptions{}, "status")
		return err
	})
}

func (r *real) gone(name string) {
	r.t.Helper()
	cluster.Eventually(r.t, name+" is gone", func(ctx context.Context) error {
		_, err := r.dynamic.Resource(resource(v1alpha1.VirtualIPs)).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, errors.New("it is there"))
	})
}

func (r *real) edgeNode(name, pool, address string) {
	r.t.Helper()
	plane := cluster.Shared(r.t)
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1alpha1.EdgeLabel: "", v1alpha1.NodePoolLabel: pool}},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}},
	}
	if _, err := plane.Client().CoreV1().Nodes().Create(r.t.Context(), n, metav1.CreateOptions{}); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		if err := plane.Client().CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			r.t.Error(err)
		}
	})
}

// The proposal's examples work as they stand.
func TestReal_ExamplesOfTheProposal(t *testing.T) {
	plane := cluster.Shared(t)
	r := newReal(t)
	r.file("nodepool-beijing.yaml")
	r.file("nodepool-hangzhou.yaml")
	r.file("service-explicit.yaml")
	r.is("nginx", vip.ReasonAllocated, "hangzhou 172.18.0.20")
	if err := plane.Client().CoreV1().Services("default").Delete(t.Context(), "nginx", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.gone("172.18.0.20") // the pool has no nodes: no confirmation is needed
	r.file("service-automatic.yaml")
	r.is("nginx", vip.ReasonAllocated, "hangzhou 172.18.0.20")
	both := r.pool("both", map[string]any{"addresses": []any{"172.19.0.20"}, "network": "both"})
	both.Object["metadata"].(map[string]any)["labels"] = map[string]any{"key1": "val1", "key2": "val2"}
	r.create(both)
	half := r.pool("half", map[string]any{"addresses": []any{"172.19.1.20"}, "network": "half"})
	half.Object["metadata"].(map[string]any)["labels"] = map[string]any{"key1": "val1"}
	r.create(half)
	r.file("service-selector.yaml")
	r.is("nginx-selector", vip.ReasonAllocated, "both 172.19.0.20")
	r.file("skerry.yaml")
	r.is("till", vip.ReasonAllocated, "shop-17 192.168.10.230")
}

// Scenarios 4 to 6, 8, 10 and 25 with kube-apiserver's own validation, conflicts and rights.
func TestReal_LifeOfAnAddress(t *testing.T) {
	plane := cluster.Shared(t)
	r := newReal(t)
	r.edgeNode("real-a", "life", "10.3.0.1")
	r.edgeNode("real-b", "life", "10.3.0.2")
	r.create(r.pool("life", map[string]any{"addresses": []any{"10.3.0.10"}, "allowRequested": true}))
	r.service("first", nil)
	r.is("first", vip.ReasonAllocated, "life 10.3.0.10")
	r.service("second", nil)
	r.is("second", vip.ReasonExhausted)
	r.service("asked", map[string]string{v1alpha1.VIPAddressPrefix + "life": "10.3.0.99"})
	r.is("asked", vip.ReasonAllocated, "life 10.3.0.99")
	r.service("late", map[string]string{v1alpha1.VIPAddressPrefix + "life": "10.3.0.99"})
	r.is("late", vip.ReasonAddressInUse)
	addresses := func(want ...string) {
		t.Helper()
		cluster.Eventually(t, "the pool's addresses", func(ctx context.Context) error {
			u, err := r.dynamic.Resource(resource(v1alpha1.NodePools)).Get(ctx, "life", metav1.GetOptions{})
			if err != nil {
				return err
			}
			have, _, err := unstructured.NestedStringSlice(u.Object, "spec", "addresses")
			if !slices.Equal(have, want) {
				return fmt.Errorf("%q, want %q: %w", have, want, err)
			}
			return nil
		})
	}
	addresses("10.3.0.10", "10.3.0.99")
	if v := r.vip("10.3.0.10"); len(v.Spec.Nodes) != 2 || v.Spec.VRID < 64 || len(v.Finalizers) != 1 {
		t.Errorf("VirtualIP: %+v", v)
	}
	r.report("10.3.0.10", v1alpha1.VIPBackup)

	// A new leader finds everything as it is.
	before := r.vip("10.3.0.10")
	r.stop()
	r.start()
	r.service("third", nil)
	r.is("third", vip.ReasonExhausted)
	if after := r.vip("10.3.0.10"); after.ResourceVersion != before.ResourceVersion {
		// The controller of before may not have finished its marks; the claim itself must
		// be the same.
		if after.UID != before.UID || after.Spec.VRID != before.Spec.VRID {
			t.Errorf("the claim changed: %+v, %+v", before, after)
		}
	}

	// Freed only when the nodes have confirmed.
	if err := plane.Client().CoreV1().Services("default").Delete(t.Context(), "first", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	cluster.Eventually(t, "it is being released", func(context.Context) error {
		if r.vip("10.3.0.10").DeletionTimestamp == nil {
			return errors.New("it is not")
		}
		return nil
	})
	r.is("second", vip.ReasonExhausted)
	r.report("10.3.0.10", v1alpha1.VIPReleased)
	r.is("second", vip.ReasonAllocated, "life 10.3.0.10")

	// The Service's type changes.
	_, err := plane.Client().CoreV1().Services("default").Patch(t.Context(), "asked", types.MergePatchType,
		[]byte(`{"spec":{"type":"ClusterIP","loadBalancerClass":null}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cluster.Eventually(t, "it is being released", func(context.Context) error {
		if r.vip("10.3.0.99").DeletionTimestamp == nil {
			return errors.New("it is not")
		}
		return nil
	})
	r.report("10.3.0.99", v1alpha1.VIPReleased)
	r.is("late", vip.ReasonAllocated, "life 10.3.0.99")
	cluster.Eventually(t, "the Service says nothing of it any more", func(ctx context.Context) error {
		s, err := plane.Client().CoreV1().Services("default").Get(ctx, "asked", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(s.Status.LoadBalancer.Ingress)+len(s.Status.Conditions) > 0 {
			return fmt.Errorf("%+v", s.Status)
		}
		return nil
	})
	cluster.Eventually(t, "events", func(ctx context.Context) error {
		list, err := plane.Client().CoreV1().Events("default").List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, e := range list.Items {
			if e.InvolvedObject.Name == "second" && e.Reason == vip.ReasonExhausted && e.Type == corev1.EventTypeWarning {
				return nil
			}
		}
		return errors.New("no event says that the pool is exhausted")
	})
}

// The CRD's refusals, as text.
func TestReal_PoolsRefused(t *testing.T) {
	r := newReal(t)
	for name, c := range map[string]struct {
		spec map[string]any
		want string
	}{
		"no address":     {map[string]any{"addresses": []any{"nginx"}}, "each of addresses must be"},
		"three ends":     {map[string]any{"addresses": []any{"10.0.0.1-10.0.0.2-10.0.0.3"}}, "each of addresses must be"},
		"mixed families": {map[string]any{"addresses": []any{"10.0.0.1-2001:db8::1"}}, "both ends of a range must be of one family"},
		"VRID 256":       {map[string]any{"reservedVRIDs": []any{int64(256)}}, "reservedVRIDs"},
		"type":           {map[string]any{"type": "Moon"}, "spec.type"},
	} {
		_, err := r.dynamic.Resource(resource(v1alpha1.NodePools)).Create(t.Context(), r.pool("refused", c.spec), metav1.CreateOptions{})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	// Reversed is beyond the CRD's rules: the status reports it.
	r.create(r.pool("reversed", map[string]any{"addresses": []any{"10.4.0.9-10.4.0.1"}}))
	cluster.Eventually(t, "the pool's condition", func(ctx context.Context) error {
		u, err := r.dynamic.Resource(resource(v1alpha1.NodePools)).Get(ctx, "reversed", metav1.GetOptions{})
		if err != nil {
			return err
		}
		p := &v1alpha1.NodePool{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, p); err != nil {
			return err
		}
		if c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.PoolAddressesValid); c == nil || c.Status != metav1.ConditionFalse || !strings.Contains(c.Message, "reversed") {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
}

// A node reads the VirtualIPs; it may not write them.
func TestReal_RightsOfNodes(t *testing.T) {
	plane := cluster.Shared(t)
	r := newReal(t)
	r.create(r.pool("rights", map[string]any{"addresses": []any{"10.5.0.10"}}))
	r.service("rights", nil)
	r.is("rights", vip.ReasonAllocated, "rights 10.5.0.10")
	if err := edges.Rights(t.Context(), plane.Client(), "real-c"); err != nil {
		t.Fatal(err)
	}
	node := dynamic.NewForConfigOrDie(plane.Node(t, "real-c")).Resource(resource(v1alpha1.VirtualIPs))
	cluster.Eventually(t, "a device reads them", func(ctx context.Context) error { // rights are in force some milliseconds later
		_, err := node.Get(ctx, "10.5.0.10", metav1.GetOptions{})
		return err
	})
	if err := node.Delete(t.Context(), "10.5.0.10", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("deleting: %v", err)
	}
	_, err := node.Patch(t.Context(), "10.5.0.10", types.MergePatchType, []byte(`{"status":{"holder":"real-c"}}`), metav1.PatchOptions{}, "status")
	if !apierrors.IsForbidden(err) {
		t.Errorf("writing the status: %v", err)
	}
}
