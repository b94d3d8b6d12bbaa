// Package vm runs tests in a kernel of Debian's, in an emulator: for features that neither the
// machine's kernel nor user-mode Linux (package uml) has, WireGuard above all.
//
// It owns the emulator's process and the guest's file tree, which is a copy in memory of the files
// that a test names. A test may run any program there. The kernel is fetched by `make deps` and not
// installed. Guests of several tests don't know each other.
package vm

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/skerry-io/skerry/tests/cluster/binary"
)

// Kernels is where `make deps` puts the kernel's package, unpacked.
const Kernels = "/var/cache/skerry/kernel"

// Guest is a test's machine.
type Guest struct {
	Memory   int // MiB
	Patience time.Duration
	Modules  []string // of the kernel, besides those that they need
	Programs []string // of this machine, by name; with their libraries
	Files    map[string]string
	Line     string // of shell, run as root
}

// Run boots the guest, and returns its output and its exit code. It skips the test where it is to
// be short, and fails it where there is no emulator or no kernel.
func Run(t *testing.T, g Guest) (output string, code int) {
	t.Helper()
	if testing.Short() || os.Geteuid() != 0 {
		t.Skip("boots a kernel, as root")
	}
	kernels, err := filepath.Glob(filepath.Join(Kernels, "boot", "vmlinuz-*"))
	if _, missing := exec.LookPath("qemu-system-x86_64"); missing != nil || err != nil || len(kernels) == 0 {
		t.Fatalf("there is no emulator, or no kernel below %s: make deps gets both", Kernels)
	}
	job := t.TempDir()
	tree, err := os.Create(filepath.Join(job, "tree"))
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	if err := g.pack(t.Context(), newArchive(tree), filepath.Base(kernels[0])[len("vmlinuz-"):]); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), g.Patience)
	defer cancel()
	out := filepath.Join(job, "out")
	// No acceleration: where it is there at all, it may be one virtual machine in another. rdrand,
	// so that the guest has randomness from the start.
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", "-accel", "tcg", "-cpu", "qemu64,+rdrand", "-m", strconv.Itoa(g.Memory), "-display", "none", "-nodefaults", "-no-user-config", "-no-reboot",
		"-kernel", kernels[0], "-initrd", tree.Name(), "-append", "console=ttyS0 quiet panic=-1", "-serial", "stdio", "-serial", "file:"+out)
	var console bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &console, &console, 5*time.Second
	runErr := cmd.Run()
	raw, _ := os.ReadFile(out) // missing where it did not get that far
	text := strings.ReplaceAll(string(raw), "\r\n", "\n")
	i := strings.LastIndex(text, exitMark)
	if i < 0 {
		t.Fatalf("the guest did not finish: %v\n%s\nconsole:\n%s", runErr, text, console.String())
	}
	if code, err = strconv.Atoi(strings.TrimSpace(text[i+len(exitMark):])); err != nil {
		t.Fatal(err)
	}
	return text[:i], code
}

// exitMark stands before the exit code, at the end of the output of the second serial port.
const exitMark = "\n-- exit "

const initScript = `#!/bin/busybox sh
/bin/busybox --install -s /bin 2>/dev/null
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TMPDIR=/tmp
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
mkdir -p /run /tmp /root; mount -t tmpfs run /run; mount -t tmpfs tmp /tmp; mkdir -p /run/netns
exec >/dev/ttyS1 2>&1 </dev/null
for m in $(cat /modules); do insmod $m || echo "no $m"; done
ip link set lo up
sh /line
printf '\n-- exit %s\n' $?
poweroff -f
`

// pack writes the guest's file tree.
func (g Guest) pack(ctx context.Context, a *archive, release string) error {
	files := map[string]string{}
	// A shell of its own: Debian's busybox runs its own ip before the one in PATH.
	places := map[string]string{"busybox": "/bin/busybox", "dash": "/bin/sh"}
	programs := append([]string{"busybox", "dash"}, g.Programs...)
	for _, name := range programs {
		path, err := exec.LookPath(name)
		if err != nil {
			return fmt.Errorf("looking for %s: %w", name, err)
		}
		files[cmp.Or(places[name], "/usr/bin/"+name)] = path
		libraries, err := binary.Libraries(ctx, path)
		if err != nil {
			return err
		}
		for _, l := range libraries {
			files[l] = l
		}
	}
	for at, from := range g.Files {
		files[at] = from
	}
	modules, err := modules(filepath.Join(Kernels, "lib", "modules", release), g.Modules)
	if err != nil {
		return err
	}
	var list strings.Builder
	for _, m := range modules {
		at := "/lib/modules/" + filepath.Base(m)
		files[at] = m
		fmt.Fprintln(&list, at)
	}
	var all []string
	for at := range files {
		all = append(all, at)
	}
	slices.Sort(all)
	for _, at := range all {
		raw, err := os.ReadFile(files[at])
		if err != nil {
			return fmt.Errorf("reading what the guest is to have: %w", err)
		}
		if err := a.file(at, raw); err != nil {
			return err
		}
	}
	for at, text := range map[string]string{"/init": initScript, "/line": g.Line + "\n", "/modules": list.String(), "/etc/passwd": "root:x:0:0:root:/root:/bin/sh\n"} {
		if err := a.file(at, []byte(text)); err != nil {
			return err
		}
	}
	return a.close()
}

// modules are the files of modules and of all that they need, in the order in which they are to be
// loaded. modules.dep has a line for each: "FILE: NEEDED ...", the deepest last.
func modules(dir string, names []string) (all []string, err error) {
	raw, err := os.ReadFile(filepath.Join(dir, "modules.dep"))
	if err != nil {
		return nil, fmt.Errorf("reading what modules need: %w", err)
	}
	for _, name := range names {
		found := false
		for line := range strings.Lines(string(raw)) {
			file, needs, _ := strings.Cut(strings.TrimSpace(line), ":")
			if filepath.Base(file) != name+".ko" {
				continue
			}
			found = true
			for _, f := range slices.Backward(append([]string{file}, strings.Fields(needs)...)) {
				if path := filepath.Join(dir, f); !slices.Contains(all, path) {
					all = append(all, path)
				}
			}
		}
		if !found {
			return nil, fmt.Errorf("the kernel has no module %s", name)
		}
	}
	return all, nil
}
