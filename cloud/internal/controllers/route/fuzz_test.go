package route_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/skerry-io/skerry/cloud/internal/controllers/route"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// Whatever a node reports of a route, the status remains an object, the other nodes' entries stay,
// and the same report again is no write.
func FuzzMerge(f *testing.F) {
	f.Add([]byte(`{"name":"edge2","reason":"Applied","observedGeneration":1}`))
	f.Add([]byte(`{"reason":"GatewayUnreachable","message":"` + strings.Repeat("x", 64<<10) + `","state":{"nextHops":[{}]}}`))
	f.Add([]byte(`{"reason":"a\u0000\n'` + "`" + `$(reboot)"}`))
	f.Add([]byte(`{"reason":"Applied","reason":"Conflict","observedGeneration":-9223372036854775808}`))
	f.Add([]byte(`null`))
	object := []byte(`{"metadata":{"name":"r","generation":1},"status":{"nodes":[{"name":"edge2","reason":"Applied","observedGeneration":1}]}}`)
	f.Fuzz(func(t *testing.T, body []byte) {
		merged, refused, err := route.Kind().Merge(object, map[string][]byte{"edge1": body})
		if err != nil || merged == nil {
			return // no write
		}
		var o v1alpha1.StaticRoute
		if err := json.Unmarshal(merged, &o); err != nil {
			t.Fatalf("no object comes of %q: %v", body, err)
		}
		for _, e := range o.Status.Nodes {
			if e.Name != "edge1" && (e.Name != "edge2" || e.Reason != v1alpha1.RouteApplied) || e.Name == "edge1" && refused["edge1"] != nil {
				t.Errorf("an entry %+v", e)
			}
		}
		if again, _, err := route.Kind().Merge(merged, map[string][]byte{"edge1": body}); err != nil || again != nil {
			t.Errorf("the second time: %v, %s", err, again)
		}
	})
}
