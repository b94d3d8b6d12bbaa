package vip_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/agents/vip"
	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/balance"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/keepalived"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netif"
)

func virtualIP(address string, nodes ...string) *v1alpha1.VirtualIP {
	v := &v1alpha1.VirtualIP{Spec: v1alpha1.VirtualIPSpec{
		Address: address, Pool: "hangzhou", VRID: 51, Selector: map[string]string{"app": "web"},
		Service: v1alpha1.VirtualIPService{Namespace: "default", Name: "web", UID: "service"},
		Ports: []v1alpha1.VirtualIPPort{
			{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, TargetPort: intstr.FromString("web")},
			{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53, TargetPort: intstr.FromInt32(8080)},
		},
		AdvertisementInterval: metav1.Duration{Duration: 200 * time.Millisecond},
	}}
	v.Name, v.UID = v1alpha1.VirtualIPName(netip.MustParseAddr(address), ""), "vip"
	v.Labels = map[string]string{}
	for i, n := range nodes {
		v.Spec.Nodes = append(v.Spec.Nodes, v1alpha1.VirtualIPNode{Name: n, Priority: int32(200 - 10*i)})
		v.Labels[v1alpha1.VIPNodeLabel(n)] = ""
	}
	return v
}

func pod(name, node string, ips ...string) *corev1.Pod {
	p := &corev1.Pod{
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: 8080}}}}},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
				{Type: corev1.ContainersReady, Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: corev1.ConditionTrue},
			},
			ContainerStatuses: []corev1.ContainerStatus{{Name: "c", ContainerID: "containerd://" + name}},
		},
	}
	p.Namespace, p.Name, p.Labels = "default", name, map[string]string{"app": "web"}
	for _, ip := range ips {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
		p.Status.PodIP = p.Status.PodIPs[0].IP
	}
	return p
}

func interfaces() []netif.Interface {
	return []netif.Interface{
		{Name: "wan0", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.10.1.2/24")}, Default: true},
		{Name: "lan0", HardwareAddress: "02:00:00:00:00:11", Gateways: []netip.Addr{netip.MustParseAddr("192.168.1.1")}, Prefixes: []netip.Prefix{netip.MustParsePrefix("192.168.1.11/24"), netip.MustParsePrefix("2001:db8::11/64")}},
	}
}

func TestRoles(t *testing.T) {
	const address = "192.168.1.100"
	type want struct {
		Ready    bool
		Backends []string // of the first port
		Iface    string
		Fault    string
		Preempt  bool
	}
	type change func(*vip.Facts)
	edit := func(f func(*v1alpha1.VirtualIP)) change { return func(x *vip.Facts) { f(x.VIPs[0]) } }
	editPod := func(f func(*corev1.Pod)) change { return func(x *vip.Facts) { f(x.Pods[0]) } }
	one := []string{"10.244.1.2:8080"}
	for name, c := range map[string]struct {
		change change
		want   *want // nil: no role
	}{
		"a ready pod":                   {nil, &want{true, one, "lan0", "", false}},
		"no pod":                        {func(f *vip.Facts) { f.Pods = nil }, &want{false, nil, "lan0", "", false}},
		"not ready":                     {editPod(func(p *corev1.Pod) { p.Status.Conditions = nil }), &want{false, nil, "lan0", "", false}},
		"the cloud says that it is not": {editPod(func(p *corev1.Pod) { p.Status.Conditions[1].Status = corev1.ConditionFalse }), &want{true, one, "lan0", "", false}},
		"a gate is closed": {editPod(func(p *corev1.Pod) {
			p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "example.com/warm"}}
		}),
			&want{false, nil, "lan0", "", false}},
		"a gate is open": {editPod(func(p *corev1.Pod) {
			p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "example.com/warm"}}
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: "example.com/warm", Status: corev1.ConditionTrue})
		}), &want{true, one, "lan0", "", false}},
		"ending":              {editPod(func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }), &want{false, nil, "lan0", "", false}},
		"on another node":     {editPod(func(p *corev1.Pod) { p.Spec.NodeName = "b" }), &want{false, nil, "lan0", "", false}},
		"other labels":        {editPod(func(p *corev1.Pod) { p.Labels = nil }), &want{false, nil, "lan0", "", false}},
		"another namespace":   {editPod(func(p *corev1.Pod) { p.Namespace = "other" }), &want{false, nil, "lan0", "", false}},
		"finished":            {editPod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }), &want{false, nil, "lan0", "", false}},
		"of an earlier boot":  {func(f *vip.Facts) { f.PreBootContainers = map[string]bool{"containerd://p": true} }, &want{false, nil, "lan0", "", false}},
		"no address of it":    {editPod(func(p *corev1.Pod) { p.Status.PodIPs = []corev1.PodIP{{IP: "2001:db8:1::2"}} }), &want{false, nil, "lan0", "", false}},
		"two pods":            {func(f *vip.Facts) { f.Pods = append(f.Pods, pod("q", "a", "10.244.1.3")) }, &want{true, []string{"10.244.1.2:8080", "10.244.1.3:8080"}, "lan0", "", false}},
		"no port of the name": {editPod(func(p *corev1.Pod) { p.Spec.Containers[0].Ports = nil }), &want{true, nil, "lan0", "", false}},
		"not ready will do": {func(f *vip.Facts) {
			f.VIPs[0].Spec.PublishNotReady, f.Pods[0].Status.Conditions = true, nil
		}, &want{true, one, "lan0", "", false}},
		"maintenance":           {func(f *vip.Facts) { f.Maintenance = true }, &want{false, one, "lan0", "", false}},
		"first election":        {func(f *vip.Facts) { f.New = map[string]bool{address: true} }, &want{true, one, "lan0", "", true}},
		"preferred":             {edit(func(v *v1alpha1.VirtualIP) { v.Spec.PreferredNode = "a" }), &want{true, one, "lan0", "", true}},
		"another preferred":     {edit(func(v *v1alpha1.VirtualIP) { v.Spec.PreferredNode = "b" }), &want{true, one, "lan0", "", false}},
		"no candidate":          {edit(func(v *v1alpha1.VirtualIP) { v.Spec.Nodes = v.Spec.Nodes[1:] }), nil},
		"deleted":               {edit(func(v *v1alpha1.VirtualIP) { v.DeletionTimestamp = &metav1.Time{} }), nil},
		"no selector":           {edit(func(v *v1alpha1.VirtualIP) { v.Spec.Selector = nil }), &want{false, nil, "lan0", "", false}},
		"interface asked for":   {edit(func(v *v1alpha1.VirtualIP) { v.Spec.Interface = "wan0" }), &want{Fault: "interface wan0 is not on the network of 192.168.1.100"}},
		"interface missing":     {edit(func(v *v1alpha1.VirtualIP) { v.Spec.Interface = "eth9" }), &want{Fault: `the node has no interface "eth9", or it is down`}},
		"outside every network": {edit(func(v *v1alpha1.VirtualIP) { v.Spec.Address = "172.16.0.1" }), &want{Fault: "no interface of the node is on the network of 172.16.0.1"}},
		"nowhere": {func(f *vip.Facts) { f.Interfaces = nil }, &want{
			Fault: "no interface of the node is on the network of 192.168.1.100",
		}},
		"nonsense": {edit(func(v *v1alpha1.VirtualIP) { v.Spec.VRID = 999 }), &want{Fault: "number 999 and priority 200 can't be"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := vip.Facts{Node: "a", VIPs: []*v1alpha1.VirtualIP{virtualIP(address, "a", "b")}, Pods: []*corev1.Pod{pod("p", "a", "10.244.1.2")}, Interfaces: interfaces()}
			if c.change != nil {
				c.change(&f)
			}
			roles := vip.Roles(f)
			if c.want == nil {
				if len(roles) != 0 {
					t.Errorf("roles: %+v", roles)
				}
				return
			}
			if len(roles) != 1 {
				t.Fatalf("roles: %+v", roles)
			}
			r := roles[0]
			got := want{Ready: r.Ready, Iface: r.Instance.Interface, Fault: r.Fault, Preempt: r.Instance.Preempt}
			if len(r.Service.Ports) > 0 {
				for _, b := range r.Service.Ports[0].Backends {
					got.Backends = append(got.Backends, b.String())
				}
			}
			if diff := cmp.Diff(c.want, &got); diff != "" {
				t.Errorf("role (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRoles_whole(t *testing.T) {
	v := virtualIP("2001:db8::100", "b", "a")
	v.Spec.KeepSource = true
	roles := vip.Roles(vip.Facts{
		Node: "a", VIPs: []*v1alpha1.VirtualIP{v}, Pods: []*corev1.Pod{pod("p", "a", "10.244.1.2", "2001:db8:1::2")}, Interfaces: interfaces(),
	})
	address, backends := netip.MustParseAddr("2001:db8::100"), []netip.AddrPort{netip.MustParseAddrPort("[2001:db8:1::2]:8080")}
	want := []vip.Role{{
		VIP: v, Ready: true, Endpoints: 1, Own: netip.MustParsePrefix("2001:db8::11/64"), HardwareAddress: "02:00:00:00:00:11",
		Instance: keepalived.Instance{
			Name: "vip_2001-0db8-0000-0000-0000-0000-0000-0100", Interface: "lan0", VRID: 51, Priority: 190, Advert: 200 * time.Millisecond, Address: address,
		},
		Service: balance.Service{Address: address, Interface: "lan0", KeepSource: true, Ports: []balance.Port{
			{Protocol: balance.TCP, Number: 80, Backends: backends}, {Protocol: balance.UDP, Number: 53, Backends: backends},
		}},
	}}
	if diff := cmp.Diff(want, roles, cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{})); diff != "" {
		t.Errorf("roles (-want +got):\n%s", diff)
	}
}

// hostile are words with a meaning for a parser, a shell or a path.
var hostile = []string{
	"\"", "'", "a b", "a\nb", "$(reboot)", "`reboot`", "../../etc", "/etc/passwd", "a\x00b", "-j ACCEPT", "--flush", "{", "}", "#", ";", strings.Repeat("a", 64<<10), "\xff",
}

// For all strings in an object, the drivers' input consists of numbers, addresses and names of
// existing interfaces, and messages are short.
func TestHostile_17_FieldsOfVirtualIPsAreInert(t *testing.T) {
	for _, word := range hostile {
		for field, edit := range map[string]func(*v1alpha1.VirtualIP){
			"address":   func(v *v1alpha1.VirtualIP) { v.Spec.Address = word },
			"zone":      func(v *v1alpha1.VirtualIP) { v.Spec.Address = "fe80::1%" + word },
			"interface": func(v *v1alpha1.VirtualIP) { v.Spec.Interface = word },
			"network":   func(v *v1alpha1.VirtualIP) { v.Spec.Network, v.Spec.Pool = word, word },
			"service":   func(v *v1alpha1.VirtualIP) { v.Spec.Service.Name, v.Spec.Service.Namespace = word, word },
			"selector":  func(v *v1alpha1.VirtualIP) { v.Spec.Selector = map[string]string{word: word} },
			"protocol":  func(v *v1alpha1.VirtualIP) { v.Spec.Ports[0].Protocol = corev1.Protocol(word) },
			"port's name": func(v *v1alpha1.VirtualIP) {
				v.Spec.Ports[0].Name, v.Spec.Ports[0].TargetPort = word, intstr.FromString(word)
			},
			"range":     func(v *v1alpha1.VirtualIP) { v.Spec.SourceRanges = []string{word} },
			"shares":    func(v *v1alpha1.VirtualIP) { v.Spec.SharesElectionOf = word },
			"preferred": func(v *v1alpha1.VirtualIP) { v.Spec.PreferredNode = word },
			"peer": func(v *v1alpha1.VirtualIP) {
				v.Spec.Unicast = true
				v.Spec.Nodes = append(v.Spec.Nodes, v1alpha1.VirtualIPNode{Name: "b", Priority: 1, Address: word, HardwareAddress: word})
			},
		} {
			v := virtualIP("192.168.1.100", "a")
			edit(v)
			for _, r := range vip.Roles(vip.Facts{Node: "a", VIPs: []*v1alpha1.VirtualIP{v}, Pods: []*corev1.Pod{pod("p", "a", "10.244.1.2")}, Interfaces: interfaces()}) {
				if len(r.Fault) > 300 {
					t.Errorf("%s %.20q: a fault of %d bytes", field, word, len(r.Fault))
				}
				if r.Fault != "" {
					continue
				}
				if r.Instance.Interface != "lan0" || r.Service.Interface != "lan0" || r.Instance.Name != "vip_192.168.1.100" || len(r.Instance.Unicast.Peers) > 0 {
					t.Errorf("%s %.20q: %+v", field, word, r.Instance)
				}
				if err := balance.Validate([]balance.Service{r.Service}); err != nil {
					t.Errorf("%s %.20q: %v", field, word, err)
				}
			}
		}
	}
}
