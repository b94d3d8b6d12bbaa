package host_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/skerry-io/skerry/tests/cluster/binary"
	"github.com/skerry-io/skerry/tests/cluster/host"
	"github.com/skerry-io/skerry/tests/cluster/process"
)

func boot(t *testing.T, spec host.Spec) host.Host {
	t.Helper()
	if testing.Short() || os.Getuid() != 0 {
		t.Skip("namespaces are made only as root and without -short")
	}
	root, err := binary.Root()
	if err != nil {
		t.Fatal(err)
	}
	if spec.Init == "" {
		spec.Init = filepath.Join(t.TempDir(), "init")
		if err := binary.BuildStatic(t.Context(), root, spec.Init, "./tests/images/pause"); err != nil {
			t.Fatal(err)
		}
	}
	h, err := host.Boot(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Halt(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return h
}

// sh runs a shell command on the host.
func sh(t *testing.T, h host.Host, script string) string {
	t.Helper()
	var out bytes.Buffer
	s, err := h.Start(process.Spec{Path: "sh", Args: []string{"-c", script}, Dir: "/", Stdout: &out, Stderr: &out})
	if err != nil {
		t.Fatal(err)
	}
	<-s.Done()
	if s.Err() != nil {
		t.Fatalf("%s: %v: %s", script, s.Err(), out.String())
	}
	return strings.TrimSpace(out.String())
}

func TestHost(t *testing.T) {
	dir := t.TempDir()
	spec := host.Spec{Hostname: "box", Mark: t.Name(), Dir: dir}
	h := boot(t, spec)

	for _, c := range []struct{ what, script, want string }{
		{"its name", "cat /proc/sys/kernel/hostname", "box"},
		{"its first process", `tr '\0' ' ' < /proc/1/cmdline | cut -d' ' -f2`, t.Name()},
		{"its own processes only", `ls -d /proc/[0-9]* | wc -l | awk '{print ($1 < 8)}'`, "1"},
		{"its interfaces", "ls /sys/class/net >/dev/null; cut -d: -f1 /proc/net/dev | tail -n +3 | tr -d ' '", "lo"},
		{"forwarding", "cat /proc/sys/net/ipv4/ip_forward", "1"},
		{"the machine's cgroups", "test -e /sys/fs/cgroup/. && echo yes", "yes"},
		{"the machine's /etc", "test -e /etc/passwd && echo yes", "yes"},
		{"an empty /run and /var/lib", "ls -A /run /var/lib | grep -v : | grep -v '^$' | wc -l", "0"},
		{"what it writes is its alone", "echo mine > /etc/of-host; echo mine > /var/lib/of-host; echo mine > /var/log/of-host; cat /etc/of-host", "mine"},
	} {
		if got := sh(t, h, c.script); got != c.want {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
	for _, path := range []string{"/etc/of-host", "/var/lib/of-host", "/var/log/of-host"} {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is on the machine: %v", path, err)
		}
	}
	for _, path := range []string{filepath.Join(host.Etc(dir), "of-host"), filepath.Join(host.Lib(dir), "of-host"), filepath.Join(host.Log(dir), "of-host"), filepath.Join(h.Root(), "etc/of-host")} {
		if raw, err := os.ReadFile(path); err != nil || string(raw) != "mine\n" {
			t.Errorf("%s: %q, %v", path, raw, err)
		}
	}

	t.Run("each boot has an identifier", func(t *testing.T) {
		const file = "/proc/sys/kernel/random/boot_id"
		machine, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		own := sh(t, h, "cat "+file)
		other := sh(t, boot(t, host.Spec{Hostname: "other", Mark: t.Name()}), "cat "+file)
		if len(own) != 36 || own == strings.TrimSpace(string(machine)) || own == other || own != sh(t, h, "cat "+file) {
			t.Errorf("the machine has %s, the host %s, another host %s", machine, own, other)
		}
	})

	t.Run("a bind mount shows once and not on the machine", func(t *testing.T) {
		sh(t, h, "mkdir -p /var/lib/m && mount -t tmpfs none /var/lib/m")
		if got := sh(t, h, "grep -c 'none.*/m tmpfs\\|/m tmpfs' /proc/mounts"); got != "1" {
			t.Errorf("%s mounts", got)
		}
		raw, err := os.ReadFile("/proc/thread-self/mounts")
		if err != nil || strings.Contains(string(raw), dir) {
			t.Errorf("the machine sees the host's mounts: %v", err)
		}
	})

	t.Run("all of it ends with the host, and what was on disk is there after a boot", func(t *testing.T) {
		orphan, err := h.Start(process.Spec{Path: "sh", Args: []string{"-c", "(trap '' TERM; sleep 1000) & sleep 1000"}})
		if err != nil {
			t.Fatal(err)
		}
		if err := h.Halt(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := orphan.Wait(t.Context()); err != nil {
			t.Error(err)
		}
		if h.Running() {
			t.Error("the host runs")
		}
		if err := h.Do(func() error { return nil }); err == nil {
			t.Error("one can be on a host that is off")
		}
		again := boot(t, spec)
		if got := sh(t, again, "cat /etc/of-host /var/lib/of-host; ls -A /run | wc -l; ls /proc | grep -c sleep || true"); got != "mine\nmine\n0\n0" {
			t.Errorf("after the boot: %q", got)
		}
	})
}

func TestMarked(t *testing.T) {
	init := filepath.Join(t.TempDir(), "init")
	if testing.Short() || os.Getuid() != 0 {
		t.Skip("namespaces are made only as root and without -short")
	}
	root, err := binary.Root()
	if err != nil {
		t.Fatal(err)
	}
	if err := binary.BuildStatic(t.Context(), root, init, "./tests/images/pause"); err != nil {
		t.Fatal(err)
	}
	a := boot(t, host.Spec{Hostname: "a", Init: init, Mark: "marked-test/a"})
	boot(t, host.Spec{Hostname: "b", Init: init, Mark: "other-test/b"})
	found, err := host.Marked(init, "marked-test/")
	if err != nil || len(found) != 1 || found[0] != a {
		t.Errorf("found %v, %v; want %v", found, err, a)
	}
	// One that uses the same mark but is not our program is left alone.
	if found, err := host.Marked("/usr/bin/other", "marked-test/"); err != nil || len(found) != 0 {
		t.Errorf("found %v, %v", found, err)
	}
}

func TestRemoveTree(t *testing.T) {
	if testing.Short() || os.Getuid() != 0 {
		t.Skip("mounts are made only as root and without -short")
	}
	dir := filepath.Join(t.TempDir(), "tree with a space")
	inner := filepath.Join(dir, "a", "mount")
	if err := os.MkdirAll(inner, 0o755); err != nil {
		t.Fatal(err)
	}
	for range 2 { // one over the other
		if err := unix.Mount("none", inner, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(inner, unix.MNT_DETACH) }) // where RemoveTree fails
	}
	if err := os.WriteFile(filepath.Join(inner, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := host.RemoveTree(dir); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

func TestCgroup(t *testing.T) {
	if testing.Short() || os.Getuid() != 0 {
		t.Skip("cgroups are made only as root and without -short")
	}
	name := "skerry-host-test-" + strings.ReplaceAll(time.Now().Format("150405.000000"), ".", "")
	t.Cleanup(func() {
		if err := host.RemoveCgroup(name); err != nil {
			t.Error(err)
		}
	})
	for range 2 {
		if err := host.MakeCgroup(name + "/edge"); err != nil {
			t.Fatal(err)
		}
	}
	made, err := filepath.Glob("/sys/fs/cgroup/*/" + name + "/edge")
	unified, unifiedErr := filepath.Glob("/sys/fs/cgroup/" + name + "/edge")
	if err := errors.Join(err, unifiedErr); err != nil || len(made)+len(unified) == 0 {
		t.Fatalf("nothing was made: %v", err)
	}
	// A process can be put in, as a kubelet would: empty cpusets would refuse it.
	s, err := process.Start(process.Spec{Path: "sleep", Args: []string{"1000"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range append(made, unified...) {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(s.PID)), 0o644); err != nil {
			t.Errorf("%s: %v", dir, err)
		}
	}
	if err := s.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-s.Done()
	for range 2 {
		if err := host.RemoveCgroup(name); err != nil {
			t.Fatal(err)
		}
	}
	if left, _ := filepath.Glob("/sys/fs/cgroup/*/" + name); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
