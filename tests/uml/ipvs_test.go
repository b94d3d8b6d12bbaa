package uml_test

import (
	"strings"
	"testing"
	"time"

	"github.com/skerry-io/skerry/tests/uml"
)

// The contract of data planes, for IPVS, in a kernel that has it.
func TestIPVS(t *testing.T) {
	if testing.Short() {
		t.Skip("boots a kernel")
	}
	file, err := uml.Build(t.Context(), t.TempDir(), "./edge/internal/kernel/netfilter/ipvs")
	if err != nil {
		t.Fatal(err)
	}
	out, code := uml.Run(t, 256, 20*time.Minute, file+" -test.v -test.timeout 19m")
	if code != 0 || strings.Contains(out, "--- SKIP") || !strings.Contains(out, "--- PASS: TestPlane") || !strings.Contains(out, "--- PASS: TestHostile_03") || !strings.Contains(out, "--- PASS: TestTraps_07") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
}
