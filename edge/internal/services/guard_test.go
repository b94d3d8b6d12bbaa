package services_test

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/skerry-io/skerry/common/claim"
	"github.com/skerry-io/skerry/edge/internal/services"
)

// Who may only create Services in one namespace names cloudcore's address: the proxy never sees it.
func TestClaims_02_ExternalAddressesAreJudged(t *testing.T) {
	guards := claim.Standard()
	guards.Host(netip.MustParseAddr("198.51.100.10"), "an address of cloudcore")
	guards.Host(netip.MustParseAddr("192.168.100.1"), "a gateway of this device")
	mine := func() *corev1.Service {
		return &corev1.Service{
			Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.9", ExternalIPs: []string{"198.51.100.10", "192.168.100.40", "127.0.0.1", "x"}},
			Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{
				{IP: "192.168.100.1"}, {IP: "192.168.100.41"}, {Hostname: "lb.example"}, {IP: "::ffff:198.51.100.10"},
			}}},
		}
	}
	for name, test := range map[string]struct {
		external []netip.Prefix
		want     []string
	}{
		"by default":      {nil, nil},
		"ranges":          {claim.Prefixes([]string{"192.168.100.0/24"}), []string{"192.168.100.40"}},
		"everything, but": {claim.Prefixes([]string{"0.0.0.0/0"}), []string{"192.168.100.40"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := mine()
			got, why := services.Rules{External: test.external, Guards: guards}.Judge(s)
			if diff := cmp.Diff(test.want, got.Spec.ExternalIPs); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if diff := cmp.Diff([]corev1.LoadBalancerIngress{{IP: "192.168.100.41"}, {Hostname: "lb.example"}}, got.Status.LoadBalancer.Ingress); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if len(why) == 0 || got.Spec.ClusterIP != "10.96.0.9" || !cmp.Equal(s, mine()) {
				t.Errorf("%q, and the Service of the View is %v", why, s)
			}
		})
	}
	plain := &corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.9"}}
	if got, why := (services.Rules{Guards: guards}).Judge(plain); got != plain || why != nil {
		t.Errorf("a Service without such addresses is copied: %q", why)
	}
}
