package keepalived

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
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

// Adverts are due by the millisecond, whatever slack edgecore's own timers have.
func TestStartOnTime(t *testing.T) {
	const own = 10_000_000
	runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, own, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	slack := func(process string) string {
		raw, err := os.ReadFile("/proc/" + process + "/timerslack_ns")
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(raw))
	}
	child := func(start func(*exec.Cmd) error) string {
		cmd := exec.Command("sleep", "100")
		if err := start(cmd); err != nil {
			t.Fatal(err)
		}
		defer func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}()
		return slack(strconv.Itoa(cmd.Process.Pid))
	}
	if got := child((*exec.Cmd).Start); got != fmt.Sprint(own) {
		t.Errorf("a child of this thread has %s ns of slack, not %d: this test shows nothing", got, own)
	}
	if got := child(startOnTime); got != fmt.Sprint(timerSlack) {
		t.Errorf("keepalived would have %s ns of slack, want %d", got, timerSlack)
	}
	if got := slack(strconv.Itoa(unix.Gettid())); got != fmt.Sprint(own) {
		t.Errorf("the thread that started it has %s ns now, want %d", got, own)
	}
}
