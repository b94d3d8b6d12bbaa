package vip_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/skerry-io/skerry/cloud/internal/controllers/vip"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// Scenarios 1 to 3: an address in every pool that matches, no address in others, and none for other
// classes.
func TestVIPs_01_02_03_MatchingPoolsOfOurClassOnly(t *testing.T) {
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
func TestVIPs_01_SpellingsOfTheProposalAreUnderstood(t *testing.T) {
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
func TestVIPs_04_05_06_ExplicitAddresses(t *testing.T) {
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

	// The first goes: while its nodes still have it, no other Service gets it; then the pool has it
	// no longer, and the second gets it.
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

// Scenario 8, and rule 8: a freed address is given away only after the nodes dropped it, or after
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

func TestVIPs_09_252VRIDsThenNone(t *testing.T) {
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

// Scenario 10: a restart of cloudcore causes no change.
func TestVIPs_10_RestartChangesNothing(t *testing.T) {
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
	// RoundRobin continues where it was.
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

func TestVIPs_11_PoolShrunkIsOutOfRange(t *testing.T) {
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

func TestVIPs_12_OverlapIsRefusedToTheLater(t *testing.T) {
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

func TestVIPs_13_DualStackGetsOneOfEachFamily(t *testing.T) {
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
func TestVIPs_25_ReleaseFollowsEveryChange(t *testing.T) {
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
