package config_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The hooks of the examples are read by edgecore, and run the tools of the system with the image as
// one argument, for all contents. A prefetch makes no change; a failed step ends an update before
// the reboot.
func TestFleet_20_HooksForRAUCBootcAndApt(t *testing.T) {
	const image = `https://updates.example.com/a b$(touch PWNED)'";-`
	tools := map[string][2]string{
		"rauc":  {"rauc|info|--|IMAGE", "rauc|install|--|IMAGE"},
		"bootc": {"podman|pull|--|IMAGE", "bootc|switch|--transport|containers-storage|--|IMAGE"},
		"apt": {
			"apt-get|-q|update\napt-get|-qy|-t|IMAGE|--download-only|dist-upgrade",
			"apt-get|-qy|-t|IMAGE|--no-download|-o|Dpkg::Options::=--force-confold|dist-upgrade",
		},
	}
	for name, want := range tools {
		dir := t.TempDir()
		for _, tool := range []string{"rauc", "podman", "bootc", "apt-get", "systemctl"} {
			script := "#!/bin/sh\n{ printf %s " + tool + "; for a; do printf '|%s' \"$a\"; done; echo; } >> calls\n[ ! -e fails ]\n"
			if err := os.WriteFile(filepath.Join(dir, tool), []byte(script), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		run := func(hook string) (calls string, failed bool) {
			t.Helper()
			_ = os.Remove(filepath.Join(dir, "calls"))
			c := exec.Command("/bin/sh", "-c", hook)
			c.Dir, c.Env = dir, []string{"PATH=" + dir + ":/usr/bin:/bin", "SKERRY_IMAGE=" + image}
			err := c.Run()
			said, _ := os.ReadFile(filepath.Join(dir, "calls"))
			return strings.ReplaceAll(strings.TrimSpace(string(said)), image, "IMAGE"), err != nil
		}
		hooks := hooksOf(t, name)
		if calls, failed := run(hooks.Prefetch); failed || calls != want[0] {
			t.Errorf("%s: prefetch failed: %v; it called (-want +got):\n%s", name, failed, cmp.Diff(want[0], calls))
		}
		if calls, failed := run(hooks.Update); failed || calls != want[1]+"\nsystemctl|reboot" {
			t.Errorf("%s: update failed: %v; it called (-want +got):\n%s", name, failed, cmp.Diff(want[1]+"\nsystemctl|reboot", calls))
		}
		if err := os.WriteFile(filepath.Join(dir, "fails"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if calls, failed := run(hooks.Update); !failed || strings.Contains(calls, "systemctl") {
			t.Errorf("%s: an update that fails: %v, %s", name, failed, calls)
		}
		if _, err := os.Stat(filepath.Join(dir, "PWNED")); err == nil {
			t.Errorf("%s: the image was executed", name)
		}
	}
}
