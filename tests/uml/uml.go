// Package uml runs tests in another kernel: Debian's user-mode Linux, which boots as a plain
// process on the machine's own file tree within seconds and has modules that the machine's kernel
// lacks, IPVS above all.
//
// It owns the process and its directory; no other file is written, since the file tree is mounted
// read-only. It refuses to run more than a command at a time in one guest. Guests of several tests
// don't know each other.
package uml

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/skerry-io/skerry/tests/cluster/binary"
)

// Build compiles the tests of a package of this module, without cgo, into dir.
func Build(ctx context.Context, dir, pkg string) (string, error) {
	root, err := binary.Root()
	if err != nil {
		return "", err
	}
	out := filepath.Join(dir, strings.ReplaceAll(strings.TrimPrefix(pkg, "./"), "/", "-")+".test")
	cmd := exec.CommandContext(ctx, "go", "test", "-c", "-o", out, pkg)
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if words, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("compiling %s: %w: %s", pkg, err, words)
	}
	return out, nil
}

// Run boots a guest with memory MiB, runs a line of shell in it as root, and returns its output and
// its exit code. It skips the test where there is no such kernel.
func Run(t testing.TB, memory int, patience time.Duration, line string) (output string, code int) {
	t.Helper()
	if _, err := exec.LookPath("linux.uml"); err != nil {
		t.Skip("needs Debian's user-mode-linux")
	}
	if os.Geteuid() != 0 {
		t.Skip("the guest's root has the rights of the user that starts it: needs root")
	}
	root, err := binary.Root()
	if err != nil {
		t.Fatal(err)
	}
	job := t.TempDir()
	if err := os.WriteFile(filepath.Join(job, "cmd"), []byte(line+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "linux.uml", fmt.Sprintf("mem=%dM", memory), "umid=guest", "uml_dir="+job+"/", "rootfstype=hostfs", "rootflags=/", "ro",
		"init="+filepath.Join(root, "tests/uml/init.sh"), "umljob="+job, "con=null", "con0=null,fd:1", "quiet", "loglevel=4")
	// The guest's memory is a file there: not on a disk, which would write its pages all the while.
	cmd.Env = append(os.Environ(), "HOME="+job, "TMPDIR=/dev/shm")
	var console bytes.Buffer
	cmd.Stdout, cmd.Stderr = &console, &console
	cmd.WaitDelay = 5 * time.Second
	runErr := Start(cmd, job)
	if runErr == nil {
		runErr = cmd.Wait()
	}
	out, _ := os.ReadFile(filepath.Join(job, "out")) // missing where it did not get that far
	rc, err := os.ReadFile(filepath.Join(job, "rc"))
	if err != nil {
		t.Fatalf("the guest did not finish: %v\n%s\nconsole:\n%s", runErr, out, console.String())
	}
	if code, err = strconv.Atoi(strings.TrimSpace(string(rc))); err != nil {
		t.Fatal(err)
	}
	return string(out), code
}
