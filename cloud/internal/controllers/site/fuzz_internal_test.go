package site

import (
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// Whatever a device writes into its Node, and an administrator into a pool, ranges are offered from
// the pool's subnets alone, and never one that another device has.
func FuzzAllocate(f *testing.F) {
	f.Add("192.168.1.5/24", "10.0.1.0/24", "10.244.1.0/24", "10.244.0.0/16")
	f.Add("0.0.0.0/0,::/0,127.0.0.1/8", "0.0.0.0/0", "::/0", "10.244.0.0/16,fd00::/48")
	f.Add(strings.Repeat("192.168.1.5/24,", 5000), "::ffff:10.0.0.0/120", "10.244.0.0/16", "10.244.0.0/24")
	f.Add("fe80::1%$(reboot)/64", "a\n../", "10.244.1.0/33", "10.244.0.0/31")
	f.Add("", "", "", "10.0.0.0/1")
	f.Fuzz(func(t *testing.T, lan, offer, cidr, subnets string) {
		read := func(name string, n *corev1.Node) *Device {
			n.Name, n.Labels = name, map[string]string{v1alpha1.EdgeLabel: "", v1alpha1.EdgeOwnLabel: "", v1alpha1.NodePoolLabel: "p"}
			raw, err := kube.ToProtobuf(corev1.SchemeGroupVersion.WithKind("Node"), n)
			if err != nil {
				t.Skip()
			}
			d, err := readDevice(&kube.Object{Key: kube.Key{Name: name}, Labels: n.Labels, Raw: raw})
			if err != nil {
				t.Skip()
			}
			if len(d.Addresses) > maxAddresses || len(d.LANs) > maxAddresses {
				t.Errorf("%d addresses and %d networks", len(d.Addresses), len(d.LANs))
			}
			return d
		}
		hostile := read("a", &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.LANAddressesAnnotation: lan, v1alpha1.PodCIDROfferAnnotation: offer}},
			Spec:       corev1.NodeSpec{PodCIDRs: []string{cidr}},
		})
		devices := []*Device{hostile, read("b", &corev1.Node{Spec: corev1.NodeSpec{PodCIDRs: []string{"10.244.7.0/24"}}}), read("c", &corev1.Node{})}
		p := pool("p", "shop", strings.Split(subnets, ",")...)
		pools := []*v1alpha1.NodePool{p}
		for _, o := range Allocate(NewIndex(devices, pools), devices, pools, nil).Offers {
			for _, r := range o.Ranges {
				inside := false
				for _, text := range p.Spec.PodSubnets {
					s, err := netip.ParsePrefix(text)
					inside = inside || err == nil && s.Masked().Contains(r.Addr()) && s.Bits() <= r.Bits()
				}
				if !inside {
					t.Errorf("%s is offered %v, which is in none of %q", o.Node, r, p.Spec.PodSubnets)
				}
				if r.Overlaps(netip.MustParsePrefix("10.244.7.0/24")) {
					t.Errorf("%s is offered %v, which b has", o.Node, r)
				}
			}
		}
	})
}
