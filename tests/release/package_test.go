package release_test

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/skerry-io/skerry/tests/cluster/binary"
)

// TestPackages: dpkg itself, with a root of the test's own: installed, upgraded with what the device is and knows
// kept, removed with that kept still, purged with nothing left.
func TestPackages(t *testing.T) {
	old := shared(t)
	checkout, err := binary.Root()
	if err != nil {
		t.Fatal(err)
	}
	next, err := made(t.Context(), checkout, newer, "RELEASE_FLAGS=", "ARCHES="+runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	for _, program := range programs() {
		t.Run(program, func(t *testing.T) {
			root := machine(t)
			dpkg := func(args ...string) string {
				t.Helper()
				return command(t, root, nil, "dpkg", append([]string{"--root=" + root, "--force-depends"}, args...)...)
			}
			state := func() string {
				t.Helper()
				return command(t, root, nil, "dpkg-query", "--admindir="+filepath.Join(root, "var/lib/dpkg"), "-f", "${db:Status-Status} ${Version}", "-W", "skerry-"+program)
			}
			kept := []string{"etc/skerry/" + program + ".yaml"}
			if program == "edgecore" {
				kept = append(kept, "var/lib/skerry/store.db", "var/lib/skerry/identity/node.pem")
			}
			exist := func(want bool) {
				t.Helper()
				for _, name := range kept {
					if _, err := os.Stat(filepath.Join(root, name)); (err == nil) != want {
						t.Errorf("%s: %v, want it there: %v", name, err, want)
					}
				}
			}

			dpkg("-i", one(t, old, "skerry-"+program+"_*.deb"))
			if got := state(); got != "installed 0.1.0~rc1" {
				t.Fatalf("installed: %s", got)
			}
			if got := command(t, root, nil, "chroot", root, "/usr/bin/"+program, "version"); !strings.Contains(got, version+" ") {
				t.Errorf("%s says %q", program, got)
			}
			for _, name := range kept {
				write(t, filepath.Join(root, name), "kept")
			}
			dpkg("-i", one(t, next, "skerry-"+program+"_*.deb"))
			if got := state(); got != "installed 0.1.0" {
				t.Fatalf("upgraded: %s", got)
			}
			if got := command(t, root, nil, "chroot", root, "/usr/bin/"+program, "version"); !strings.Contains(got, newer+" ") {
				t.Errorf("%s says %q", program, got)
			}
			exist(true)
			if verified := dpkg("--verify", "skerry-"+program); verified != "" {
				t.Errorf("files differ from the package's:\n%s", verified)
			}
			dpkg("--remove", "skerry-"+program)
			exist(true)
			dpkg("--purge", "skerry-"+program)
			exist(false)
			for _, name := range []string{"usr/bin/" + program, "usr/lib/systemd/system/" + program + ".service", "etc/skerry", "usr/share/doc/skerry-" + program} {
				if _, err := os.Stat(filepath.Join(root, name)); err == nil {
					t.Errorf("%s is there after the purge", name)
				}
			}
		})
	}
}

// machine is the root of a machine with dpkg's files, a shell and nothing else, where maintainer scripts run by chroot.
func machine(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for _, dir := range []string{"var/lib/dpkg/updates", "var/lib/dpkg/info", "var/lib/dpkg/triggers", "bin", "etc", "tmp", "usr/bin", "proc"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"var/lib/dpkg/status", "var/lib/dpkg/available"} {
		write(t, filepath.Join(root, file), "")
	}
	write(t, filepath.Join(root, "etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n")
	write(t, filepath.Join(root, "etc/group"), "root:x:0:\n")
	command(t, root, nil, "cp", "/bin/busybox", filepath.Join(root, "bin/busybox"))
	for _, name := range []string{"sh", "rm", "rmdir", "grep"} {
		if err := os.Symlink("busybox", filepath.Join(root, "bin", name)); err != nil {
			t.Fatal(err)
		}
	}
	// Debian's adduser is a script in Perl; here it is busybox' own, which has other flags.
	write(t, filepath.Join(root, "usr/bin/adduser"), "#!/bin/sh\necho skerry:x:100:100::/nonexistent:/bin/false >>/etc/passwd\n")
	write(t, filepath.Join(root, "bin/getent"), "#!/bin/sh\ngrep \"^$2:\" \"/etc/$1\"\n")
	return root
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
		t.Fatal(err)
	}
}
