// Package vip allocates virtual IPs: each Service of class skerry.io/vip gets one address for each
// family in each NodePool that it chooses.
//
// It owns VirtualIP objects, the status of NodePools, the entries that it added to a NodePool's
// addresses, and the load-balancer status of Services of its class. It refuses to give away an
// address that a Service or a node has, and ranges that overlap; it never takes an allocated
// address back unless the Service or the pool asks for that, and it does not elect the holder of an
// address: the nodes do. Its whole state is in the objects: a Core computes the desired state from
// them, and remembers only values that may be lost. A Core is used by one goroutine; one Controller
// at a time should run (under a Lease). It is above 2,500 lines because one plan decides addresses,
// numbers and the status of Services together: each depends on the others. Two Controllers would
// not give one address away twice, since making the object is the claim, but might give one Service
// two for a moment.
package vip

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/skerry-io/skerry/cloud/internal/controllers/reports"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

func familyOfVIP(v *v1alpha1.VirtualIP) family {
	a, err := netip.ParseAddr(v.Spec.Address)
	if err != nil {
		return ""
	}
	return familyOf(a)
}

// older orders objects by age, then by name: in a conflict the first wins.
func older(a, b metav1.Object) int {
	at, bt := a.GetCreationTimestamp(), b.GetCreationTimestamp()
	return cmp.Or(at.Compare(bt.Time), cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
}

// ours reports whether a Service asks for virtual IPs.
func ours(s *corev1.Service) bool {
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer || s.Spec.LoadBalancerClass == nil || s.DeletionTimestamp != nil {
		return false
	}
	c := *s.Spec.LoadBalancerClass
	return c == v1alpha1.VIPClass || c == v1alpha1.OpenYurtVIPClass
}

// families are those that a Service asks for.
func families(s *corev1.Service) []family {
	if len(s.Spec.IPFamilies) > 0 {
		return s.Spec.IPFamilies
	}
	if a, err := netip.ParseAddr(s.Spec.ClusterIP); err == nil {
		return []family{familyOf(a)}
	}
	return []family{corev1.IPv4Protocol}
}

// affinity is for how many seconds a Service keeps a client with one pod; 0 for not at all.
func affinity(s *corev1.Service) int32 {
	if s.Spec.SessionAffinity != corev1.ServiceAffinityClientIP {
		return 0
	}
	if c := s.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		return *c.ClientIP.TimeoutSeconds
	}
	return corev1.DefaultClientIPServiceAffinitySeconds
}

// annotation reads an annotation under the first of its spellings that the Service has.
func annotation(s *corev1.Service, names ...string) (string, bool) {
	for _, n := range names {
		if v, ok := s.Annotations[n]; ok {
			return v, true
		}
	}
	return "", false
}

// poolSelector returns a Service's selector of pools. OpenYurt's proposal also writes k:v, which no
// label selector contains otherwise.
func poolSelector(s *corev1.Service) (labels.Selector, error) {
	text, ok := annotation(s, v1alpha1.VIPPoolSelector, v1alpha1.OpenYurtVIPPoolSelector)
	if !ok || strings.TrimSpace(text) == "" {
		return nil, nil
	}
	return labels.Parse(strings.ReplaceAll(text, ":", "="))
}

// asked are the addresses that a Service asks for in a pool: one a family at most.
func asked(s *corev1.Service, pool string) (map[family]netip.Addr, error) {
	text, ok := annotation(s, v1alpha1.VIPAddressPrefix+pool, v1alpha1.OpenYurtVIPAddress+pool)
	if !ok || strings.TrimSpace(text) == "" {
		return nil, nil
	}
	out := map[family]netip.Addr{}
	for part := range strings.SplitSeq(text, ",") {
		a, err := parseAddr(strings.TrimSpace(part))
		if err != nil {
			return nil, err
		}
		if _, twice := out[familyOf(a)]; twice {
			return nil, fmt.Errorf("%q has two addresses of family %s", text, familyOf(a))
		}
		if !slices.Contains(families(s), familyOf(a)) {
			return nil, fmt.Errorf("%s is of family %s, but the Service's families are %v", a, familyOf(a), families(s))
		}
		out[familyOf(a)] = a
	}
	return out, nil
}

// nodesOf are the names of the edge nodes in a pool.
func nodesOf(pool *v1alpha1.NodePool, nodes []*corev1.Node) ([]string, error) {
	member, err := v1alpha1.PoolMembers{Pool: pool.Name, NodeSelector: pool.Spec.NodeSelector}.Selector()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, n := range nodes {
		if !edge(n) || n.DeletionTimestamp != nil {
			continue
		}
		if member(n.Labels) {
			names = append(names, n.Name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// edge reports whether edgecore runs on a node.
func edge(n *corev1.Node) bool { return v1alpha1.IsEdge(n.Labels) }

// rank orders a pool's nodes for one address and gives them priorities: 200, 190, ... 20, then 19,
// 18, ... 1. The order is that of a hash of address and node (rendezvous hashing, Thaler and
// Ravishankar 1998), so that addresses spread over the nodes, and a node more or less doesn't
// change the order of the others.
func rank(vip string, nodes []string, preferred string) []v1alpha1.VirtualIPNode {
	score := func(node string) uint64 {
		sum := sha256.Sum256([]byte(vip + "\x00" + node))
		return binary.BigEndian.Uint64(sum[:8])
	}
	order := slices.Clone(nodes)
	slices.SortFunc(order, func(a, b string) int {
		if (a == preferred) != (b == preferred) {
			if a == preferred {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(score(b), score(a)), cmp.Compare(a, b))
	})
	out := make([]v1alpha1.VirtualIPNode, len(order))
	for i, n := range order {
		p := 200 - 10*i
		if i > 18 {
			p = max(1, 38-i)
		}
		out[i] = v1alpha1.VirtualIPNode{Name: n, Priority: int32(p)}
	}
	slices.SortFunc(out, func(a, b v1alpha1.VirtualIPNode) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// confirmed reports whether no node can have a deleted address any more: every one that may hold
// it, and still exists, has reported that it dropped it.
func confirmed(v *v1alpha1.VirtualIP, exists func(node string) bool) bool {
	released := map[string]bool{}
	for _, n := range v.Status.Nodes {
		released[n.Name] = n.State == v1alpha1.VIPReleased
		if n.State != v1alpha1.VIPReleased && exists(n.Name) {
			return false
		}
	}
	for _, n := range v.Spec.Nodes {
		if !released[n.Name] && exists(n.Name) {
			return false
		}
	}
	return true
}

// Policy has the settings of cloudcore's administrator.
type Policy struct {
	// ReservedVRIDs are given to no virtual IP on any network.
	ReservedVRIDs []int32
	// Quarantine is how long a deleted address waits for nodes that don't confirm that
	// they dropped it.
	Quarantine time.Duration
	// Hosts are names and addresses of cloudcore, as edges reach it. No virtual IP may be
	// one of them.
	Hosts []string
}

// short bounds a message; conditions hold 32,768 characters, too many to read.
func short(s string) string { return reports.Short(s, 1000) }

// setCondition reports whether it changed something. The transition time is the plan's.
func setCondition(all *[]metav1.Condition, now time.Time, c metav1.Condition) bool {
	c.LastTransitionTime = metav1.NewTime(now).Rfc3339Copy()
	return meta.SetStatusCondition(all, c)
}
