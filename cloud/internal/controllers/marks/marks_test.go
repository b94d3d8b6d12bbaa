package marks_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/skerry-io/skerry/cloud/internal/controllers/marks"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// status merges reports into an object, and returns it.
func status(t *testing.T, object []byte, reports map[string][]byte, refused ...string) (o v1alpha1.ServiceCollection, raw []byte) {
	t.Helper()
	raw, bad, err := marks.Kind().Merge(object, reports)
	if err != nil {
		t.Fatal(err)
	}
	if len(bad) != len(refused) {
		t.Errorf("refused: %v, want %v", bad, refused)
	}
	for _, node := range refused {
		if bad[node] == nil {
			t.Errorf("the report of %s is not refused", node)
		}
	}
	if raw == nil {
		raw = object
	}
	if err := json.Unmarshal(raw, &o); err != nil {
		t.Fatal(err)
	}
	return o, raw
}

func conditions(o *v1alpha1.ServiceCollection) string {
	ready, complete := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionReady), meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionComplete)
	return fmt.Sprintf("%d of %d; Ready %s %s; Complete %s %s: %s", o.Status.Applied, o.Status.Reporting, ready.Status, ready.Reason, complete.Status, complete.Reason, complete.Message)
}

func TestKind(t *testing.T) {
	fine := func(name string) []byte {
		return fmt.Appendf(nil, `{"name":%q,"reason":"Applied","services":1,"ingresses":0,"rules":2,"entries":["service n/a TCP 80 NodePort"]}`, name)
	}
	o, raw := status(t, []byte(`{"metadata":{"name":"all","generation":1}}`), map[string][]byte{
		"edge1": fine("another"), "edge2": []byte(`{"reason":"LeftOut","message":"10 entries","leftOut":10}`), "edge3": []byte(`{}`), "edge4": []byte(`[`),
	}, "edge3", "edge4")
	if got := conditions(&o); got != "1 of 2; Ready False NotApplied; Complete False EntriesLeftOut: edge2: 10 entries" {
		t.Error(got)
	}
	if diff := cmp.Diff(v1alpha1.ServiceCollectionNode{Name: "edge1", Reason: "Applied", Services: 1, Rules: 2, Entries: []string{"service n/a TCP 80 NodePort"}}, o.Status.Nodes[0]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	o, raw = status(t, raw, map[string][]byte{"edge2": nil})
	if got := conditions(&o); got != "1 of 1; Ready True Applied; Complete True Complete: no node had to leave entries out" {
		t.Error(got)
	}
	many := map[string][]byte{}
	for i := range 600 {
		many[fmt.Sprintf("n%03d", i)] = fine("")
	}
	o, raw = status(t, raw, many)
	if len(o.Status.Nodes) != 0 || len(o.Status.FineNodes) != 601 || o.Status.Applied != 601 {
		t.Errorf("%d listed, %d named, %d applied", len(o.Status.Nodes), len(o.Status.FineNodes), o.Status.Applied)
	}
	swept, err := marks.Kind().Sweep(raw, func(node string) bool { return node == "edge1" || node == "n007" })
	if err != nil {
		t.Fatal(err)
	}
	o, _ = status(t, swept, map[string][]byte{"n007": []byte(`{"reason":"Failed","message":"no iptables"}`)})
	if got := conditions(&o); got != "1 of 2; Ready False NotApplied; Complete True Complete: no node had to leave entries out" {
		t.Error(got)
	}
}

// However many nodes report an error, and at whatever length, the object stays below etcd's limit,
// and all are counted.
func TestKind_ManyFail(t *testing.T) {
	long, lines := strings.Repeat("x", 3<<10), strings.Repeat(`"`+strings.Repeat("y", 1<<10)+`",`, 12)
	report := []byte(`{"reason":"Failed","message":"` + long + `","entries":[` + lines + `"z"]}`)
	object := []byte(`{"metadata":{"name":"all","generation":1}}`)
	for _, nodes := range []int{60, 500, 10_000} {
		reports := map[string][]byte{}
		for i := range nodes {
			reports[fmt.Sprintf("edge-%05d.site-17.example.com", i)] = report
		}
		o, raw := status(t, object, reports)
		if len(raw) > 1<<20 {
			t.Errorf("with %d nodes the object has %d bytes", nodes, len(raw))
		}
		if got, want := conditions(&o), fmt.Sprintf("0 of %d; Ready False NotApplied; Complete True Complete: no node had to leave entries out", nodes); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		o, _ = status(t, raw, map[string][]byte{"edge-00000.site-17.example.com": []byte(`{"reason":"Applied"}`)})
		if o.Status.Applied != 1 || o.Status.Reporting != int32(nodes) {
			t.Errorf("%d of %d are applied when one is fine again", o.Status.Applied, o.Status.Reporting)
		}
	}
}
