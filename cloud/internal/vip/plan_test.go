package vip_test

import (
	"fmt"
	"maps"
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

	"github.com/skerry-io/skerry/cloud/internal/vip"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// world is a cluster that does what a Plan says, as kube-apiserver would: it stamps, deletes in two
// steps, and refuses a second object of one name.
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

// settle plans until nothing is left to do.
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

// addresses are what the Services have: "web: hangzhou 10.0.0.1".
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

// released lets the nodes confirm that they dropped what is deleted.
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

// Scenarios 1 to 3: an address in every pool that matches, none in others, and none for
// other classes.
func TestVIPs_01_02_03_PoolsAndClasses(t *testing.T) {
	w := newWorld(t)
	w.pool("hangzhou", "", "10.0.0.10-10.0.0.20")
	w.pool("shanghai", "", "10.0.1.10-10.0.1.20")
	w.pool("beijing", "", "10.0.2.10-10.0.2.20").Labels["lb"] = "no"
	w.pool("central", "", "10.0.3.10-10.0.3.20").Spec.Type = v1alpha1.NodePoolCloud
	w.node("a", "hangzhou", "10.0.0.1")
	w.node("b", "hangzhou", "10.0.0.2")
	w.node("c", "shanghai", "10.0.1.1")
	w.service("web")
	other := "example.com/lb"
	w.service("foreign").Spec.LoadBalancerClass = &other
	w.service("classless").Spec.LoadBalancerClass = nil
	w.service("cluster").Spec.Type = corev1.ServiceTypeClusterIP
	lost := w.service("lost")
	delete(lost.Annotations, v1alpha1.VIPPoolSelector)
	w.service("nowhere", v1alpha1.VIPPoolSelector, "lb=maybe")
	w.service("wrong", v1alpha1.VIPPoolSelector, "lb in (")
	w.settle()
	w.want("classless: ", "cluster: ", "foreign: ", "lost: ", "nowhere: ", "web: hangzhou 10.0.0.10, shanghai 10.0.1.10", "wrong: ")
	w.reason("web", vip.ReasonAllocated)
	w.reason("lost", vip.ReasonNoPoolSelector)
	w.reason("nowhere", vip.ReasonNoPool)
	w.reason("wrong", vip.ReasonInvalidSelector)
	if i := w.get("web").Status.LoadBalancer.Ingress[0]; i.IPMode == nil || *i.IPMode != corev1.LoadBalancerIPModeProxy {
		t.Errorf("ipMode of %+v is not Proxy", i)
	}
	v := w.VIPs[0]
	if v.Name != "10.0.0.10" || len(v.Spec.Nodes) != 2 || v.Spec.Nodes[0].Priority+v.Spec.Nodes[1].Priority != 390 || v.Spec.VRID < 64 {
		t.Errorf("VirtualIP %s: %+v", v.Name, v.Spec)
	}
	for _, node := range []string{"a", "b"} {
		if _, ok := v.Labels[v1alpha1.VIPNodeLabel(node)]; !ok {
			t.Errorf("node %s does not find %s: %v", node, v.Name, v.Labels)
		}
	}
	if diff := cmp.Diff([]v1alpha1.VirtualIPPort{{Name: "http", Protocol: "TCP", Port: 80, TargetPort: intstr.FromString("web")}}, v.Spec.Ports); diff != "" {
		t.Errorf("ports (-want +got):\n%s", diff)
	}
}

// The proposal's own spellings: class, annotations, k:v, "Addresses", and the label of nodes.
func TestVIPs_01_SpellingsOfTheProposal(t *testing.T) {
	w := newWorld(t)
	p := w.pool("hangzhou", "")
	p.Spec.AddressesOfProposal, p.Labels = []string{"172.18.0.20-172.18.0.30"}, map[string]string{"service": "nginx"}
	w.node("worker", "", "172.18.0.2")
	w.Nodes[0].Labels = map[string]string{"skerry.io/edge": "", v1alpha1.OpenYurtNodePoolLabel: "hangzhou"}
	class := v1alpha1.OpenYurtVIPClass
	for name, annotations := range map[string]map[string]string{
		"nginx":  {v1alpha1.OpenYurtVIPPoolSelector: "service:nginx"},
		"nginx2": {v1alpha1.OpenYurtVIPPoolSelector: "service=nginx", v1alpha1.OpenYurtVIPAddress + "hangzhou": "172.18.0.25"},
	} {
		s := w.service(name)
		s.Spec.LoadBalancerClass, s.Annotations = &class, annotations
	}
	w.settle()
	w.want("nginx2: hangzhou 172.18.0.25", "nginx: hangzhou 172.18.0.20")
	if n := w.VIPs[0].Spec.Nodes; len(n) != 1 || n[0].Name != "worker" {
		t.Errorf("nodes: %v", n)
	}
}

// Scenarios 4 to 6: an explicit address in the pool, outside of it, and one that two
// Services ask for.
func TestVIPs_04_05_06_Explicit(t *testing.T) {
	w := newWorld(t)
	w.pool("hangzhou", "", "10.0.0.10-10.0.0.20").Spec.AllowRequested = true
	w.pool("shanghai", "", "10.0.1.10-10.0.1.20").Labels["lb"] = "no"
	w.node("a", "hangzhou", "10.0.0.1")
	const key = v1alpha1.VIPAddressPrefix + "hangzhou"
	w.service("any")
	w.service("in", key, "10.0.0.10")
	w.service("out", key, "10.0.0.234")
	w.service("late", key, "10.0.0.234")
	w.service("node", key, "10.0.0.1")
	w.service("foreign", key, "10.0.1.15")
	w.service("bad", key, "10.0.0.300")
	w.service("six", key, "2001:db8::1")
	w.settle()
	w.want("any: hangzhou 10.0.0.11", "bad: ", "foreign: ", "in: hangzhou 10.0.0.10", "late: ", "node: ", "out: hangzhou 10.0.0.234", "six: ")
	w.reason("late", vip.ReasonAddressInUse)
	w.reason("node", vip.ReasonAddressOfNode)
	w.reason("foreign", vip.ReasonAddressOfPool)
	w.reason("bad", vip.ReasonInvalidAddress)
	w.reason("six", vip.ReasonInvalidAddress)
	if diff := cmp.Diff([]string{"10.0.0.10-10.0.0.20", "10.0.0.234"}, w.Pools[0].Spec.Addresses); diff != "" {
		t.Errorf("the pool's addresses (-want +got):\n%s", diff)
	}

	// A range around it, written later, is no overlap.
	w.Pools[0].Spec.Addresses = []string{"10.0.0.234", "10.0.0.200-10.0.0.250", "10.0.0.10-10.0.0.20"}
	w.settle()
	w.poolIs("hangzhou", v1alpha1.PoolAddressesValid, true)
	w.Pools[0].Spec.Addresses = []string{"10.0.0.10-10.0.0.20", "10.0.0.234"}

	// The first goes: while its nodes still have it, nobody else gets it; then the pool has it no
	// longer, and the second gets it.
	w.remove("out")
	w.settle()
	w.want("any: hangzhou 10.0.0.11", "bad: ", "foreign: ", "in: hangzhou 10.0.0.10", "late: ", "node: ", "six: ")
	w.reason("late", vip.ReasonAddressInUse)
	w.released()
	w.settle()
	w.want("any: hangzhou 10.0.0.11", "bad: ", "foreign: ", "in: hangzhou 10.0.0.10", "late: hangzhou 10.0.0.234", "node: ", "six: ")
	w.remove("late")
	w.settle()
	w.released()
	w.settle()
	if diff := cmp.Diff([]string{"10.0.0.10-10.0.0.20"}, w.Pools[0].Spec.Addresses); diff != "" {
		t.Errorf("the pool's addresses after all (-want +got):\n%s", diff)
	}

	// Asking for another one: the old one is kept until the new one can be had.
	w.get("any").Annotations[key] = "10.0.0.10"
	w.settle()
	w.reason("any", vip.ReasonAddressInUse)
	w.want("any: hangzhou 10.0.0.11", "bad: ", "foreign: ", "in: hangzhou 10.0.0.10", "node: ", "six: ")
	w.get("any").Annotations[key] = "10.0.0.15"
	w.settle()
	w.reason("any", vip.ReasonAllocated)
	w.want("any: hangzhou 10.0.0.15", "bad: ", "foreign: ", "in: hangzhou 10.0.0.10", "node: ", "six: ")
	delete(w.get("any").Annotations, key)
	w.settle()
	w.want("any: hangzhou 10.0.0.15", "bad: ", "foreign: ", "in: hangzhou 10.0.0.10", "node: ", "six: ")
}

func TestVIPs_07_BothEndsUsable(t *testing.T) {
	for name, c := range map[string]struct {
		addresses []string
		family    corev1.IPFamily
		want      []string
	}{
		"single":     {[]string{"10.0.0.7"}, corev1.IPv4Protocol, []string{"10.0.0.7"}},
		"network":    {[]string{"10.0.0.0/29"}, corev1.IPv4Protocol, []string{"10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"}}, // .1 is a node's
		"range":      {[]string{"10.0.0.8-10.0.0.9"}, corev1.IPv4Protocol, []string{"10.0.0.8", "10.0.0.9"}},
		"IPv6 range": {[]string{"2002:2:2::1-2002:2:2::2"}, corev1.IPv6Protocol, []string{"2002:2:2::1", "2002:2:2::2"}},
		"some good":  {[]string{"10.0.0.9-10.0.0.8", "10.0.0.5"}, corev1.IPv4Protocol, []string{"10.0.0.5"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.pool("p", "", c.addresses...)
			w.node("a", "p", "10.0.0.1")
			for i := range len(c.want) + 1 {
				w.service(fmt.Sprintf("s%d", i)).Spec.IPFamilies = []corev1.IPFamily{c.family}
			}
			w.settle()
			var got []string
			for _, s := range w.Services {
				for _, i := range s.Status.LoadBalancer.Ingress {
					got = append(got, i.IP)
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("addresses (-want +got):\n%s", diff)
			}
		})
	}
}

// Scenario 8, and rule 8: what is freed is given away only after the nodes dropped it, or after
// the quarantine.
func TestVIPs_08_ExhaustedThenFreed(t *testing.T) {
	w := newWorld(t)
	w.pool("p", "", "10.0.0.10")
	w.node("a", "p", "10.0.0.1")
	w.service("first")
	w.service("second")
	w.settle()
	w.want("first: p 10.0.0.10", "second: ")
	w.reason("second", vip.ReasonExhausted)
	w.poolIs("p", v1alpha1.PoolExhausted, true)

	w.remove("first")
	w.settle()
	w.want("second: ")
	if w.core.Plan(w.State, w.now).Next != w.now.Add(10*time.Minute) {
		t.Error("it does not look again after the quarantine")
	}
	w.now = w.now.Add(9 * time.Minute)
	w.settle()
	w.want("second: ")
	w.now = w.now.Add(time.Minute)
	w.settle()
	w.want("second: p 10.0.0.10")
	w.poolIs("p", v1alpha1.PoolExhausted, false)

	w.remove("second")
	w.service("third")
	w.settle()
	w.want("third: ")
	w.released()
	w.settle()
	w.want("third: p 10.0.0.10")

	// A node that is gone is not waited for.
	w.remove("third")
	w.service("fourth")
	w.Nodes = nil
	w.settle()
	w.want("fourth: p 10.0.0.10")
}

func TestVIPs_09_VRIDs(t *testing.T) {
	w := newWorld(t)
	w.pool("p", "", "10.0.0.0/16").Spec.ReservedVRIDs = []int32{5}
	w.pool("elsewhere", "site-b", "10.0.0.0/16").Labels["lb"] = "b"
	for i := range 260 {
		// Each with pods of its own: those of the same pods may share a number.
		w.service(fmt.Sprintf("s%03d", i))
	}
	w.service("b", v1alpha1.VIPPoolSelector, "lb=b")
	w.settle()
	used := map[int32]bool{}
	for _, v := range w.VIPs {
		if v.Spec.Network != "" {
			continue
		}
		if used[v.Spec.VRID] || v.Spec.VRID == 1 || v.Spec.VRID == 2 || v.Spec.VRID == 5 {
			t.Errorf("%s has number %d", v.Name, v.Spec.VRID)
		}
		used[v.Spec.VRID] = true
	}
	if len(used) != 252 {
		t.Errorf("%d numbers are used, want 252", len(used))
	}
	w.reason("s252", vip.ReasonVRIDsExhausted)
	w.poolIs("p", v1alpha1.PoolExhausted, true)
	w.reason("b", vip.ReasonAllocated) // another network, the same addresses and numbers
	if v := w.VIPs[slices.IndexFunc(w.VIPs, func(v *v1alpha1.VirtualIP) bool { return v.Spec.Network == "site-b" })]; v.Spec.VRID < 64 || v.Name != "10.0.0.1.site-b" {
		t.Errorf("%s has number %d", v.Name, v.Spec.VRID)
	}
	w.remove("s000")
	w.settle()
	w.released()
	w.settle()
	w.reason("s252", vip.ReasonAllocated)
	w.reason("s253", vip.ReasonVRIDsExhausted)
}

// Scenario 10: a cloudcore that starts anew changes nothing.
func TestVIPs_10_Restart(t *testing.T) {
	w := newWorld(t)
	w.pool("p", "", "10.0.0.10-10.0.0.20").Spec.AllowRequested = true
	w.node("a", "p", "10.0.0.1")
	w.service("one")
	w.service("two", v1alpha1.VIPAddressPrefix+"p", "10.0.0.99")
	w.settle()
	before := w.addresses()
	w.core = vip.NewCore(policy())
	w.settle()
	if w.wrote != 0 || w.addresses() != before {
		t.Errorf("%d objects written, addresses\n%s", w.wrote, w.addresses())
	}
	// RoundRobin goes on where it was.
	w.remove("one")
	w.settle()
	w.released()
	w.settle()
	w.core = vip.NewCore(policy())
	w.service("three")
	w.settle()
	w.want("three: p 10.0.0.11", "two: p 10.0.0.99")

	// A second object for one Service, of a moment with two leaders, goes; the older one stays.
	twin := w.VIPs[0].DeepCopy()
	twin.Name, twin.Spec.Address, twin.Spec.VRID = "10.0.0.20", "10.0.0.20", 77
	w.stamp(twin)
	w.VIPs = append(w.VIPs, twin)
	w.settle()
	w.want("three: p 10.0.0.11", "two: p 10.0.0.99")
	for _, v := range w.VIPs {
		if (v.DeletionTimestamp != nil) != (v.Name == "10.0.0.20") {
			t.Errorf("%s: deleted %v", v.Name, v.DeletionTimestamp)
		}
	}
}

func TestVIPs_11_PoolShrunk(t *testing.T) {
	w := newWorld(t)
	w.pool("p", "", "10.0.0.10-10.0.0.20")
	w.node("a", "p", "10.0.0.1")
	w.service("web")
	w.settle()
	w.Pools[0].Spec.Addresses = []string{"10.0.0.15-10.0.0.20"}
	w.settle()
	w.want("web: p 10.0.0.10")
	if !meta.IsStatusConditionTrue(w.VIPs[0].Status.Conditions, v1alpha1.VIPConditionOutOfRange) {
		t.Errorf("conditions: %+v", w.VIPs[0].Status.Conditions)
	}
	w.Pools[0].Spec.Addresses = []string{"10.0.0.10-10.0.0.20"}
	w.settle()
	if meta.IsStatusConditionTrue(w.VIPs[0].Status.Conditions, v1alpha1.VIPConditionOutOfRange) {
		t.Errorf("conditions: %+v", w.VIPs[0].Status.Conditions)
	}
}

func TestVIPs_12_Overlap(t *testing.T) {
	w := newWorld(t)
	w.pool("first", "", "10.0.0.10-10.0.0.20")
	w.pool("second", "", "10.0.0.20-10.0.0.30", "10.0.0.40")
	w.pool("apart", "site-b", "10.0.0.10-10.0.0.20")
	w.pool("itself", "", "10.9.0.1-10.9.0.5", "10.9.0.5-10.9.0.9")
	w.service("web")
	w.settle()
	w.want("web: apart 10.0.0.10, first 10.0.0.10, itself 10.9.0.1, second 10.0.0.40")
	w.poolIs("first", v1alpha1.PoolOverlap, false)
	w.poolIs("second", v1alpha1.PoolOverlap, true)
	w.poolIs("apart", v1alpha1.PoolOverlap, false)
	w.poolIs("itself", v1alpha1.PoolAddressesValid, false)
}

func TestVIPs_13_DualStack(t *testing.T) {
	w := newWorld(t)
	w.pool("p", "", "10.0.0.10-10.0.0.20", "2001:db8::/64")
	w.pool("four", "", "10.0.1.10")
	both := []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol}
	w.service("both").Spec.IPFamilies = both
	w.service("asked", v1alpha1.VIPPoolSelector, "name=p", v1alpha1.VIPAddressPrefix+"p", "10.0.0.15,2001:db8::15").Spec.IPFamilies = both
	w.settle()
	w.want("asked: p 10.0.0.15, p 2001:db8::15", "both: four 10.0.1.10, p 10.0.0.10, p 2001:db8::1")
	w.reason("both", vip.ReasonExhausted) // pool four has no IPv6
	names := map[string]bool{}
	for _, v := range w.VIPs {
		names[v.Name] = true
	}
	if !names["2001-0db8-0000-0000-0000-0000-0000-0001"] {
		t.Errorf("names: %v", slices.Sorted(maps.Keys(names)))
	}
}

// Scenario 25, the cloud's part: Service, pool, annotation, type or class changes or goes.
func TestVIPs_25_Release(t *testing.T) {
	for name, change := range map[string]func(*world){
		"the Service goes":        func(w *world) { w.remove("web") },
		"it comes again, another": func(w *world) { w.get("web").UID = "another" },
		"the annotation goes":     func(w *world) { delete(w.get("web").Annotations, v1alpha1.VIPPoolSelector) },
		"the annotation changes":  func(w *world) { w.get("web").Annotations[v1alpha1.VIPPoolSelector] = "lb=other" },
		"the pool's labels":       func(w *world) { w.Pools[0].Labels = nil },
		"the pool's type":         func(w *world) { w.Pools[0].Spec.Type = v1alpha1.NodePoolCloud },
		"the pool goes":           func(w *world) { w.Pools = nil },
		"the Service's type": func(w *world) {
			w.get("web").Spec.Type, w.get("web").Spec.LoadBalancerClass = corev1.ServiceTypeClusterIP, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.pool("p", "", "10.0.0.10")
			w.node("a", "p", "10.0.0.1")
			w.service("web")
			w.settle()
			w.want("web: p 10.0.0.10")
			old := w.VIPs[0]
			change(w)
			w.settle()
			if w.VIPs[0].DeletionTimestamp == nil {
				t.Fatalf("%s is not released", old.Name)
			}
			for _, s := range w.Services {
				if len(s.Status.LoadBalancer.Ingress) != 0 {
					t.Errorf("the Service still shows %v", s.Status.LoadBalancer.Ingress)
				}
			}
			w.released()
			w.settle()
			for _, v := range w.VIPs {
				if v.UID == old.UID {
					t.Errorf("%s is still there: %v", v.Name, v.Finalizers)
				}
			}
		})
	}
}

func TestPolicies(t *testing.T) {
	for policy, want := range map[v1alpha1.AllocationPolicy]string{
		v1alpha1.AllocateRoundRobin: "s2: p 10.0.0.12\ns3: p 10.0.0.10",
		v1alpha1.AllocateLowest:     "s2: p 10.0.0.10\ns3: p 10.0.0.11",
	} {
		w := newWorld(t)
		w.pool("p", "", "10.0.0.10-10.0.0.12").Spec.Allocation = policy
		w.service("s0")
		w.service("s1")
		w.settle()
		w.remove("s0")
		w.remove("s1")
		w.settle()
		w.service("s2")
		w.service("s3")
		w.settle()
		if diff := cmp.Diff(want, w.addresses()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", policy, diff)
		}
	}
	w := newWorld(t)
	w.pool("p", "", "2001:db8::/64").Spec.Allocation = v1alpha1.AllocateRandom
	for i := range 20 {
		w.service(fmt.Sprintf("s%d", i)).Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol}
	}
	w.settle()
	if len(w.VIPs) != 20 {
		t.Errorf("%d of 20 Services have an address", len(w.VIPs))
	}
}

// Rule 10: the ranking is stable; a preferred node is first.
func TestRanking(t *testing.T) {
	w := newWorld(t)
	w.pool("p", "", "10.0.0.10")
	for i := range 50 {
		w.node(fmt.Sprintf("n%02d", i), "p", fmt.Sprintf("10.0.9.%d", i+1))
	}
	w.service("web")
	w.settle()
	order := func() []string {
		nodes := slices.Clone(w.VIPs[0].Spec.Nodes)
		slices.SortStableFunc(nodes, func(a, b v1alpha1.VirtualIPNode) int { return int(b.Priority - a.Priority) })
		names := make([]string, 0, len(nodes))
		for _, n := range nodes[:37] { // below, all have priority 1
			names = append(names, n.Name)
		}
		return names
	}
	before := order()
	if first := w.VIPs[0].Spec.Nodes[slices.IndexFunc(w.VIPs[0].Spec.Nodes, func(n v1alpha1.VirtualIPNode) bool { return n.Name == before[0] })]; first.Priority != 200 {
		t.Errorf("the first has priority %d", first.Priority)
	}
	gone := before[3]
	w.Nodes = slices.DeleteFunc(w.Nodes, func(n *corev1.Node) bool { return n.Name == gone })
	w.settle()
	if diff := cmp.Diff(slices.Delete(slices.Clone(before), 3, 4), order()[:36]); diff != "" {
		t.Errorf("order without %s (-want +got):\n%s", gone, diff)
	}
	w.get("web").Annotations[v1alpha1.VIPPreferredPrefix+"p"] = before[9]
	w.settle()
	if got := order()[0]; got != before[9] {
		t.Errorf("the first is %s, preferred is %s", got, before[9])
	}
}

// Scenario 24, the cloud's part: whom a Service or its pool prefers gets the highest priority, and
// the objects tell that it may take the address back.
func TestVIPs_24_Preference(t *testing.T) {
	for name, c := range map[string]struct {
		pool, service string // who is preferred there
		want          string // who is preferred in the VirtualIP; "" for the hash's first
	}{
		"nobody":                        {"", "", ""},
		"the pool's":                    {"n2", "", "n2"},
		"the Service's":                 {"", "n1", "n1"},
		"the Service's before the pool": {"n2", "n1", "n1"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.pool("p", "", "10.0.0.10").Spec.PreferredNode = c.pool
			for i := range 4 {
				w.node(fmt.Sprintf("n%d", i), "p", fmt.Sprintf("10.0.9.%d", i+1))
			}
			var annotations []string
			if c.service != "" {
				annotations = []string{v1alpha1.VIPPreferredPrefix + "p", c.service}
			}
			w.service("web", annotations...)
			w.settle()
			v := w.VIPs[0]
			if v.Spec.PreferredNode != c.want {
				t.Errorf("preferred is %q, want %q", v.Spec.PreferredNode, c.want)
			}
			for _, n := range v.Spec.Nodes {
				if c.want != "" && (n.Name == c.want) != (n.Priority == 200) {
					t.Errorf("%s has priority %d", n.Name, n.Priority)
				}
			}
			// The preference is taken back: nobody may take the address from its holder any more.
			delete(w.get("web").Annotations, v1alpha1.VIPPreferredPrefix+"p")
			w.Pools[0].Spec.PreferredNode = ""
			w.settle()
			if got := w.VIPs[0].Spec.PreferredNode; got != "" {
				t.Errorf("preferred is still %q", got)
			}
		})
	}
	// Somebody who is not in the pool can't hold anything.
	w := newWorld(t)
	w.pool("p", "", "10.0.0.10").Spec.PreferredNode = "elsewhere"
	w.node("n0", "p", "10.0.9.1")
	w.service("web")
	w.settle()
	if nodes := w.VIPs[0].Spec.Nodes; len(nodes) != 1 || nodes[0].Name != "n0" {
		t.Errorf("nodes: %v", nodes)
	}
}

// The nodes must know that an address has been held: a status does not come down to them.
func TestElectedStays(t *testing.T) {
	w := newWorld(t)
	w.pool("p", "", "10.0.0.10")
	w.service("web")
	w.settle()
	if w.VIPs[0].Spec.Elected {
		t.Error("elected before anybody held it")
	}
	w.VIPs[0].Status.Holder = "n0"
	w.settle()
	if !w.VIPs[0].Spec.Elected {
		t.Error("not elected although somebody holds it")
	}
	w.VIPs[0].Status.Holder = ""
	w.settle()
	if !w.VIPs[0].Spec.Elected {
		t.Error("forgotten when the holder went")
	}
}
