package app_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/cloud/internal/controllers/app"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// After every write of a move exactly one node reports the statistics, whatever the order in which
// the nodes' words and the controller's arrive.
func TestMerge_OneReportsStatistics(t *testing.T) {
	object := &v1alpha1.EdgeApp{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: v1alpha1.EdgeAppSpec{DesignatedNode: "edge1"}}
	say := func(node, body string) error {
		raw, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		reports := map[string][]byte{node: []byte(body)}
		if body == "" {
			reports[node] = nil
		}
		merged, refused, err := app.Kind().Merge(raw, reports)
		if err != nil {
			t.Fatal(err)
		}
		if merged != nil {
			*object = v1alpha1.EdgeApp{}
			if err := json.Unmarshal(merged, object); err != nil {
				t.Fatal(err)
			}
		}
		return refused[node]
	}
	reporter := func() string {
		var all []string
		for _, n := range object.Status.Nodes {
			if n.ReportsStats {
				all = append(all, n.Name)
			}
		}
		return strings.Join(all, "+")
	}
	const here, gone = `{"name":"edge7","scheduledOnThisNode":true,"running":true,"reportsStats":true}`, `{"scheduledOnThisNode":false}`
	steps := []struct{ do, node, body, want string }{
		{"the designated node has it not yet", "edge1", gone, ""},
		{"it is scheduled", "edge1", here, "edge1"},
		{"another one claims it before the controller knows", "edge2", here, "edge1"},
		{"the controller", "edge2", "", "edge1"}, // taken back by edge2
		{"the first has it no more", "edge1", gone, "edge1"},
		{"the second claims", "edge2", here, "edge1"},
	}
	for _, s := range steps {
		if err := say(s.node, s.body); err != nil {
			t.Fatal(err)
		}
		if got := reporter(); got != s.want {
			t.Errorf("%s: %q reports, want %q", s.do, got, s.want)
		}
	}
	object.Status.ActiveNode = "edge2"
	if err := say("edge3", gone); err != nil || reporter() != "edge2" {
		t.Errorf("%v; %q reports although edge2 is active and claims", err, reporter())
	}
	if object.Status.Nodes[0].IsDesignated != true || object.Status.Nodes[1].IsDesignated {
		t.Errorf("designated: %+v", object.Status.Nodes)
	}
	if err := say("edge2", `[]`); err == nil {
		t.Error("a report that is no entry was taken")
	}
	for i := range 256 {
		_ = say(fmt.Sprint("more", i), gone)
	}
	if err := say("onemore", here); err == nil || len(object.Status.Nodes) != 256 {
		t.Errorf("the list has %d nodes, the last was refused with %v", len(object.Status.Nodes), err)
	}
}

// A status with the maximum of nodes stays below etcd's limit, whatever they report.
func TestMerge_Bounds(t *testing.T) {
	content := func(message string) string {
		return strings.TrimSuffix(strings.Repeat(`{"name":"`+strings.Repeat("n", 50)+`","isLocal":true,"message":"`+message+`"},`, 16), ",")
	}
	report := func(content string) []byte { return []byte(`{"state":"Running","content":[` + content + `]}`) }
	reports := map[string][]byte{"too-long": report(content("") + `,{"name":"` + strings.Repeat("n", 5<<10) + `"}`)}
	for i := range 256 {
		reports[fmt.Sprint("edge", i)] = report(content(strings.Repeat("m", 900)))
	}
	merged, refused, err := app.Kind().Merge([]byte(`{"metadata":{"name":"a"}}`), reports)
	if err != nil || len(refused) != 1 || refused["too-long"] == nil {
		t.Fatalf("%v; refused: %v", err, refused)
	}
	var o v1alpha1.EdgeApp
	if err := json.Unmarshal(merged, &o); err != nil {
		t.Fatal(err)
	}
	if len(o.Status.Nodes) != 256 || len(merged) > 1536<<10 {
		t.Errorf("%d nodes in %d bytes", len(o.Status.Nodes), len(merged))
	}
}
