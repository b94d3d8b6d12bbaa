package sensitivity_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/skerry-io/skerry/tests/campaign/sensitivity"
	"github.com/skerry-io/skerry/tests/cluster/binary"
)

// Every switch still applies: its text is in its file exactly once, and what it makes of
// that compiles.
func TestSwitchesApply(t *testing.T) {
	root, err := binary.Root()
	if err != nil {
		t.Fatal(err)
	}
	overlay, err := sensitivity.Write(root, t.TempDir(), sensitivity.All()...)
	if err != nil {
		t.Fatal(err)
	}
	packages, last := []string{"build", "-buildvcs=false", "-overlay", overlay}, -1
	for _, s := range sensitivity.All() {
		if s.Rule <= last {
			t.Errorf("rule %d stands behind rule %d", s.Rule, last)
		}
		last = s.Rule
		for _, e := range s.Edits {
			packages = append(packages, "./"+filepath.Dir(e.File))
		}
	}
	build := exec.CommandContext(t.Context(), "go", packages...)
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Errorf("the changed packages don't compile: %v\n%s", err, out)
	}
}

func TestApplyRefuses(t *testing.T) {
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "a.go"), []byte("one two two"), 0o600); err != nil {
		t.Fatal(err)
	}
	edit := func(old, to string) sensitivity.Switch {
		return sensitivity.Switch{Rule: 1, Edits: []sensitivity.Edit{{File: "a.go", Old: old, New: to}}}
	}
	for _, old := range []string{"three", "two"} {
		if _, err := sensitivity.Apply(root, edit(old, "x")); err == nil || !strings.Contains(err.Error(), old) {
			t.Errorf("a text that is not there once, %q: %v", old, err)
		}
	}
	changed, err := sensitivity.Apply(root, edit("one", "1"), edit("1 two", "3"))
	if err != nil || changed["a.go"] != "3 two" {
		t.Errorf("changed to %q: %v", changed["a.go"], err)
	}
}
