package uml_test

import (
	"strings"
	"testing"
	"time"

	"github.com/skerry-io/skerry/tests/uml"
)

// Point 9: keepalived and the agent of virtual IPs over IPVS. The scenarios of elections and
// traffic, which run over iptables next to the agent's code, run in a kernel that has IPVS.
func TestTraps_09_VIPsWithIPVS(t *testing.T) {
	if testing.Short() {
		t.Skip("boots a kernel")
	}
	file, err := uml.Build(t.Context(), t.TempDir(), "./edge/internal/agents/vip")
	if err != nil {
		t.Fatal(err)
	}
	// The first is the part that `make test` has time for: an election by priority, and the address
	// and its traffic moving from one node to another. `make long-test` has the others.
	t.Run("election", func(t *testing.T) { scenarios(t, file, "14", "16") })
	t.Run("the others", func(t *testing.T) {
		scenarios(t, file, "15", "17", "18", "19", "21", "22", "23", "24", "25")
	})
}

// scenarios runs these scenarios of virtual IPs in a guest.
func scenarios(t *testing.T, file string, numbers ...string) {
	t.Helper()
	// Five side by side: most of each is waiting for an election, and the guest has one processor.
	out, code := uml.Run(t, 1024, 20*time.Minute, "VIP_TEST_PLANE=ipvs "+file+
		" -test.v -test.parallel 5 -test.timeout 19m -test.run 'TestVIPs_("+strings.Join(numbers, "|")+")_'")
	if code != 0 || strings.Contains(out, "--- SKIP") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	for _, number := range numbers {
		if !strings.Contains(out, "--- PASS: TestVIPs_"+number+"_") {
			t.Errorf("TestVIPs_%s did not run", number)
		}
	}
	for line := range strings.Lines(out) {
		if strings.Contains(line, "--- ") {
			t.Log(strings.TrimSpace(line))
		}
	}
}
