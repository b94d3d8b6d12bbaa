package drain_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/skerry-io/skerry/cloud/internal/controllers/drain"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// Whatever a node reports of its operation, the status remains an object, its requester is as
// kube-apiserver wrote it, and no other node has a say.
func FuzzMerge(f *testing.F) {
	f.Add([]byte(`{"phase":"Cordoned","requestedBy":"system:admin"}`))
	f.Add([]byte(`{"phase":"Completed","phaseNumber":-7,"message":"` + strings.Repeat("x", 64<<10) + `"}`))
	f.Add([]byte(`{"phase":"Completed","phase":"x"}`))
	f.Add([]byte(`null`))
	f.Add([]byte(`[`))
	object := []byte(`{"metadata":{"name":"o","annotations":{"` + v1alpha1.RequestedByAnnotation + `":"alice"}},"spec":{"nodeName":"edge1"},"status":{"phase":"Cordoned","requestedBy":"alice"}}`)
	f.Fuzz(func(t *testing.T, body []byte) {
		if merged, refused, err := drain.Kind().Merge(object, map[string][]byte{"edge2": body}); err != nil || merged != nil || refused["edge2"] == nil {
			t.Errorf("another node's report: %s, %v, %v", merged, refused, err)
		}
		merged, _, err := drain.Kind().Merge(object, map[string][]byte{"edge1": body})
		if err != nil || merged == nil {
			return // no write
		}
		var o v1alpha1.NodeOperation
		if err := json.Unmarshal(merged, &o); err != nil {
			t.Fatalf("no object comes of %q: %v", body, err)
		}
		if o.Status.RequestedBy != "alice" || o.Spec.NodeName != "edge1" || int(o.Status.PhaseNumber) != o.Status.Phase.Number() {
			t.Errorf("%+v", o.Status)
		}
		if again, _, err := drain.Kind().Merge(merged, map[string][]byte{"edge1": body}); err != nil || again != nil {
			t.Errorf("the second time: %v, %s", err, again)
		}
	})
}
