package marks_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/skerry-io/skerry/cloud/internal/controllers/marks"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// Whatever a device reports of its collection becomes its own entry or is refused, and another's
// entry stays as it is.
func FuzzMerge(f *testing.F) {
	f.Add([]byte(`{"name":"edge2","reason":"LeftOut","message":"x"}`))
	f.Add([]byte(`{"name":"edge2","reason":"` + strings.Repeat("x", 64<<10) + `"}`))
	f.Add([]byte(`{"reason":"Applied","entries":["` + strings.Repeat(`","`, 10_000) + `"]}`))
	f.Add([]byte(`{"reason":"a\u0000\n'` + "`" + `$(reboot)"}`))
	f.Add([]byte(`[`))
	object := []byte(`{"metadata":{"name":"all","generation":1},"status":{"nodes":[{"name":"edge2","reason":"Applied","services":7}]}}`)
	f.Fuzz(func(t *testing.T, body []byte) {
		merged, _, err := marks.Kind().Merge(object, map[string][]byte{"edge1": body})
		if err != nil || merged == nil {
			return // no write
		}
		var o v1alpha1.ServiceCollection
		if err := json.Unmarshal(merged, &o); err != nil {
			t.Fatalf("no object comes of %q: %v", body, err)
		}
		for _, e := range o.Status.Nodes {
			if e.Name != "edge1" && (e.Name != "edge2" || e.Services != 7) {
				t.Errorf("an entry %+v", e)
			}
		}
		// The same report again changes no entry, and one that withdraws it leaves the other.
		if again, _, err := marks.Kind().Merge(merged, map[string][]byte{"edge1": body}); err != nil || again != nil {
			t.Errorf("the second time: %v, %s", err, again)
		}
		if err := json.Unmarshal(removed(t, merged), &o); err != nil || len(o.Status.Nodes) != 1 || o.Status.Nodes[0].Name != "edge2" {
			t.Errorf("%v: after it was withdrawn: %+v", err, o.Status.Nodes)
		}
	})
}

// removed is an object after edge1 has withdrawn its report.
func removed(t *testing.T, object []byte) []byte {
	t.Helper()
	left, _, err := marks.Kind().Merge(object, map[string][]byte{"edge1": nil})
	if err != nil {
		t.Fatal(err)
	}
	if left == nil {
		return object
	}
	return left
}
