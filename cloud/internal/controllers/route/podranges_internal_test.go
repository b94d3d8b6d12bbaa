package route

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/claim"
)

// A device that claims all addresses for its pods withdraws nobody's route; one in its pool's
// podSubnets, and a server of the cluster, are guarded.
func TestClaims_03_NoNodeWithdrawsRoutes(t *testing.T) {
	var p podRanges
	add := func(name string, labels map[string]string, cidr string) {
		t.Helper()
		raw, err := kube.ToProtobuf(corev1.SchemeGroupVersion.WithKind("Node"), &corev1.Node{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDRs: []string{cidr}},
		})
		if err != nil {
			t.Fatal(err)
		}
		if !p.update(nil, &kube.Object{Key: kube.Key{Name: name}, Labels: labels, Raw: raw}) {
			t.Errorf("%s is not noted", name)
		}
	}
	edge := map[string]string{v1alpha1.EdgeOwnLabel: ""}
	subnets := claim.Prefixes([]string{"10.244.0.0/16"})
	add("evil", edge, "0.0.0.0/0")
	add("evil2", edge, "172.20.0.0/24")
	if got := p.overlapped("172.20.0.0/16", subnets); got != "" {
		t.Errorf("a route is refused for %s", got)
	}
	add("good", edge, "10.244.3.0/24")
	add("server", nil, "172.20.3.0/24")
	for subnet, want := range map[string]string{"10.244.0.0/16": "10.244.3.0/24, the pods of node good", "172.20.0.0/16": "172.20.3.0/24, the pods of node server"} {
		if got := p.overlapped(subnet, subnets); got != want {
			t.Errorf("%s: %q, want %q", subnet, got, want)
		}
	}
}
