package release_test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A packager is a package manager at work in a folder of the test's own.
type packager struct {
	root string
	t    *testing.T
}

// dpkg, without the packages' dependencies.
func (p packager) dpkg(args ...string) string {
	p.t.Helper()
	return command(p.t, p.root, nil, "dpkg", append([]string{"--root=" + p.root, "--force-depends"}, args...)...)
}

// rpm of Debian asks whether one is sure.
func (p packager) rpm(args ...string) string {
	p.t.Helper()
	return command(p.t, p.root, nil, "rpm", append([]string{"--root=" + p.root, "--dbpath=/var/lib/rpm", "--force-debian"}, args...)...)
}

// kept are the files with the identity and state of a device, or a cloudcore.
func kept(program string) []string {
	switch program {
	case "edgecore":
		return []string{"etc/skerry/edgecore.yaml", "var/lib/skerry/store.db", "var/lib/skerry/identity/node.pem"}
	case "cloudcore":
		return []string{"etc/skerry/cloudcore.yaml"}
	}
	return nil
}

// exist compares the files with the expected ones.
func (p packager) exist(want bool, names ...string) {
	p.t.Helper()
	for _, name := range names {
		if _, err := os.Lstat(filepath.Join(p.root, name)); (err == nil) != want {
			p.t.Errorf("%s: %v, want it there: %v", name, err, want)
		}
	}
}

// prints runs a program in the folder; its version is the release's.
func (p packager) prints(program, version string) {
	p.t.Helper()
	arg := "version"
	if program == "kubectl-skerry" {
		arg = "--version"
	}
	if got := command(p.t, p.root, nil, "chroot", p.root, "/usr/bin/"+program, arg); !strings.Contains(strings.TrimSpace(got)+" ", version+" ") {
		p.t.Errorf("%s says %q", program, got)
	}
}

// launches runs edgecore as the unit does, through skerry-launch with the slots of the device.
func (p packager) launches(program, version string) {
	p.t.Helper()
	if program != "edgecore" {
		return
	}
	unit, err := os.ReadFile(filepath.Join(p.root, "usr/lib/systemd/system/edgecore.service"))
	if err != nil {
		p.t.Fatal(err)
	}
	_, line, _ := strings.Cut(string(unit), "\nExecStart=")
	line, _, _ = strings.Cut(line, "\n")
	line, _, _ = strings.Cut(line, " --config ")
	if got := command(p.t, p.root, nil, "chroot", append([]string{p.root}, append(strings.Fields(line), "version")...)...); !strings.Contains(strings.TrimSpace(got)+" ", version+" ") {
		p.t.Errorf("%s version says %q, want %s", line, got, version)
	}
}

// slot fills a slot of skerry-launch with a program that a NodeOperation has put there and that was
// confirmed.
func (p packager) slot(program, version string) {
	p.t.Helper()
	if program != "edgecore" {
		return
	}
	dir := filepath.Join(p.root, "var/lib/skerry/bin")
	write(p.t, filepath.Join(dir, "a/edgecore"), "#!/bin/sh\necho edgecore "+version+" of a slot\n")
	state := fmt.Sprintf(`{"generation":9,"confirmed":{"slot":"a","version":%q,"digest":"sha256:0"}}`, version)
	write(p.t, filepath.Join(dir, "state.0"), fmt.Sprintf("skerry-launch 1\n%x\n%s\n", sha256.Sum256([]byte(state)), state))
}

// TestShip_03_PackagesInstallUpgradeRemovePurge: dpkg and rpm themselves, each with a root of the
// test's own: installed, upgraded with the device's identity and state kept, removed with that kept
// still, and, where there is such a thing, purged without leftovers.
func TestShip_03_PackagesInstallUpgradeRemovePurge(t *testing.T) {
	for _, program := range programs() {
		t.Run("deb "+program, func(t *testing.T) { debPackage(t, program) })
		t.Run("rpm "+program, func(t *testing.T) { rpmPackage(t, program) })
	}
}

func debPackage(t *testing.T, program string) {
	p, name := packager{machine(t), t}, named(program)
	state := func() string {
		t.Helper()
		return command(t, p.root, nil, "dpkg-query", "--admindir="+filepath.Join(p.root, "var/lib/dpkg"), "-f", "${db:Status-Status} ${Version}", "-W", name)
	}
	p.dpkg("-i", one(t, shared(t), name+"_*.deb"))
	packed(t, program)
	if got := state(); got != "installed 0.1.0~rc1" {
		t.Fatalf("installed: %s", got)
	}
	p.prints(program, version)
	p.launches(program, version)
	p.slot(program, "v0.0.9")
	p.launches(program, "v0.0.9")
	for _, name := range kept(program) {
		write(t, filepath.Join(p.root, name), "kept")
	}
	const cni = "etc/cni/net.d/10-skerry.conflist" // by this name, and another's all the same
	write(t, filepath.Join(p.root, cni), `{"cniVersion": "1.0.0", "name": "mine", "plugins": []}`)
	p.dpkg("-i", one(t, upgrade(t), name+"_*.deb"))
	if got := state(); got != "installed 0.1.0" {
		t.Fatalf("upgraded: %s", got)
	}
	p.prints(program, newer)
	p.launches(program, newer) // the package is newer than the slot
	p.exist(true, kept(program)...)
	if verified := p.dpkg("--verify", name); verified != "" {
		t.Errorf("files differ from the package's:\n%s", verified)
	}
	p.dpkg("--remove", name)
	p.exist(true, kept(program)...)
	p.exist(false, "usr/bin/"+program)
	p.dpkg("--purge", name)
	p.exist(false, kept(program)...)
	p.exist(false, "usr/bin/"+program, "usr/lib/systemd/system/"+program+".service", "etc/skerry", "usr/share/doc/"+name, "usr/lib/skerry", "usr/share/skerry", "var/lib/skerry")
	p.exist(true, cni)
}

// packed shows that the tarball, which install.sh takes where there is no package manager, holds
// the files of the package.
func packed(t *testing.T, program string) {
	t.Helper()
	files := func(list string) (all []string) {
		for line := range strings.Lines(list) {
			if name := strings.TrimPrefix(strings.TrimSpace(line), "./"); name != "" && !strings.HasSuffix(name, "/") {
				all = append(all, name)
			}
		}
		slices.Sort(all)
		return all
	}
	deb := command(t, "/", nil, "sh", "-c", "dpkg-deb --fsys-tarfile "+one(t, shared(t), named(program)+"_*.deb")+" | tar -t")
	tarball := command(t, "/", nil, "tar", "-tzf", one(t, shared(t), named(program)+"_*.tar.gz"))
	if diff := cmp.Diff(files(deb), files(tarball)); diff != "" {
		t.Errorf("-package +tarball:\n%s", diff)
	}
}

func rpmPackage(t *testing.T, program string) {
	p, name := packager{machine(t), t}, named(program)
	state := func() string {
		t.Helper()
		return p.rpm("--query", "--queryformat", "%{VERSION}", name)
	}
	p.rpm("--install", "--nodeps", one(t, shared(t), name+"_*.rpm"))
	if got := state(); got != "0.1.0~rc1" {
		t.Fatalf("installed: %s", got)
	}
	p.prints(program, version)
	p.launches(program, version)
	for _, name := range kept(program) {
		write(t, filepath.Join(p.root, name), "kept")
	}
	p.rpm("--upgrade", "--nodeps", one(t, upgrade(t), name+"_*.rpm"))
	if got := state(); got != "0.1.0" {
		t.Fatalf("upgraded: %s", got)
	}
	p.prints(program, newer)
	p.launches(program, newer)
	p.exist(true, kept(program)...)
	if verified := p.rpm("--verify", "--nodeps", name); verified != "" {
		t.Errorf("files differ from the package's:\n%s", verified)
	}
	// rpm has no purge: the device's identity and state go by `edgecore reset`, or by hand.
	p.rpm("--erase", name)
	p.exist(true, kept(program)...)
	p.exist(false, "usr/bin/"+program, "usr/lib/systemd/system/"+program+".service", "usr/share/doc/"+name, "usr/lib/skerry", "usr/share/skerry")
}

// machine is the root of a machine with only the package managers' files and a shell, where
// maintainer scripts run by chroot.
func machine(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for _, dir := range []string{"var/lib/dpkg/updates", "var/lib/dpkg/info", "var/lib/dpkg/triggers", "var/lib/rpm", "bin", "etc", "tmp", "usr/bin", "proc"} {
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

// The packages of edgecore have the root.json that UPGRADE_ROOT names, where edgecore looks for it,
// and without UPGRADE_ROOT none.
func TestUpgradeRootIsInThePackages(t *testing.T) {
	if !slices.Contains(programs(), "edgecore") {
		t.Skip("this release was made without edgecore (PROGRAMS)")
	}
	const file = "usr/share/skerry/keys/root.json"
	for release, dir := range map[string]string{version: shared(t), newer: upgrade(t)} {
		want, err := os.ReadFile(filepath.Join(work, "upgrades", "root.json"))
		if err != nil {
			t.Fatal(err)
		}
		if release == newer {
			want = nil
		}
		deb, tar := t.TempDir(), t.TempDir()
		command(t, deb, nil, "dpkg-deb", "-x", one(t, dir, "skerry-edgecore_*.deb"), deb)
		command(t, tar, nil, "tar", "-xzf", one(t, dir, "skerry-edgecore_*.tar.gz"), "-C", tar)
		for name, root := range map[string]string{"deb": deb, "tar": tar} {
			if got, _ := os.ReadFile(filepath.Join(root, file)); string(got) != string(want) {
				t.Errorf("%s of %s has %q, want %q", name, release, got, want)
			}
		}
		if list := command(t, deb, nil, "rpm", "-qlp", one(t, dir, "skerry-edgecore_*.rpm")); strings.Contains(list, "/"+file+"\n") != (want != nil) {
			t.Errorf("the rpm of %s has\n%s", release, list)
		}
	}
}
