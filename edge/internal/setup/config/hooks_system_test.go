package config_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/skerry-io/skerry/edge/internal/setup/config"
)

// hooksOf reads the hooks of an example.
func hooksOf(t *testing.T, name string) config.Hooks {
	t.Helper()
	file := filepath.Join("../../../../manifests/examples/fleet/hooks", name+".yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	c, _, err := config.Read(file, append([]byte("apiVersion: config.skerry.io/v1alpha1\nkind: EdgeCore\n"), text...))
	if err != nil {
		t.Fatal(err)
	}
	return c.Modules.Drain.Hooks
}

// host runs a system's tools with files below a directory, and notes its reboots.
type host struct {
	t    *testing.T
	root string
	env  []string
}

// newHost skips the test without root or tools.
func newHost(t *testing.T, tools ...string) *host {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("the tools need root")
	}
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	h := &host{t: t, root: t.TempDir()}
	h.env = []string{"PATH=" + h.root + "/stub:" + os.Getenv("PATH"), "LC_ALL=C"}
	h.write("stub/systemctl", "#!/bin/sh\necho \"$*\" >>"+h.root+"/systemctl\n")
	return h
}

func (h *host) write(name, text string) {
	h.t.Helper()
	path := filepath.Join(h.root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) read(name string) string {
	h.t.Helper()
	raw, err := os.ReadFile(filepath.Join(h.root, name))
	if err != nil && !os.IsNotExist(err) {
		h.t.Fatal(err)
	}
	return string(raw)
}

// try runs a hook, or another script.
func (h *host) try(script string, env ...string) (out string, err error) {
	c := exec.CommandContext(h.t.Context(), "/bin/sh", "-c", script)
	c.Dir, c.Env = h.root, append(h.env, env...)
	raw, err := c.CombinedOutput()
	return string(raw), err
}

func (h *host) run(script string, env ...string) string {
	h.t.Helper()
	out, err := h.try(script, env...)
	if err != nil {
		h.t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return out
}

// rebooted reports whether the host was rebooted since the last call.
func (h *host) rebooted() bool {
	h.t.Helper()
	was := h.read("systemctl") == "reboot\n"
	_ = os.Remove(filepath.Join(h.root, "systemctl"))
	return was
}

// With apt and dpkg: a prefetch installs no package; the update installs those of the operation's
// release, and no newer ones, from the cache, and keeps a changed configuration.
func TestFleet_20_HooksUpdateByApt(t *testing.T) {
	h := newHost(t, "apt-get", "dpkg", "dpkg-deb")
	for _, dir := range []string{"var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/apt/lists/partial", "var/cache/apt/archives/partial", "var/log/apt", "etc/apt/preferences.d"} {
		if err := os.MkdirAll(filepath.Join(h.root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	h.write("var/lib/dpkg/status", "")
	h.write("apt.conf", fmt.Sprintf(`Dir %q; Dir::State::status "%[2]s/var/lib/dpkg/status"; Dir::Bin::methods "/usr/lib/apt/methods/"; Dir::Bin::dpkg "/usr/bin/dpkg";
APT::Sandbox::User "root"; DPkg::Options { "--root=%[2]s"; };`, h.root, h.root))
	h.env = append(h.env, "APT_CONFIG="+h.root+"/apt.conf")
	var sources strings.Builder
	for _, r := range [][2]string{{"month-10", "1.0"}, {"month-11", "2.0"}, {"month-12", "3.0"}} {
		h.write("made/DEBIAN/control", "Package: app\nVersion: "+r[1]+"\nArchitecture: all\nMaintainer: test <test@example.com>\nDescription: test\n")
		h.write("made/DEBIAN/conffiles", "/etc/app.conf\n")
		h.write("made/etc/app.conf", r[1])
		dir := "mirror/" + r[0]
		h.write(dir+"/empty", "")
		h.run("dpkg-deb --root-owner-group --build made " + dir + "/app.deb")
		deb := h.read(dir + "/app.deb")
		packages := h.read("made/DEBIAN/control") + fmt.Sprintf("Filename: ./app.deb\nSize: %d\nSHA256: %x\n\n", len(deb), sha256.Sum256([]byte(deb)))
		h.write(dir+"/Packages", packages)
		h.write(dir+"/Release", fmt.Sprintf("Suite: %s\nSHA256:\n %x %d Packages\n", r[0], sha256.Sum256([]byte(packages)), len(packages)))
		fmt.Fprintf(&sources, "deb [trusted=yes] copy:%s/%s ./\n", h.root, dir)
	}
	h.write("etc/apt/sources.list", sources.String())
	h.run("apt-get -q update && apt-get -qy -t month-10 install app")
	h.write("etc/app.conf", "changed on the device")
	version := func() string {
		return h.run("dpkg-query --root=" + h.root + " -W -f '${Version} ${db:Status-Status}' app")
	}
	if v := version(); v != "1.0 installed" {
		t.Fatalf("before the update: %s", v)
	}

	hooks := hooksOf(t, "apt")
	h.run(hooks.Prefetch, "SKERRY_IMAGE=month-11")
	if v := version(); v != "1.0 installed" || h.rebooted() {
		t.Errorf("the prefetch installs %s", v)
	}
	h.run("rm mirror/*/app.deb")
	if out, err := h.try(hooks.Update, "SKERRY_IMAGE=month-13"); err == nil || version() != "1.0 installed" || h.rebooted() {
		t.Errorf("an update to an unknown release: %v\n%s", err, out)
	}
	h.run(hooks.Update, "SKERRY_IMAGE=month-11")
	if v, conf := version(), h.read("etc/app.conf"); v != "2.0 installed" || conf != "changed on the device" || !h.rebooted() {
		t.Errorf("after the update: %s, configuration %q, or no reboot", v, conf)
	}
}

// raucPackages are RAUC and its dependencies, of Debian 12.
const raucPackages = "rauc squashfs-tools libcurl3-gnutls libfdisk1 libglib2.0-0 libjson-glib-1.0-0 liblzo2-2"

// With RAUC and its service: a prefetch verifies the bundle and writes no slot; the update writes
// the other slot, and has the bootloader start it. The bootloader is a script.
func TestFleet_20_HooksUpdateByRAUC(t *testing.T) {
	h := newHost(t, "apt-get", "dpkg-deb", "openssl", "dbus-run-session", "unshare")
	if known, err := os.ReadFile("/proc/filesystems"); err != nil || !bytes.Contains(known, []byte("\tsquashfs\n")) {
		t.Skip("the kernel has no squashfs")
	}
	if out, err := h.try("mkdir debs && cd debs && apt-get -q -o APT::Sandbox::User=root download " + raucPackages + " && for deb in *.deb; do dpkg-deb -x $deb ../packages; done"); err != nil {
		t.Skipf("RAUC can't be downloaded: %v\n%s", err, out)
	}
	triplet := strings.TrimSpace(h.run("basename $(dirname $(find packages -name 'libjson-glib-1.0.so.0'))"))
	h.env = append(h.env,
		"PATH="+h.root+"/stub:"+h.root+"/packages/usr/bin:"+os.Getenv("PATH"),
		"LD_LIBRARY_PATH="+h.root+"/packages/usr/lib/"+triplet+":"+h.root+"/packages/lib/"+triplet)
	h.write("stub/bootloader", "#!/bin/sh\necho \"$@\" >>"+h.root+"/bootloader\ncase $1 in get-primary | get-current) echo A ;; get-state) echo good ;; esac\n")
	h.write("system.conf", strings.ReplaceAll(`[system]
compatible=test
bootloader=custom
mountprefix=ROOT/mnt
statusfile=ROOT/status
[handlers]
bootloader-custom-backend=ROOT/stub/bootloader
[keyring]
path=ROOT/cert.pem
[slot.rootfs.0]
device=ROOT/slot0
bootname=A
[slot.rootfs.1]
device=ROOT/slot1
bootname=B
`, "ROOT", h.root))
	// The hooks' rauc reads /etc/rauc/system.conf of a device.
	h.write("stub/rauc", "#!/bin/sh\nexec "+h.root+"/packages/usr/bin/rauc --conf="+h.root+"/system.conf \"$@\"\n")
	const system = "the second system"
	h.write("bundle/rootfs.img", system+strings.Repeat("\n", 4096))
	h.write("bundle/manifest.raucm", "[update]\ncompatible=test\nversion=17\n[image.rootfs]\nfilename=rootfs.img\n")
	h.run("mkdir mnt; truncate -s 65536 slot0 slot1")
	const bundle, foreign = `a b$(touch PWNED)'.raucb`, "foreign.raucb"
	h.run(`for name in foreign cert; do openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out $name.pem -days 30 -subj /CN=$name
		packages/usr/bin/rauc --cert=$name.pem --key=key.pem bundle bundle $name.raucb; done; mv cert.raucb "$NAME"`, "NAME="+bundle)

	hooks := hooksOf(t, "rauc")
	if out, err := h.try(hooks.Prefetch, "SKERRY_IMAGE="+foreign); err == nil {
		t.Errorf("a bundle of another key is prefetched: %s", out)
	}
	h.run(hooks.Prefetch, "SKERRY_IMAGE="+bundle)
	if h.read("bootloader") != "" || strings.Trim(h.read("slot1"), "\x00") != "" || h.rebooted() {
		t.Error("the prefetch writes a slot")
	}
	// A mount of the bundle ends with the namespace, the service with its bus.
	install := func(image string) (string, error) {
		return h.try(`exec unshare --mount dbus-run-session -- sh -c '
			export DBUS_SYSTEM_BUS_ADDRESS=$DBUS_SESSION_BUS_ADDRESS
			rauc --override-boot-slot=A service >service.log 2>&1 &
			for n in $(seq 100); do rauc status >/dev/null 2>&1 && break; sleep .1; done
			/bin/sh -c "$HOOK"'`, "HOOK="+hooks.Update, "SKERRY_IMAGE="+image)
	}
	if out, err := install(foreign); err == nil || h.rebooted() {
		t.Errorf("a bundle of another key is installed: %s", out)
	}
	if out, err := install(bundle); err != nil || !h.rebooted() {
		t.Errorf("the update: %v\n%s\nthe service:\n%s", err, out, h.read("service.log"))
	}
	if slot := h.read("slot1"); !strings.HasPrefix(slot, system) || strings.Trim(h.read("slot0"), "\x00") != "" {
		t.Errorf("the other slot has %.32q", slot)
	}
	if calls := h.read("bootloader"); !strings.Contains(calls, "set-primary B\n") {
		t.Errorf("the bootloader was asked:\n%s", calls)
	}
	if _, err := os.Stat(filepath.Join(h.root, "PWNED")); err == nil {
		t.Error("the image was executed")
	}
}
