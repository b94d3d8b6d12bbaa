package loadbalancer_test

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/skerry-io/skerry/tests/cluster/loadbalancer"
)

// Each port leads to the healthy nodes alone, and is dropped while there are none of them.
func TestRules(t *testing.T) {
	one, two := netip.MustParseAddr("10.10.51.2"), netip.MustParseAddr("10.10.52.2")
	var s corev1.Service
	s.Spec.Ports = []corev1.ServicePort{{Protocol: "TCP", Port: 443, NodePort: 30001}, {Protocol: "UDP", Port: 443, NodePort: 30002}, {Protocol: "TCP", Port: 80}}
	for name, c := range map[string]struct {
		healthy []netip.Addr
		want    string
	}{
		"two": {[]netip.Addr{one, two}, `*nat
:TRIAL-LB - [0:0]
-A TRIAL-LB -d 198.51.100.100/32 -p tcp --dport 443 -m statistic --mode random --probability 0.500000 -j DNAT --to-destination 10.10.51.2:30001
-A TRIAL-LB -d 198.51.100.100/32 -p tcp --dport 443 -j DNAT --to-destination 10.10.52.2:30001
-A TRIAL-LB -d 198.51.100.100/32 -p udp --dport 443 -m statistic --mode random --probability 0.500000 -j DNAT --to-destination 10.10.51.2:30002
-A TRIAL-LB -d 198.51.100.100/32 -p udp --dport 443 -j DNAT --to-destination 10.10.52.2:30002
COMMIT
`},
		"one": {[]netip.Addr{two}, `*nat
:TRIAL-LB - [0:0]
-A TRIAL-LB -d 198.51.100.100/32 -p tcp --dport 443 -j DNAT --to-destination 10.10.52.2:30001
-A TRIAL-LB -d 198.51.100.100/32 -p udp --dport 443 -j DNAT --to-destination 10.10.52.2:30002
COMMIT
`},
		"none": {nil, "*nat\n:TRIAL-LB - [0:0]\nCOMMIT\n"},
	} {
		got := loadbalancer.Rules(netip.MustParseAddr("198.51.100.100"), []corev1.Service{s}, func(*corev1.Service) []netip.Addr { return c.healthy })
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
