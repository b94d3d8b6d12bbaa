package sensitivity_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/skerry-io/skerry/tests/campaign/sensitivity"
	"github.com/skerry-io/skerry/tests/cluster/binary"
)

// Every switch still applies: its text is in its file exactly once, and the edited file compiles.
func TestSwitchesApply(t *testing.T) {
	root, err := binary.Root()
	if err != nil {
		t.Fatal(err)
	}
	overlay, err := sensitivity.Write(root, t.TempDir(), sensitivity.All()...)
	if err != nil {
		t.Fatal(err)
	}
	packages, named := []string{"build", "-buildvcs=false", "-overlay", overlay}, map[string]bool{}
	for _, s := range sensitivity.All() {
		if named[s.Name] || !regexp.MustCompile(`^[a-z]+(-[a-z]+)*$`).MatchString(s.Name) || s.Name == "all" {
			t.Errorf("a switch is called %q", s.Name)
		}
		named[s.Name] = true
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
		return sensitivity.Switch{Name: "one", Edits: []sensitivity.Edit{{File: "a.go", Old: old, New: to}}}
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

// A switch is found by its name; docs/dev/faults.md has each with the rule it breaks.
func TestSelect(t *testing.T) {
	some, err := sensitivity.Select("salvage,fence")
	if err != nil || len(some) != 2 || some[0].Name != "salvage" || some[1].Env()[0] != "SKERRY_CAMPAIGN_WITHOUT=fence" {
		t.Errorf("selected %v: %v", some, err)
	}
	if all, err := sensitivity.Select("all"); err != nil || len(all) != len(sensitivity.All()) {
		t.Errorf("selected %d: %v", len(all), err)
	}
	for _, wrong := range []string{"", "1", "fence,no-such-name", "fence,"} {
		if _, err := sensitivity.Select(wrong); err == nil || !strings.Contains(err.Error(), "keep-synced") {
			t.Errorf("%q: %v; want the list", wrong, err)
		}
	}
	root, err := binary.Root()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs/dev/faults.md"))
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\| (.*?) \\| `").FindAllStringSubmatch(string(page), -1) {
		listed = append(listed, row[1]+": "+row[2])
	}
	for _, s := range sensitivity.All() {
		if !slices.Contains(listed, s.Name+": "+s.Off) {
			t.Errorf("docs/dev/faults.md has no row `%s` | %s", s.Name, s.Off)
		}
	}
}
