package vip_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/skerry-io/skerry/cloud/internal/controllers/vip"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// world is a cluster that executes a Plan as kube-apiserver would: it stamps, deletes in two steps,
// and refuses a second object of one name.
type world struct {
	t    *testing.T
	core *vip.Core
	vip.State
	now   time.Time
	seq   int
	wrote int // objects written by the last settle
}

func policy() vip.Policy {
	return vip.Policy{ReservedVRIDs: []int32{1, 2}, Quarantine: 10 * time.Minute}
}

func newWorld(t *testing.T) *world {
	return &world{t: t, core: vip.NewCore(policy()), now: time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)}
}

func (w *world) stamp(o metav1.Object) {
	w.seq++
	o.SetUID(types.UID(fmt.Sprintf("uid-%d", w.seq)))
	o.SetCreationTimestamp(metav1.NewTime(w.now.Add(time.Duration(w.seq) * time.Second)))
	o.SetGeneration(1)
}

func (w *world) pool(name, network string, addresses ...string) *v1alpha1.NodePool {
	p := &v1alpha1.NodePool{Spec: v1alpha1.NodePoolSpec{Type: v1alpha1.NodePoolEdge, Network: network, Addresses: addresses}}
	p.Name, p.Labels = name, map[string]string{"lb": "yes", "name": name}
	w.stamp(p)
	w.Pools = append(w.Pools, p)
	return p
}

func (w *world) node(name, pool, address string) {
	n := &corev1.Node{Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}}}
	n.Name, n.Labels = name, map[string]string{v1alpha1.EdgeLabel: "", v1alpha1.NodePoolLabel: pool}
	w.stamp(n)
	w.Nodes = append(w.Nodes, n)
}

func (w *world) service(name string, annotations ...string) *corev1.Service {
	class := v1alpha1.VIPClass
	s := &corev1.Service{Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: &class, Selector: map[string]string{"app": name}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
		Ports: []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, TargetPort: intstr.FromString("web")}},
	}}
	s.Namespace, s.Name, s.Annotations = "default", name, map[string]string{v1alpha1.VIPPoolSelector: "lb=yes"}
	for i := 0; i+1 < len(annotations); i += 2 {
		s.Annotations[annotations[i]] = annotations[i+1]
	}
	w.stamp(s)
	w.Services = append(w.Services, s)
	return s
}

func replace[T metav1.Object](all []T, o T) {
	for i := range all {
		if all[i].GetName() == o.GetName() && all[i].GetNamespace() == o.GetNamespace() {
			all[i] = o
		}
	}
}

// settle plans until a plan is empty.
func (w *world) settle() {
	w.t.Helper()
	w.wrote = 0
	for range 10 {
		p := w.core.Plan(w.State, w.now)
		n := len(p.Create) + len(p.Update) + len(p.Delete) + len(p.Free) + len(p.Mark) + len(p.Pools) + len(p.PoolStatus) + len(p.Services)
		if n == 0 {
			return
		}
		w.wrote += n
		for _, v := range p.Create {
			if slices.ContainsFunc(w.VIPs, func(o *v1alpha1.VirtualIP) bool { return o.Name == v.Name }) {
				w.t.Fatalf("%s is made twice", v.Name)
			}
			w.stamp(v)
			w.VIPs = append(w.VIPs, v)
		}
		for _, v := range p.Update {
			replace(w.VIPs, v)
		}
		for _, v := range p.Mark {
			for _, o := range w.VIPs {
				if o.Name == v.Name {
					o.Status = v.Status
				}
			}
		}
		for _, v := range p.Delete {
			at := metav1.NewTime(w.now)
			v.DeletionTimestamp = &at
			replace(w.VIPs, v)
		}
		for _, v := range p.Free {
			w.VIPs = slices.DeleteFunc(w.VIPs, func(o *v1alpha1.VirtualIP) bool { return o.Name == v.Name })
		}
		for _, o := range p.Pools {
			replace(w.Pools, o)
		}
		for _, o := range p.PoolStatus {
			for _, q := range w.Pools {
				if q.Name == o.Name {
					q.Status = o.Status
				}
			}
		}
		for _, s := range p.Services {
			replace(w.Services, s)
		}
	}
	w.t.Fatal("it does not settle")
}

// addresses lists the Services' addresses: "web: hangzhou 10.0.0.1".
func (w *world) addresses() string {
	var lines []string
	for _, s := range w.Services {
		var have []string
		for _, i := range s.Status.LoadBalancer.Ingress {
			have = append(have, i.Hostname+" "+i.IP)
		}
		lines = append(lines, s.Name+": "+strings.Join(have, ", "))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func (w *world) want(addresses ...string) {
	w.t.Helper()
	if diff := cmp.Diff(strings.Join(addresses, "\n"), w.addresses()); diff != "" {
		w.t.Errorf("addresses (-want +got):\n%s", diff)
	}
}

func (w *world) get(name string) *corev1.Service {
	i := slices.IndexFunc(w.Services, func(s *corev1.Service) bool { return s.Name == name })
	return w.Services[i]
}

// reason is the reason of the Service's condition.
func (w *world) reason(service, want string) {
	w.t.Helper()
	c := meta.FindStatusCondition(w.get(service).Status.Conditions, v1alpha1.VIPAllocated)
	if c == nil || c.Reason != want || (c.Status == metav1.ConditionTrue) != (want == vip.ReasonAllocated) {
		w.t.Errorf("%s: condition %+v, want reason %s", service, c, want)
	}
}

func (w *world) poolIs(pool, condition string, want bool) {
	w.t.Helper()
	for _, p := range w.Pools {
		if p.Name == pool && meta.IsStatusConditionTrue(p.Status.Conditions, condition) != want {
			w.t.Errorf("pool %s: %s is not %v: %+v", pool, condition, want, p.Status.Conditions)
		}
	}
}

func (w *world) remove(service string) {
	w.Services = slices.DeleteFunc(w.Services, func(s *corev1.Service) bool { return s.Name == service })
}

// released lets the nodes confirm that they dropped the deleted addresses.
func (w *world) released() {
	for _, v := range w.VIPs {
		if v.DeletionTimestamp == nil {
			continue
		}
		v.Status.Nodes = nil
		for _, n := range v.Spec.Nodes {
			v.Status.Nodes = append(v.Status.Nodes, v1alpha1.VirtualIPNodeStatus{Name: n.Name, State: v1alpha1.VIPReleased})
		}
	}
}
