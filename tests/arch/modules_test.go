package arch_test

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A go.mod of build/kubernetes compiles the same code with another Kubernetes: it needs the modules
// that the code imports, in the same versions, but for Kubernetes' own. make verify asks for more
// (a tidy file), and make release-test compiles it.
func TestOlderKubernetesHasTheSameModules(t *testing.T) {
	root := source(t).root
	older, err := filepath.Glob(filepath.Join(root, "build/kubernetes/*/go.mod"))
	if err != nil || len(older) == 0 {
		t.Fatalf("%d go.mod of other Kubernetes releases, %v", len(older), err)
	}
	ours := imported(t, filepath.Join(root, "go.mod"))
	for _, file := range older {
		for _, bad := range modulesDiffer(ours, imported(t, file)) {
			t.Errorf("%s: %s", file, bad)
		}
	}
}

// csiSpec has another API in each version; the kubelet of a release compiles with its own only.
const csiSpec = "github.com/container-storage-interface/spec"

// modulesDiffer lists modules that the second of two lists lacks, has without need, or has in
// another version.
func modulesDiffer(ours, theirs map[string]string) (bad []string) {
	for m, v := range ours {
		switch other, ok := theirs[m]; {
		case !ok:
			bad = append(bad, m+" is missing: go mod tidy -modfile of this file")
		case other != v && !strings.HasPrefix(m, "k8s.io/") && m != csiSpec:
			bad = append(bad, fmt.Sprintf("%s is %s, and %s in go.mod", m, other, v))
		}
	}
	for m := range theirs {
		if _, ok := ours[m]; !ok {
			bad = append(bad, m+" is in no import of ours: go mod tidy -modfile of this file")
		}
	}
	slices.Sort(bad)
	return bad
}

// imported are the modules that a go.mod requires for imports of our own, with their versions.
func imported(t *testing.T, file string) map[string]string {
	t.Helper()
	out, err := exec.Command("go", "mod", "edit", "-json", file).Output()
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	var m struct {
		Require []struct {
			Path, Version string
			Indirect      bool
		}
	}
	if err := json.Unmarshal(out, &m); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	direct := map[string]string{}
	for _, r := range m.Require {
		if !r.Indirect {
			direct[r.Path] = r.Version
		}
	}
	return direct
}

func TestModulesDiffer(t *testing.T) {
	ours := map[string]string{"a": "v1", "b": "v1", "k8s.io/api": "v2", csiSpec: "v2", "c": "v1"}
	theirs := map[string]string{"a": "v1", "b": "v0", "k8s.io/api": "v1", csiSpec: "v1", "d": "v1"}
	want := []string{
		"b is v0, and v1 in go.mod",
		"c is missing: go mod tidy -modfile of this file",
		"d is in no import of ours: go mod tidy -modfile of this file",
	}
	if got := modulesDiffer(ours, theirs); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
