package vip_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

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

// Scenario 24, the cloud's part: the node that a Service or its pool prefers gets the highest
// priority, and the objects tell that it may take the address back.
func TestVIPs_24_PreferredNodeGetsTheHighestPriority(t *testing.T) {
	for name, c := range map[string]struct {
		pool, service string // the preferred node there
		want          string // the preferred node in the VirtualIP; "" for the hash's first
	}{
		"none":                          {"", "", ""},
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
			// The preference is removed: no node may take the address from its holder any more.
			delete(w.get("web").Annotations, v1alpha1.VIPPreferredPrefix+"p")
			w.Pools[0].Spec.PreferredNode = ""
			w.settle()
			if got := w.VIPs[0].Spec.PreferredNode; got != "" {
				t.Errorf("preferred is still %q", got)
			}
		})
	}
	// A node that is not in the pool can't hold anything.
	w := newWorld(t)
	w.pool("p", "", "10.0.0.10").Spec.PreferredNode = "elsewhere"
	w.node("n0", "p", "10.0.9.1")
	w.service("web")
	w.settle()
	if nodes := w.VIPs[0].Spec.Nodes; len(nodes) != 1 || nodes[0].Name != "n0" {
		t.Errorf("nodes: %v", nodes)
	}
}

// The nodes need to know that an address has been held: a status does not come down to them.
func TestElectedStays(t *testing.T) {
	w := newWorld(t)
	w.pool("p", "", "10.0.0.10")
	w.service("web")
	w.settle()
	if w.VIPs[0].Spec.Elected {
		t.Error("elected before a node held it")
	}
	w.VIPs[0].Status.Holder = "n0"
	w.settle()
	if !w.VIPs[0].Spec.Elected {
		t.Error("not elected although a node holds it")
	}
	w.VIPs[0].Status.Holder = ""
	w.settle()
	if !w.VIPs[0].Spec.Elected {
		t.Error("forgotten when the holder went")
	}
}
