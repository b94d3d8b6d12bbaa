package vip_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/skerry-io/skerry/cloud/internal/controllers/vip"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// Whatever a node reports of an address, the status remains an object, the other node's entry
// stays, and the same report again is no write.
func FuzzMerge(f *testing.F) {
	f.Add([]byte(`{"name":"edge2","state":"Holder","readyEndpoints":1,"programmed":true,"since":"2026-11-28T08:00:00Z"}`))
	f.Add([]byte(`{"state":"Fault","foreignRouter":"fe80::1%eth0","foreignVRID":300,"duplicateOf":"00:00:00:00:00:01","message":"` + strings.Repeat("\\u0000", 20_000) + `"}`))
	f.Add([]byte(`{"state":"Backup","address":"::ffff:10.0.0.1/120","hardwareAddress":"` + strings.Repeat("00:", 19) + `00","interface":"a/b"}`))
	f.Add([]byte(`{"state":"Holder","state":"NotReady","since":"0001-01-01T00:00:00Z"}`))
	f.Add([]byte(`{"state":"Released"}`))
	object := []byte(`{"metadata":{"name":"v","generation":1},"spec":{"address":"10.0.0.9","nodes":[{"name":"edge1"},{"name":"edge2"}]},
		"status":{"nodes":[{"name":"edge2","state":"Backup","readyEndpoints":1}]}}`)
	f.Fuzz(func(t *testing.T, body []byte) {
		merged, refused, err := vip.Kind().Merge(object, map[string][]byte{"edge1": body, "stranger": body})
		if err != nil || merged == nil {
			return // no write
		}
		var o v1alpha1.VirtualIP
		if err := json.Unmarshal(merged, &o); err != nil {
			t.Fatalf("no object comes of %q: %v", body, err)
		}
		for _, e := range o.Status.Nodes {
			if e.Name != "edge1" && (e.Name != "edge2" || e.State != v1alpha1.VIPBackup) || e.Name == "edge1" && refused["edge1"] != nil {
				t.Errorf("an entry %+v", e)
			}
			// As the CRD has them: a status with others can't be written, with no node's report.
			if len(e.Address) > 49 || len(e.HardwareAddress) > 64 || len(e.DuplicateOf) > 64 || len(e.ForeignRouter) > 45 || len(e.Message) > 4096 {
				t.Errorf("an entry of %d bytes: %+v", len(body), e)
			}
		}
		if again, _, err := vip.Kind().Merge(merged, map[string][]byte{"edge1": body}); err != nil || again != nil {
			t.Errorf("the second time: %v, %s", err, again)
		}
	})
}
