package vip_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/cloud/internal/controllers/vip"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// Protected addresses are given neither on request nor by allocation, although a pool's ranges have
// them.
func TestHostile_03_ProtectedAddressesAreNotGiven(t *testing.T) {
	w := newWorld(t)
	w.Protected = []vip.Protected{
		{Prefix: netip.MustParsePrefix("10.0.0.3/32"), Why: "an address of cloudcore"},
		{Prefix: netip.MustParsePrefix("10.96.0.0/16"), Why: "a range of Services"},
	}
	w.pool("p", "", "10.0.0.0/29", "10.96.0.0/24", "10.244.0.0/24").Spec.AllowRequested = true
	w.Pools[0].Spec.PodSubnets = []string{"10.244.0.0/16"}
	w.node("a", "p", "10.0.0.1")
	w.Nodes[0].Spec.PodCIDRs = []string{"10.244.0.0/24"}
	dns := w.service("dns")
	dns.Spec.Type, dns.Spec.LoadBalancerClass, dns.Spec.ClusterIPs = corev1.ServiceTypeClusterIP, nil, []string{"10.0.0.4"}
	metal := w.service("metal")
	class := "example.com/metal"
	metal.Spec.LoadBalancerClass, metal.Status.LoadBalancer.Ingress = &class, []corev1.LoadBalancerIngress{{IP: "10.0.0.5"}}
	const key = v1alpha1.VIPAddressPrefix + "p"
	for address, want := range map[string]string{
		"10.0.0.1": vip.ReasonAddressOfNode, "10.0.0.3": vip.ReasonProtected, "10.0.0.4": vip.ReasonProtected, "10.0.0.5": vip.ReasonProtected,
		"10.96.0.1": vip.ReasonProtected, "10.244.0.7": vip.ReasonProtected, "127.0.0.1": vip.ReasonInvalidAddress, "224.0.0.18": vip.ReasonInvalidAddress,
		"::ffff:10.0.0.3": vip.ReasonInvalidAddress, "0.0.0.0": vip.ReasonInvalidAddress,
	} {
		w.service("asks", key, address)
		w.settle()
		w.reason("asks", want)
		if len(w.VIPs) > 0 {
			t.Fatalf("%s is given", address)
		}
		w.remove("asks")
	}
	for i := range 3 {
		w.service(fmt.Sprintf("any%d", i))
	}
	w.settle()
	var got []string
	for _, v := range w.VIPs {
		got = append(got, v.Spec.Address)
	}
	slices.Sort(got)
	if want := []string{"10.0.0.2", "10.0.0.6"}; !slices.Equal(got, want) {
		t.Errorf("given are %v, want %v", got, want)
	}

	// An address that becomes protected after it was given: the Service reports it.
	w.Protected = append(w.Protected, vip.Protected{Prefix: netip.MustParsePrefix("10.0.0.2/32"), Why: "an address of kube-apiserver"})
	w.settle()
	for _, s := range w.Services {
		if len(s.Status.LoadBalancer.Ingress) > 0 && s.Status.LoadBalancer.Ingress[0].IP == "10.0.0.2" {
			w.reason(s.Name, vip.ReasonProtected)
		}
	}
}

// Outside of the ranges only where the NodePool allows it.
func TestHostile_03_RequestsOutsideThePoolNeedAllowRequested(t *testing.T) {
	w := newWorld(t)
	w.pool("p", "", "10.0.0.10-10.0.0.20")
	w.service("web", v1alpha1.VIPAddressPrefix+"p", "10.0.0.99")
	w.settle()
	w.want("web: ")
	w.reason("web", vip.ReasonOutsidePool)
	w.Pools[0].Spec.AllowRequested = true
	w.settle()
	w.want("web: p 10.0.0.99")
	// An allocated address stays when it is not allowed any more.
	w.Pools[0].Spec.AllowRequested = false
	w.settle()
	w.want("web: p 10.0.0.99")
}

func TestHostile_03_RangesAndAffinityReachTheNodes(t *testing.T) {
	w := newWorld(t)
	w.pool("p", "", "10.0.0.10-10.0.0.20")
	s := w.service("web")
	s.Spec.LoadBalancerSourceRanges, s.Spec.SessionAffinity = []string{"10.0.0.0/24"}, corev1.ServiceAffinityClientIP
	w.settle()
	if v := w.VIPs[0].Spec; !slices.Equal(v.SourceRanges, []string{"10.0.0.0/24"}) || v.AffinitySeconds != 10800 {
		t.Errorf("ranges %v, affinity %d s", v.SourceRanges, v.AffinitySeconds)
	}
	seconds := int32(60)
	w.get("web").Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
	w.get("web").Spec.LoadBalancerSourceRanges = nil
	w.settle()
	if v := w.VIPs[0].Spec; v.SourceRanges != nil || v.AffinitySeconds != 60 {
		t.Errorf("ranges %v, affinity %d s", v.SourceRanges, v.AffinitySeconds)
	}
}

// reports sets a node's report of a VirtualIP.
func (w *world) reports(name string, entries ...v1alpha1.VirtualIPNodeStatus) {
	for _, v := range w.VIPs {
		if v.Name == name {
			vip.Merge(v, entries, w.now)
		}
	}
}

func (w *world) vip(name string) *v1alpha1.VirtualIP {
	i := slices.IndexFunc(w.VIPs, func(v *v1alpha1.VirtualIP) bool { return v.Name == name })
	if i < 0 {
		w.t.Fatalf("there is no %s", name)
	}
	return w.VIPs[i]
}

// Two pools that name their networks differently are on one LAN, as a node of both reports: their
// numbers are kept apart, and the pools report it.
func TestTraps_01_TwoNetworksOnOneLANGetDifferentVRIDs(t *testing.T) {
	w := newWorld(t)
	w.pool("p", "left", "10.0.0.10-10.0.0.20").Spec.NodeSelector = &metav1.LabelSelector{}
	w.node("a", "p", "10.0.0.1")
	w.service("one")
	w.settle()
	clash := w.vip("10.0.0.10.left").Spec.VRID
	w.pool("q", "right", "10.0.0.10", "10.0.0.30-10.0.0.32").Spec.NodeSelector = &metav1.LabelSelector{}
	w.service("two", v1alpha1.VIPPoolSelector, "name=q")
	w.settle()
	w.vip("10.0.0.10.right").Spec.VRID = clash // as it may be by accident
	w.poolIs("q", v1alpha1.PoolSharedNetwork, false)
	entry := v1alpha1.VirtualIPNodeStatus{Name: "a", State: v1alpha1.VIPHolder, Programmed: true, Interface: "lan0", Address: "10.0.0.1/24"}
	w.reports("10.0.0.10.left", entry)
	w.reports("10.0.0.10.right", entry)
	w.settle()
	if w.vip("10.0.0.10.left").Spec.VRID != clash || w.vip("10.0.0.10.right").Spec.VRID == clash {
		t.Errorf("numbers %d and %d, want %d and another", w.vip("10.0.0.10.left").Spec.VRID, w.vip("10.0.0.10.right").Spec.VRID, clash)
	}
	w.poolIs("p", v1alpha1.PoolSharedNetwork, true)
	w.poolIs("q", v1alpha1.PoolSharedNetwork, true)
	w.reason("one", vip.ReasonAddressInUse) // it has 10.0.0.10 in both pools, on one LAN
	w.reason("two", vip.ReasonAllocated)
	// A third gets no address that the other pool's Services have.
	w.service("three", v1alpha1.VIPPoolSelector, "name=q")
	w.settle()
	if got := w.get("three").Status.LoadBalancer.Ingress; len(got) != 1 || got[0].IP == "10.0.0.10" {
		t.Errorf("the third has %v", got)
	}
}

// A router that is no node of the pool has the number: the address gets another one, and no address
// gets that.
func TestTraps_05_ForeignRoutersVRIDIsAvoided(t *testing.T) {
	w := newWorld(t)
	w.pool("p", "", "10.0.0.10-10.0.0.12")
	w.node("a", "p", "10.0.0.1")
	w.service("web")
	w.settle()
	before := w.vip("10.0.0.10").Spec.VRID
	w.reports("10.0.0.10", v1alpha1.VirtualIPNodeStatus{Name: "a", State: v1alpha1.VIPFault, Programmed: true, ForeignRouter: "10.0.0.254", ForeignVRID: before})
	if !meta.IsStatusConditionTrue(w.vip("10.0.0.10").Status.Conditions, v1alpha1.VIPConditionVRID) {
		t.Errorf("conditions: %+v", w.vip("10.0.0.10").Status.Conditions)
	}
	w.settle()
	if now := w.vip("10.0.0.10").Spec.VRID; now == before {
		t.Errorf("it still has number %d", now)
	}
	w.reports("10.0.0.10", v1alpha1.VirtualIPNodeStatus{Name: "a", State: v1alpha1.VIPHolder, Programmed: true})
	w.core = vip.NewCore(policy()) // a new leader has it too
	w.service("more")
	w.service("evenmore")
	w.settle()
	for _, v := range w.VIPs {
		if v.Spec.VRID == before {
			t.Errorf("%s got the number of the router", v.Name)
		}
	}
}

// Two nodes that hold one address for longer than a take-over lasts are switched to unicast.
func TestTraps_06_TwoHoldersUseUnicast(t *testing.T) {
	w := newWorld(t)
	w.pool("p", "", "10.0.0.10")
	w.node("a", "p", "10.0.0.1")
	w.node("b", "p", "10.0.0.2")
	w.service("web")
	w.settle()
	at := metav1.NewTime(w.now)
	holder := func(name, address, hardware string) v1alpha1.VirtualIPNodeStatus {
		return v1alpha1.VirtualIPNodeStatus{Name: name, State: v1alpha1.VIPHolder, Programmed: true, Since: &at, Address: address, HardwareAddress: hardware, Interface: "lan0"}
	}
	w.reports("10.0.0.10", holder("a", "10.0.0.1/24", "02:00:00:00:00:01"), holder("b", "10.0.0.2/24", "02:00:00:00:00:02"))
	v := w.vip("10.0.0.10")
	if v.Status.Holder != "a,b" || !meta.IsStatusConditionTrue(v.Status.Conditions, v1alpha1.VIPConditionHolders) {
		t.Errorf("holder %q, conditions %+v", v.Status.Holder, v.Status.Conditions)
	}
	w.settle()
	if w.vip("10.0.0.10").Spec.Unicast {
		t.Error("unicast in the first moment")
	}
	if next := w.core.Plan(w.State, w.now).Next; next.IsZero() || next.After(w.now.Add(15*time.Second)) {
		t.Errorf("it looks again at %v", next)
	}
	w.now = w.now.Add(16 * time.Second)
	w.settle()
	got := w.vip("10.0.0.10").Spec
	if !got.Unicast || got.Nodes[0].Address != "10.0.0.1" || got.Nodes[1].Address != "10.0.0.2" || got.Nodes[1].HardwareAddress != "02:00:00:00:00:02" {
		t.Errorf("%+v", got)
	}
	// It stays when they have found each other.
	w.reports("10.0.0.10", v1alpha1.VirtualIPNodeStatus{Name: "b", State: v1alpha1.VIPBackup, Programmed: true, Since: &at})
	w.settle()
	if !w.vip("10.0.0.10").Spec.Unicast {
		t.Error("back to multicast, to be apart again")
	}
}

// A node takes neither the address of another one nor the virtual IP as the source of its
// advertisements, and has its own until it reports another one. Two nodes may exchange theirs.
func TestClaims_04_NodeTakesNoOthersAddress(t *testing.T) {
	w := newWorld(t)
	w.pool("p", "", "10.0.0.10")
	for i, n := range []string{"a", "b", "c"} {
		w.node(n, "p", fmt.Sprintf("10.0.0.%d", i+1))
	}
	w.service("web")
	w.settle()
	says := func(name, address string) v1alpha1.VirtualIPNodeStatus {
		return v1alpha1.VirtualIPNodeStatus{Name: name, State: v1alpha1.VIPBackup, Programmed: true, Address: address, HardwareAddress: "02:00:00:00:00:01"}
	}
	for _, step := range []struct {
		reports []v1alpha1.VirtualIPNodeStatus
		want    string
	}{
		{[]v1alpha1.VirtualIPNodeStatus{says("a", "10.0.0.1/24"), says("b", "10.0.0.2/24"), says("c", "10.0.0.3/24")}, "a 10.0.0.1 b 10.0.0.2 c 10.0.0.3"},
		{[]v1alpha1.VirtualIPNodeStatus{says("a", "10.0.0.2/24")}, "a 10.0.0.1 b 10.0.0.2 c 10.0.0.3"},
		{[]v1alpha1.VirtualIPNodeStatus{says("a", "10.0.0.10/24")}, "a 10.0.0.1 b 10.0.0.2 c 10.0.0.3"},
		{[]v1alpha1.VirtualIPNodeStatus{says("a", "224.0.0.18/32")}, "a 10.0.0.1 b 10.0.0.2 c 10.0.0.3"},
		{[]v1alpha1.VirtualIPNodeStatus{says("a", "")}, "a 10.0.0.1 b 10.0.0.2 c 10.0.0.3"},
		{[]v1alpha1.VirtualIPNodeStatus{says("a", "10.0.0.4/24")}, "a 10.0.0.4 b 10.0.0.2 c 10.0.0.3"},
		{[]v1alpha1.VirtualIPNodeStatus{says("a", "10.0.0.2/24"), says("b", "10.0.0.4/24")}, "a 10.0.0.2 b 10.0.0.4 c 10.0.0.3"},
	} {
		w.reports("10.0.0.10", step.reports...)
		w.settle()
		var got []string
		for _, n := range w.vip("10.0.0.10").Spec.Nodes {
			got = append(got, n.Name+" "+n.Address)
		}
		slices.Sort(got)
		if s := strings.Join(got, " "); s != step.want {
			t.Errorf("after %+v: %s, want %s", step.reports, s, step.want)
		}
	}
}

// More addresses than numbers: those of the same pods share an election.
func TestTraps_07_SharedElectionsBeyond255Addresses(t *testing.T) {
	w := newWorld(t)
	w.pool("p", "", "10.0.0.0/16")
	w.node("a", "p", "10.9.0.1")
	for i := range 300 {
		s := w.service(fmt.Sprintf("s%03d", i))
		s.Spec.Selector = map[string]string{"app": "ingress"}
	}
	w.settle()
	owners := map[string]int32{}
	shared := 0
	for _, v := range w.VIPs {
		if v.Spec.SharesElectionOf == "" {
			for name, n := range owners {
				if n == v.Spec.VRID {
					t.Errorf("%s and %s have number %d", name, v.Name, n)
				}
			}
			owners[v.Name] = v.Spec.VRID
		}
	}
	for _, v := range w.VIPs {
		if of := v.Spec.SharesElectionOf; of != "" {
			shared++
			if owners[of] != v.Spec.VRID {
				t.Errorf("%s shares the election of %s, with number %d instead of %d", v.Name, of, v.Spec.VRID, owners[of])
			}
		}
	}
	if len(w.VIPs) != 300 || shared != 300-253 {
		t.Errorf("%d addresses, %d of them share", len(w.VIPs), shared)
	}
	// The owner's Service is deleted: those that shared stay, with another election.
	var of string
	for _, v := range w.VIPs {
		if v.Spec.SharesElectionOf != "" {
			of = v.Spec.SharesElectionOf
			break
		}
	}
	w.remove(w.vip(of).Spec.Service.Name)
	w.settle()
	w.released()
	w.settle()
	for _, v := range w.VIPs {
		if v.Spec.SharesElectionOf == of {
			t.Errorf("%s still shares the election of %s, which is gone", v.Name, of)
		}
	}
	// Another selector: not the same holder any more.
	for _, v := range w.VIPs {
		if v.Spec.SharesElectionOf != "" {
			w.get(v.Spec.Service.Name).Spec.Selector = map[string]string{"app": "other"}
			w.settle()
			if x := w.vip(v.Name).Spec; x.SharesElectionOf != "" && w.vip(x.SharesElectionOf).Spec.Selector["app"] != "other" {
				t.Errorf("%s follows the pods of another Service", v.Name)
			}
			break
		}
	}
}

// Networks' own and broadcast addresses are no hosts', as the nodes' interfaces show.
func TestTraps_07_NetworkAndBroadcastAddressesAreNotGiven(t *testing.T) {
	w := newWorld(t)
	w.pool("p", "", "10.0.0.62-10.0.0.63")
	w.node("a", "p", "10.0.0.1")
	w.service("first", v1alpha1.VIPAddressPrefix+"p", "10.0.0.62")
	w.settle()
	w.reports("10.0.0.62", v1alpha1.VirtualIPNodeStatus{Name: "a", State: v1alpha1.VIPHolder, Programmed: true, Interface: "lan0", Address: "10.0.0.1/26"})
	w.service("second")
	w.settle()
	w.want("first: p 10.0.0.62", "second: ")
	w.reason("second", vip.ReasonExhausted)
}

// A foreign VRRP router holds the address: it is reported, and no pod is blamed.
func TestTraps_08_StrangerSpeaksVRRPIsSaid(t *testing.T) {
	w := newWorld(t)
	w.pool("p", "", "10.0.0.10")
	w.node("a", "p", "10.0.0.1")
	w.node("b", "p", "10.0.0.2")
	w.service("web")
	w.settle()
	for _, n := range []string{"a", "b"} {
		w.reports("10.0.0.10", v1alpha1.VirtualIPNodeStatus{Name: n, State: v1alpha1.VIPBackup, ReadyEndpoints: 3, Programmed: true, DuplicateOf: "02:00:00:00:00:99"})
	}
	s := w.vip("10.0.0.10").Status
	if !meta.IsStatusConditionTrue(s.Conditions, v1alpha1.VIPConditionDuplicate) || s.ReadyNodes != 2 {
		t.Errorf("%+v", s)
	}
	if c := meta.FindStatusCondition(s.Conditions, v1alpha1.VIPConditionAnnounced); c.Status != metav1.ConditionFalse || c.Message != "no node holds the address: another host on the LAN has it" {
		t.Errorf("%+v", c)
	}
	w.reports("10.0.0.10", v1alpha1.VirtualIPNodeStatus{Name: "a", State: v1alpha1.VIPBackup, Programmed: true}, v1alpha1.VirtualIPNodeStatus{Name: "b", State: v1alpha1.VIPBackup, Programmed: true})
	if c := meta.FindStatusCondition(w.vip("10.0.0.10").Status.Conditions, v1alpha1.VIPConditionAnnounced); c.Message == "no node holds the address: no pod of the Service is ready on any node" {
		t.Errorf("two are ready: %s", c.Message)
	}
}

// A device, of whatever pool, reports that its pods have all addresses, and that it has hundreds
// itself: a pool continues to give away its own. A device's address on its LAN is not given, though
// the Node's status does not name it (32).
func TestClaims_03_NodesDoNotUsePoolsUp(t *testing.T) {
	w := newWorld(t)
	w.pool("p", "", "10.0.0.0/24").Spec.PodSubnets = []string{"10.244.0.0/16"}
	w.node("evil", "", "10.0.0.1")
	evil := w.Nodes[0]
	evil.Spec.PodCIDRs = []string{"0.0.0.0/0", "10.0.0.0/24"}
	for i := range 250 {
		evil.Status.Addresses = append(evil.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("10.0.0.%d", i+2)})
	}
	w.node("a", "p", "172.16.0.1")
	w.Nodes[1].Annotations = map[string]string{v1alpha1.LANAddressesAnnotation: "10.0.0.9/24"}
	for i := range 100 {
		w.service(fmt.Sprintf("s%03d", i))
	}
	w.settle()
	if len(w.VIPs) != 100 {
		t.Errorf("%d of 100 Services have an address", len(w.VIPs))
	}
	for _, v := range w.VIPs {
		if v.Spec.Address == "10.0.0.9" {
			t.Error("a Service has the LAN address of a device")
		}
	}
}

// The address that a device has on its LAN, which its Node's status does not name, goes to no
// Service: not one that asks for it where any address may be asked for, and not by a range that has
// it.
func TestClaims_32_LANAddressOfADeviceIsGivenToNoService(t *testing.T) {
	w := newWorld(t)
	w.pool("p", "", "10.0.0.8-10.0.0.10").Spec.AllowRequested = true
	w.node("a", "p", "172.16.0.1")
	w.Nodes[0].Annotations = map[string]string{v1alpha1.LANAddressesAnnotation: "10.0.0.9/24,192.168.7.1/24"}
	const key = v1alpha1.VIPAddressPrefix + "p"
	w.service("in-the-range", key, "10.0.0.9")
	w.service("outside", key, "192.168.7.1")
	w.service("free-to-have", key, "192.168.7.2")
	w.service("one")
	w.service("two")
	w.service("three")
	w.settle()
	w.reason("in-the-range", vip.ReasonAddressOfNode)
	w.reason("outside", vip.ReasonAddressOfNode)
	w.reason("three", vip.ReasonExhausted)
	var given []string
	for _, v := range w.VIPs {
		given = append(given, v.Spec.Address)
	}
	slices.Sort(given)
	if want := []string{"10.0.0.10", "10.0.0.8", "192.168.7.2"}; !slices.Equal(given, want) {
		t.Errorf("given: %v, want %v", given, want)
	}
}

// TestClaims_04: one device repeatedly reports that another router has the address's number, while
// another one holds the address. The number stays; with two devices' reports, or where no other
// could hold it, the number moves, at a rate, and comes back after a day.
func TestClaims_04_OneNodesWordMovesNoVRID(t *testing.T) {
	w := newWorld(t)
	w.pool("p", "", "10.0.0.10-10.0.0.12")
	w.node("a", "p", "10.0.0.1")
	w.node("b", "p", "10.0.0.2")
	w.node("c", "p", "10.0.0.3")
	w.service("web")
	w.settle()
	vrid := func() int32 { return w.vip("10.0.0.10").Spec.VRID }
	entry := func(name string, state v1alpha1.VirtualIPState, foreign int32) v1alpha1.VirtualIPNodeStatus {
		e := v1alpha1.VirtualIPNodeStatus{Name: name, State: state, Programmed: true}
		if foreign != 0 {
			e.ForeignRouter, e.ForeignVRID = "10.0.0.254", foreign
		}
		return e
	}
	first := vrid()
	w.reports("10.0.0.10", entry("b", v1alpha1.VIPHolder, 0), entry("c", v1alpha1.VIPNotReady, 0))
	for range 20 {
		for _, state := range []v1alpha1.VirtualIPState{v1alpha1.VIPBackup, v1alpha1.VIPHolder, v1alpha1.VIPFault} {
			w.reports("10.0.0.10", entry("a", state, vrid()))
			w.settle()
			if got := vrid(); got != first {
				t.Fatalf("one node's word (%s) moved the number from %d to %d", state, first, got)
			}
			w.now = w.now.Add(time.Hour)
		}
	}
	for n := int32(1); n <= 255; n++ { // nor does it reserve numbers
		w.reports("10.0.0.10", entry("a", v1alpha1.VIPFault, n))
		w.settle()
	}
	if got := w.Pools[0].Status.ForeignVRIDs; len(got) > 0 {
		t.Errorf("reserved by one node's word: %v", got)
	}

	w.reports("10.0.0.10", entry("a", v1alpha1.VIPFault, first), entry("c", v1alpha1.VIPFault, first))
	w.settle()
	second := vrid()
	if second == first {
		t.Fatal("two nodes' word moved nothing")
	}
	w.reports("10.0.0.10", entry("a", v1alpha1.VIPFault, second), entry("c", v1alpha1.VIPFault, second))
	w.settle()
	if got := vrid(); got != second {
		t.Errorf("moved again within a moment, to %d", got)
	}
	if next := w.core.Plan(w.State, w.now).Next; next.IsZero() || next.After(w.now.Add(10*time.Minute)) {
		t.Errorf("looked at again at %s, it is %s", next, w.now)
	}
	w.now = w.now.Add(10 * time.Minute)
	w.settle()
	if vrid() == second {
		t.Error("it is not moved once the rate allows it")
	}
	w.reports("10.0.0.10", entry("a", v1alpha1.VIPBackup, 0), entry("c", v1alpha1.VIPBackup, 0))
	w.now = w.now.Add(23 * time.Hour)
	w.settle()
	if got := w.Pools[0].Status.ForeignVRIDs; len(got) != 2 {
		t.Errorf("numbers that were heard a day ago: %v", got)
	}
	w.now = w.now.Add(2 * time.Hour)
	w.settle()
	if got := w.Pools[0].Status.ForeignVRIDs; len(got) != 0 {
		t.Errorf("numbers never come back: %v", got)
	}
}

// The only device that could hold the address is believed, and a number in constant use elsewhere
// stays.
func TestClaims_04_TheOnlyCandidateIsBelieved(t *testing.T) {
	w := newWorld(t)
	w.pool("p", "", "10.0.0.10")
	w.node("a", "p", "10.0.0.1")
	w.node("b", "p", "10.0.0.2")
	w.service("web")
	w.settle()
	first := w.vip("10.0.0.10").Spec.VRID
	w.reports("10.0.0.10", v1alpha1.VirtualIPNodeStatus{Name: "a", State: v1alpha1.VIPFault, ForeignRouter: "10.0.0.254", ForeignVRID: first},
		v1alpha1.VirtualIPNodeStatus{Name: "b", State: v1alpha1.VIPNotReady})
	for range 60 {
		w.settle()
		w.now = w.now.Add(time.Hour)
	}
	if got := w.Pools[0].Status.ForeignVRIDs; len(got) != 1 || got[0].VRID != first || w.vip("10.0.0.10").Spec.VRID == first {
		t.Errorf("number %d, heard %v", w.vip("10.0.0.10").Spec.VRID, got)
	}
}

// The holder of an address, or the reason why no node is, is reported also where no node has
// reported, and where nodes refuse it.
func TestClaims_33_WhyNoNodeHoldsTheAddress(t *testing.T) {
	w := newWorld(t)
	w.pool("p", "", "10.0.0.10")
	w.service("web")
	w.settle()
	says := func(reason, text string, shown bool) {
		t.Helper()
		web := w.get("web")
		if c := meta.FindStatusCondition(web.Status.Conditions, v1alpha1.VIPAllocated); (len(web.Status.LoadBalancer.Ingress) > 0) != shown || strings.Contains(c.Message, "10.0.0.10 is not shown: ") == shown {
			t.Errorf("%s: EXTERNAL-IP is %v, and the Service says %+v", reason, web.Status.LoadBalancer.Ingress, c)
		}
		c := meta.FindStatusCondition(w.vip("10.0.0.10").Status.Conditions, v1alpha1.VIPConditionAnnounced)
		if c == nil || c.Status != metav1.ConditionFalse || c.Reason != reason || !strings.Contains(c.Message, text) {
			t.Errorf("want %s, %q; got %+v", reason, text, c)
		}
	}
	says("NoNodes", "pool p has no nodes", true)
	if c := meta.FindStatusCondition(w.get("web").Status.Conditions, v1alpha1.VIPAllocated); !strings.Contains(c.Message, "no node holds 10.0.0.10: pool p has no nodes") {
		t.Errorf("the Service says %q", c.Message)
	}
	w.node("a", "p", "10.0.0.1")
	w.settle()
	says("NoReport", "none of the pool's has reported", true)
	w.reports("10.0.0.10", v1alpha1.VirtualIPNodeStatus{Name: "a", State: v1alpha1.VIPFault, Message: "10.0.0.10 is the gateway of this device"})
	w.settle()
	says("NoHolder", "a: 10.0.0.10 is the gateway of this device", false)
	w.reports("10.0.0.10", v1alpha1.VirtualIPNodeStatus{Name: "a", State: v1alpha1.VIPNotReady, Message: "no pod is ready"})
	w.settle()
	says("NoHolder", "no pod of the Service is ready on any node", true)
}
