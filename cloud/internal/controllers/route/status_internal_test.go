package route

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

func entry(reason string, generation int) []byte {
	return fmt.Appendf(nil, `{"name":"another-node","reason":%q,"observedGeneration":%d}`, reason, generation)
}

func TestMerge(t *testing.T) {
	o := &v1alpha1.StaticRoute{}
	refused := merge(o, map[string][]byte{"b": entry("Applied", 1), "a": entry("GatewayUnreachable", 1), "c": []byte(`{"reason":7}`), "d": []byte(`{}`)})
	if len(refused) != 2 || refused["c"] == nil || refused["d"] == nil {
		t.Errorf("refused: %v", refused)
	}
	want := []v1alpha1.StaticRouteNode{{Name: "a", Reason: "GatewayUnreachable", ObservedGeneration: 1}, {Name: "b", Reason: "Applied", ObservedGeneration: 1}}
	if diff := cmp.Diff(want, o.Status.Nodes); diff != "" {
		t.Errorf("entries are their nodes' own (-want +got):\n%s", diff)
	}
	merge(o, map[string][]byte{"a": nil, "z": nil})
	if diff := cmp.Diff(want[1:], o.Status.Nodes); diff != "" {
		t.Errorf("after a removal (-want +got):\n%s", diff)
	}
}

// Above 200 nodes the fine ones are only named; no node is ever lost, and the status itself is the
// only state.
func TestMerge_manyNodes(t *testing.T) {
	o := &v1alpha1.StaticRoute{}
	o.Generation = 1
	var all []string
	for i := range 300 {
		name := fmt.Sprintf("n%03d", i)
		all = append(all, name)
		body := entry("Applied", 1)
		if i%100 == 7 {
			body = entry("Conflict", 1)
		}
		merge(o, map[string][]byte{name: body})
	}
	counts := func(desired []string) string {
		summarize(o, desired, nil)
		return fmt.Sprintf("%d desired %d applied %d failed, %d listed, %d left", o.Status.Desired, o.Status.Applied, o.Status.Failed, len(o.Status.Nodes), len(left(&o.Status)))
	}
	if got := counts(all); got != "300 desired 297 applied 3 failed, 3 listed, 300 left" {
		t.Error(got)
	}
	o.Generation = 2
	merge(o, map[string][]byte{"n000": entry("Applied", 2), "n007": entry("Applied", 2), "n001": nil, "n002": entry("Refused", 2)})
	if got := counts(all); got != "300 desired 2 applied 3 failed, 3 listed, 299 left" {
		t.Error(got)
	}
	if len(o.Status.Waiting) != waitingNamed || o.Status.Waiting[0] != "n001" {
		t.Errorf("waiting: %v", o.Status.Waiting)
	}
	sweep(o, func(name string) bool { return name < "n100" })
	if got := counts(all[:100]); got != "100 desired 2 applied 1 failed, 1 listed, 99 left" {
		t.Error(got)
	}
}

// However many nodes report an error, and at whatever length, the object stays below etcd's limit,
// all are counted, and no node is lost.
func TestMerge_manyFail(t *testing.T) {
	const nodes = 10_000
	long := strings.Repeat("\u00e9", 4<<10)
	for name, report := range map[string]string{
		"as edgecore does":  `{"reason":"GatewayUnreachable","observedGeneration":1,"message":"the gateway 10.0.0.1 is on no network of the node"}`,
		"as much as it may": `{"reason":"GatewayUnreachable","observedGeneration":1,"message":"` + long + `","state":{"subnet":"` + long + `"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			o := &v1alpha1.StaticRoute{}
			o.Generation = 1
			var all []string
			reports := map[string][]byte{}
			for i := range nodes {
				node := fmt.Sprintf("edge-%05d.site-17.example.com", i)
				all = append(all, node)
				if reports[node] = []byte(report); i%10 == 3 {
					reports[node] = entry("Conflict", 1)
				}
			}
			if refused := merge(o, reports); len(refused) > 0 {
				t.Fatalf("%d refused", len(refused))
			}
			check := func(want string) {
				t.Helper()
				summarize(o, all, nil)
				raw, err := json.Marshal(o)
				if err != nil {
					t.Fatal(err)
				}
				if len(raw) > 1<<20 {
					t.Errorf("the object has %d bytes", len(raw))
				}
				if got := fmt.Sprintf("%d applied %d failed, %d listed, %d left", o.Status.Applied, o.Status.Failed, len(o.Status.Nodes), len(left(&o.Status))); got != want {
					t.Errorf("got  %s\nwant %s", got, want)
				}
			}
			check("0 applied 10000 failed, 200 listed, 10000 left")
			if c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionConflict); c.Status != metav1.ConditionTrue || !strings.Contains(c.Message, "and 997 more") {
				t.Errorf("Conflict: %s, %s", c.Status, c.Message)
			}
			merge(o, map[string][]byte{all[0]: entry("Applied", 1), all[9999]: entry("Degraded", 1), all[1]: nil})
			check("2 applied 9998 failed, 199 listed, 9999 left")
			sweep(o, func(name string) bool { return name != all[5000] && name != all[9999] })
			check("1 applied 9996 failed, 198 listed, 9997 left")
		})
	}
}

// A device's error message becomes a condition, whose form Kubernetes prescribes.
func TestMerge_refusesReasons(t *testing.T) {
	o := &v1alpha1.StaticRoute{}
	refused := merge(o, map[string][]byte{"a": entry("no word", 1), "b": entry(strings.Repeat("Long", 17), 1), "c": entry("Caf\u00e9", 1), "d": entry("Refused", 1)})
	if len(refused) != 3 || refused["d"] != nil || len(o.Status.Nodes) != 1 {
		t.Errorf("refused: %v", refused)
	}
}

func TestSummarize(t *testing.T) {
	now := metav1.Now()
	for name, c := range map[string]struct {
		reports  map[string][]byte
		desired  []string
		deleting bool
		dryRun   bool
		problem  error
		ready    string
		conflict string
	}{
		"no node":          {nil, nil, false, false, nil, "True NoNodes no edge node matches nodeSelector and nodePool", "False"},
		"not reported":     {nil, []string{"a", "b", "c", "d"}, false, false, nil, "False Waiting not reported since the route was written: a, b, c and 1 more", "False"},
		"an older one":     {map[string][]byte{"a": entry("Applied", 1)}, []string{"a"}, false, false, nil, "False Waiting not reported since the route was written: a", "False"},
		"all":              {map[string][]byte{"a": entry("Applied", 2)}, []string{"a"}, false, false, nil, "True Applied all of 1 nodes have the route", "False"},
		"a rehearsal":      {map[string][]byte{"a": entry("DryRun", 2)}, []string{"a"}, false, true, nil, "True DryRun all of 1 nodes could set the route", "False"},
		"one failed":       {map[string][]byte{"a": entry("Applied", 2), "b": entry("Protected", 2)}, []string{"a", "b"}, false, false, nil, "False Protected b: Protected: ", "False"},
		"a conflict":       {map[string][]byte{"b": entry("Conflict", 2)}, []string{"b"}, false, false, nil, "False Conflict b: Conflict: ", "True"},
		"one not selected": {map[string][]byte{"a": entry("Applied", 2), "b": entry("Refused", 2)}, []string{"a"}, false, false, nil, "True Applied all of 1 nodes have the route", "False"},
		"deleted":          {map[string][]byte{"a": entry("Applied", 2)}, nil, true, false, nil, "False Deleting waits until the route is gone from a", "False"},
		"bad selector":     {nil, nil, false, false, errors.New("nodeSelector: bad"), "False Invalid nodeSelector: bad", "False"},
	} {
		t.Run(name, func(t *testing.T) {
			o := &v1alpha1.StaticRoute{}
			o.Generation, o.Spec.DryRun = 2, c.dryRun
			if c.deleting {
				o.DeletionTimestamp = &now
			}
			merge(o, c.reports)
			summarize(o, c.desired, c.problem)
			r := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionReady)
			if got := fmt.Sprint(r.Status, " ", r.Reason, " ", r.Message); got != c.ready {
				t.Errorf("got  %s\nwant %s", got, c.ready)
			}
			if got := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionConflict); string(got.Status) != c.conflict {
				t.Errorf("Conflict is %s, want %s", got.Status, c.conflict)
			}
		})
	}
}

func TestSelector(t *testing.T) {
	o := &v1alpha1.StaticRoute{}
	o.Spec.NodePool = "warehouse"
	o.Spec.NodeSelector = &v1alpha1.NodeSelector{MatchLabels: map[string]string{"zone": "north"}}
	selects, err := selector(o, v1alpha1.PoolMembers{Pool: "warehouse"})
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]bool{
		"skerry.io/edge=,skerry.io/node-pool=warehouse,zone=north":               true,
		"node-role.kubernetes.io/edge=,skerry.io/node-pool=warehouse,zone=north": true,
		"skerry.io/node-pool=warehouse,zone=north":                               false, // no edge
		"skerry.io/edge=,zone=north":                                             false,
		"skerry.io/edge=,skerry.io/node-pool=warehouse,zone=south":               false,
	} {
		l, err := labels.ConvertSelectorToLabelsMap(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := selects(l); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
	o.Spec.NodeSelector = &v1alpha1.NodeSelector{MatchExpressions: []v1alpha1.NodeRequirement{{Key: "a", Operator: "Near"}}}
	if _, err := selector(o, v1alpha1.PoolMembers{Pool: "warehouse"}); err == nil || !strings.Contains(err.Error(), "nodeSelector") {
		t.Errorf("a bad selector: %v", err)
	}
}
