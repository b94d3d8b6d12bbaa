package vip_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/cloud/internal/controllers/vip"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

func TestMerge(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	entry := func(name string, state v1alpha1.VirtualIPState, since time.Duration, message string) v1alpha1.VirtualIPNodeStatus {
		at := metav1.NewTime(now.Add(since))
		return v1alpha1.VirtualIPNodeStatus{Name: name, State: state, Since: &at, Programmed: message == "", Message: message}
	}
	for name, c := range map[string]struct {
		entries []v1alpha1.VirtualIPNodeStatus
		want    string // holder, ready nodes, conditions that are True, nodes
	}{
		"no reports": {nil, " 0 [] []"},
		"holder and backup": {[]v1alpha1.VirtualIPNodeStatus{entry("b", v1alpha1.VIPBackup, 0, ""), entry("a", v1alpha1.VIPHolder, 0, "")},
			"a 2 [Programmed Announced] [a b]"},
		"two holders are shown": {[]v1alpha1.VirtualIPNodeStatus{entry("a", v1alpha1.VIPHolder, 0, ""), entry("b", v1alpha1.VIPHolder, time.Minute, "")},
			"b,a 2 [Programmed Announced MultipleHolders] [a b]"},
		"no ready pod": {[]v1alpha1.VirtualIPNodeStatus{entry("a", v1alpha1.VIPNotReady, 0, "")}, " 0 [Programmed] [a]"},
		"a fault":      {[]v1alpha1.VirtualIPNodeStatus{entry("a", v1alpha1.VIPFault, 0, "no interface"), entry("b", v1alpha1.VIPHolder, 0, "")}, "b 1 [Announced] [a b]"},
		"a duplicate address": {[]v1alpha1.VirtualIPNodeStatus{
			{Name: "a", State: v1alpha1.VIPFault, Programmed: true, DuplicateOf: "02:00:00:00:00:01", Message: "another device has it"}, entry("b", v1alpha1.VIPNotReady, 0, "")},
			" 0 [Programmed DuplicateAddress] [a b]"},
		"not a node of it": {[]v1alpha1.VirtualIPNodeStatus{entry("z", v1alpha1.VIPHolder, 0, "")}, " 0 [] []"},
	} {
		t.Run(name, func(t *testing.T) {
			v := &v1alpha1.VirtualIP{Spec: v1alpha1.VirtualIPSpec{Nodes: []v1alpha1.VirtualIPNode{{Name: "a"}, {Name: "b"}}}}
			vip.Merge(v, c.entries, now)
			if vip.Merge(v, c.entries, now.Add(time.Hour)) {
				t.Error("the same again changes something")
			}
			var yes, nodes []string
			for _, x := range v.Status.Conditions {
				if x.Status == metav1.ConditionTrue {
					yes = append(yes, x.Type)
				}
			}
			for _, n := range v.Status.Nodes {
				nodes = append(nodes, n.Name)
			}
			got := fmt.Sprintf("%s %d %v %v", v.Status.Holder, v.Status.ReadyNodes, yes, nodes)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("status (-want +got):\n%s", diff)
			}
		})
	}
}

func TestKind_refusesNonsense(t *testing.T) {
	object := []byte(`{"apiVersion":"skerry.io/v1alpha1","kind":"VirtualIP","metadata":{"name":"x"},"spec":{"nodes":[{"name":"a","priority":200},{"name":"b","priority":190}]}}`)
	merged, refused, err := vip.Kind().Merge(object, map[string][]byte{
		"a": []byte(`{"name":"b","state":"Holder","programmed":true}`), "b": []byte(`{"state":"King"}`), "c": []byte(`[]`),
	})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(merged), `"holder":"a"`) {
		t.Errorf("a node speaks for itself alone: %s", merged)
	}
	if refused["a"] != nil || refused["b"] == nil || refused["c"] == nil {
		t.Errorf("refused: %v", refused)
	}
	swept, err := vip.Kind().Sweep(merged, func(node string) bool { return node != "a" })
	if err != nil || strings.Contains(string(swept), `"holder"`) {
		t.Errorf("the holder is gone: %s, %v", swept, err)
	}
}
