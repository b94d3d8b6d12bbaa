package nodecondition_test

import (
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/skerry-io/skerry/edge/internal/nodecondition"
)

// A disk that became read-only is a problem that the status names, of a running edgecore and of one
// that can't start.
func TestClaims_39_ReadOnlyDiskIsNamed(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: a mount namespace")
	}
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	at := t.TempDir()
	for _, do := range []func() error{
		func() error { return unix.Unshare(unix.CLONE_NEWNS) },
		func() error { return unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, "") },
		func() error { return unix.Mount("tmpfs", at, "tmpfs", 0, "size=16m") },
	} {
		if err := do(); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil { // by the same thread
			t.Error(err)
		}
	})
	d := nodecondition.NewDisk(at, nil)
	if s := d.Status(); s.Problem != "" {
		t.Fatalf("a disk that can be written: %s", s.Problem)
	}
	if err := unix.Mount("", at, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if s := d.Status(); !strings.Contains(s.Problem, "read-only") || !strings.Contains(s.Problem, "remount,rw") {
		t.Errorf("problem %q", s.Problem)
	}
}
