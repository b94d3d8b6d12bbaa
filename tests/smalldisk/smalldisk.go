// Package smalldisk runs a part of a test on a file system of 2 MiB of its own, so that
// ENOSPC is real.
//
// It owns the mount, which is in a mount namespace of the test binary's child and goes with it. It
// refuses to run without root: such a test is skipped, with a message. The child runs one part and
// ends.
package smalldisk

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// variable names the part that a child runs.
const variable = "SKERRY_TEST_SMALL_DISK"

// Child runs the part that this process was started for, and reports whether it was. TestMain calls
// it first and ends where it returns true.
func Child(parts map[string]func(dir string) error) bool {
	name, dir, ok := strings.Cut(os.Getenv(variable), "=")
	if !ok {
		return false
	}
	part, ok := parts[name]
	if !ok {
		fmt.Printf("no such part: %s\n", name)
		os.Exit(1)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=2m"); err != nil {
		fmt.Println("mounting:", err)
		os.Exit(1)
	}
	if err := part(dir); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("fine")
	return true
}

// Run runs a part in a child, in a new directory with the small file system on it.
func Run(t *testing.T, name string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: it mounts a small disk in a mount namespace of its own")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, "-test.run=^$")
	cmd.Env = append(os.Environ(), variable+"="+name+"="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.HasSuffix(strings.TrimSpace(string(out)), "fine") {
		t.Errorf("%v: %s", err, out)
	}
}
