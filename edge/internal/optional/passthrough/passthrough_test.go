package passthrough_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/edge/internal/optional/passthrough"
)

// A pod gets a port that edgecore.yaml lists, and no other; a name means one port of one node.
func TestClaims_05_PortsOfTheListAlone(t *testing.T) {
	pod := func(name, ports string, phase corev1.PodPhase) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name}, Status: corev1.PodStatus{Phase: phase}}
		if ports != "" {
			p.Annotations = map[string]string{"skerry.io/ethernet": ports}
		}
		return p
	}
	wanted, refused := passthrough.Wanted("edge1", []string{"eth1", "eth2.10", "eth3", "a-b"}, []*corev1.Pod{
		pod("the uplink", "wan0", corev1.PodRunning),
		pod("hyphen", "a-b", corev1.PodRunning),
		pod("asks for nothing", "", corev1.PodRunning),
		pod("a", "eth1", corev1.PodRunning),
		pod("b", "eth1, eth2.10", corev1.PodPending),
		pod("has ended", "eth3", corev1.PodSucceeded),
		pod("has failed", "eth3", corev1.PodFailed),
		pod("path", "../eth1", corev1.PodRunning),
		pod("quotes", `eth1","type":"bridge`, corev1.PodRunning),
		pod("long", strings.Repeat("e", 16), corev1.PodRunning),
		pod("capitals", "ETH1", corev1.PodRunning),
		pod("empty", ",", corev1.PodRunning),
		pod("many", strings.Repeat("eth1,", 20), corev1.PodRunning),
	})
	var got []string
	for a, by := range wanted {
		for _, p := range by {
			got = append(got, fmt.Sprintf("%s of %s for %s", a.Key(), a.Port, p.Name))
		}
	}
	for p := range refused {
		got = append(got, "refused: "+p.Name)
	}
	slices.Sort(got)
	want := []string{
		"n/host-eth1-edge1 of eth1 for a", "n/host-eth1-edge1 of eth1 for b", "n/host-eth2.10-edge1 of eth2.10 for b",
		"refused: capitals", "refused: empty", "refused: hyphen", "refused: long", "refused: many", "refused: path", "refused: quotes", "refused: the uplink",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
