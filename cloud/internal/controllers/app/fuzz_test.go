package app_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/skerry-io/skerry/cloud/internal/controllers/app"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// Whatever a device reports of an application becomes its own entry or is refused, and another's
// entry stays as it is.
func FuzzMerge(f *testing.F) {
	f.Add([]byte(`{"name":"edge2","isDesignated":true,"scheduledOnThisNode":true,"reportsStats":true}`))
	f.Add([]byte(`{"name":"` + strings.Repeat("x", 64<<10) + `"}`))
	f.Add([]byte(`[`))
	f.Add([]byte(`{"name":"a\u0000\n$(reboot)../"}`))
	f.Add([]byte(strings.Repeat(`{"a":`, 5000) + "1" + strings.Repeat("}", 5000)))
	const others = `{"name":"edge2","running":true,"scheduledOnThisNode":true,"reportsStats":true}`
	object := []byte(`{"metadata":{"name":"a","namespace":"n"},"spec":{"designatedNode":"edge2"},"status":{"activeNode":"edge2","nodes":[` + others + `]}}`)
	f.Fuzz(func(t *testing.T, body []byte) {
		merged, refused, err := app.Kind().Merge(object, map[string][]byte{"edge1": body})
		if err != nil || merged == nil {
			return // no write
		}
		var o v1alpha1.EdgeApp
		if err := json.Unmarshal(merged, &o); err != nil {
			t.Fatalf("no object comes of %q: %v", body, err)
		}
		for _, e := range o.Status.Nodes {
			switch {
			case e.Name == "edge1" && refused["edge1"] == nil:
				if e.IsDesignated || e.ReportsStats {
					t.Errorf("it is believed what it claims: %+v", e)
				}
			case e.Name == "edge2":
				if !e.ReportsStats || !e.Running {
					t.Errorf("another's entry is %+v", e)
				}
			default:
				t.Errorf("an entry of %q", e.Name)
			}
		}
		if again, _, err := app.Kind().Merge(merged, map[string][]byte{"edge1": body}); err != nil || again != nil {
			t.Errorf("the second time: %v, %s", err, again)
		}
	})
}
