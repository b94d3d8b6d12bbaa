package drain_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// A test that needs no control plane does not start it, though others of this package do.
func TestNoControlPlaneWhereNoneIsNeeded(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	started := filepath.Join(t.TempDir(), "started")
	if err := os.WriteFile(started, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, "-test.run=^TestDeferred$", "-test.count=1")
	cmd.Env = append(os.Environ(), "SKERRY_TEST_TALLY="+started)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if raw, err := os.ReadFile(started); err != nil || len(raw) > 0 {
		t.Errorf("started: %q, %v", raw, err)
	}
}
