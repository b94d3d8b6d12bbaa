package edged

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A file is right or wrong whatever the machine: with cgroups of version 1 the commands that read
// it run, and the kubelet alone waits.
func TestCgroups(t *testing.T) {
	if wrong := Validate([]byte(`{"maxPods": 20}`)); len(wrong) > 0 {
		t.Errorf("mistakes in a file without one: %v", wrong)
	}
	if wrong := Validate([]byte(`{"maxPods": -1}`)); len(wrong) != 1 {
		t.Errorf("mistakes in a file with one: %v", wrong)
	}
	first, second := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(second, "cgroup.controllers"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		root string
		fail bool
		want string
	}{{first, true, "set modules.edged.kubelet.failCgroupV1: false"}, {first, false, ""}, {second, true, ""}} {
		err := cgroups(test.root, test.fail)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: %v", test, err)
		}
	}
}
