package drain_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/skerry-io/skerry/cloud/internal/controllers/drain"
)

func TestMerge(t *testing.T) {
	const object = `{"apiVersion":"skerry.io/v1alpha1","kind":"NodeOperation","metadata":{"name":"a","annotations":{"skerry.io/requested-by":"jane"}},` +
		`"spec":{"nodeName":"edge1","operation":"Reboot"},"status":{"phase":"Requested","attempts":0}}`
	tests := map[string]struct {
		node, report string
		phase        string // of the merged status; "" without a change
		refused      string
	}{
		"the node's own word": {"edge1", `{"phase":"Cordoned","attempts":1}`, "Cordoned", ""},
		"a forged requester":  {"edge1", `{"phase":"Cordoned","attempts":1,"requestedBy":"admin"}`, "Cordoned", ""},
		"another node":        {"edge2", `{"phase":"Complete","attempts":1}`, "", "for node edge1"},
		"no phase of ours":    {"edge1", `{"phase":"Ready","attempts":1}`, "", `phase "Ready"`},
		"no status":           {"edge1", `{"phase":[]}`, "", "no status"},
		"taken back":          {"edge1", "", "", "can't be taken back"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			body := []byte(tc.report)
			if tc.report == "" {
				body = nil
			}
			merged, refused, err := drain.Kind().Merge([]byte(object), map[string][]byte{tc.node: body})
			if err != nil {
				t.Fatal(err)
			}
			if why := refused[tc.node]; (why == nil) != (tc.refused == "") || why != nil && !strings.Contains(why.Error(), tc.refused) {
				t.Errorf("refused: %v, want %q", why, tc.refused)
			}
			if (merged == nil) != (tc.phase == "") {
				t.Fatalf("merged: %s", merged)
			}
			if merged == nil {
				return
			}
			var got struct {
				Status struct{ Phase, RequestedBy string }
			}
			if err := json.Unmarshal(merged, &got); err != nil || got.Status.Phase != tc.phase || got.Status.RequestedBy != "jane" {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}
