package keepalived

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A keepalived that crashes again and again must not use up edgecore's file descriptors.
func TestBuried_closesThePidfd(t *testing.T) {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		t.Fatal(err)
	}
	d := New(Config{Dir: t.TempDir()})
	d.proc = &process{pid: os.Getpid(), fd: fd}
	d.buried()
	if d.proc != nil {
		t.Error("the process is still known")
	}
	if to, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd)); err == nil && strings.Contains(to, "pidfd") {
		t.Errorf("descriptor %d is open still: %s", fd, to)
	}
	d.buried() // no pidfd is left to close
}
