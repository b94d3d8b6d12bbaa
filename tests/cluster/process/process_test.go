package process_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/skerry-io/skerry/tests/cluster/process"
)

func start(t *testing.T, spec process.Spec) *process.Started {
	t.Helper()
	s, err := process.Start(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Kill(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestStopAndKill(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		end    func(context.Context, process.Identity) error
	}{
		"asked to end, it does":        {"exec sleep 100", func(ctx context.Context, id process.Identity) error { return id.Stop(ctx, time.Minute) }},
		"asked to end, it refuses":     {"trap '' TERM; echo ready; while :; do sleep 1; done", func(ctx context.Context, id process.Identity) error { return id.Stop(ctx, time.Millisecond) }},
		"killed":                       {"exec sleep 100", func(ctx context.Context, id process.Identity) error { return id.Kill(ctx) }},
		"it has ended by itself":       {"exit 3", func(ctx context.Context, id process.Identity) error { return id.Kill(ctx) }},
		"stopped after its own ending": {"exit 3", func(ctx context.Context, id process.Identity) error { return id.Stop(ctx, time.Minute) }},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, process.Spec{Path: "sh", Args: []string{"-c", c.script}})
			if err := c.end(t.Context(), s.Identity); err != nil {
				t.Fatal(err)
			}
			<-s.Done()
			if s.Alive() {
				t.Error("it is alive")
			}
		})
	}
}

func TestTimerSlack(t *testing.T) {
	for _, want := range []time.Duration{0, process.Relaxed} {
		s := start(t, process.Spec{Path: "sleep", Args: []string{"100"}, TimerSlack: want})
		raw, err := os.ReadFile("/proc/" + strconv.Itoa(s.PID) + "/timerslack_ns")
		if err != nil {
			t.Fatal(err)
		}
		got, err := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
		if err != nil || (got == process.Relaxed.Nanoseconds()) != (want == process.Relaxed) {
			t.Errorf("with %v asked for it has %d ns (%v)", want, got, err)
		}
	}
}

func TestIdentity(t *testing.T) {
	s := start(t, process.Spec{Path: "sleep", Args: []string{"100"}})
	found, err := process.Find(s.PID)
	if err != nil || found != s.Identity {
		t.Errorf("Find gives %v, %v; want %v", found, err, s.Identity)
	}
	t.Run("another process with the same pid is left alone", func(t *testing.T) {
		stranger := process.Identity{PID: s.PID, Start: s.Start - 1}
		if stranger.Alive() {
			t.Error("taken for alive")
		}
		if err := stranger.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !s.Alive() {
			t.Error("killed")
		}
	})
	t.Run("the zero identity is no process", func(t *testing.T) {
		var none process.Identity
		if none.Alive() {
			t.Error("taken for alive")
		}
		if err := none.Signal(syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	})
	t.Run("a name with spaces and parentheses", func(t *testing.T) {
		odd := filepath.Join(t.TempDir(), "a) R 1 (b")
		if err := os.Symlink("/bin/sleep", odd); err != nil {
			t.Fatal(err)
		}
		o := start(t, process.Spec{Path: odd, Args: []string{"100"}})
		if !o.Alive() {
			t.Error("not found alive")
		}
	})
}

func TestLog(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	for range 2 {
		<-start(t, process.Spec{Path: "sh", Args: []string{"-c", "echo out; echo err >&2"}, Log: log}).Done()
	}
	got, err := os.ReadFile(log)
	if err != nil || string(got) != "out\nerr\nout\nerr\n" {
		t.Errorf("log is %q, %v", got, err)
	}
}

func TestForeground(t *testing.T) {
	var out strings.Builder
	s := start(t, process.Spec{Path: "sh", Args: []string{"-c", "cat; exit 7"}, Stdin: strings.NewReader("hello"), Stdout: &out})
	<-s.Done()
	exit, ok := s.Err().(*exec.ExitError)
	if out.String() != "hello" || !ok || exit.ExitCode() != 7 {
		t.Errorf("output %q, error %v", out.String(), s.Err())
	}
}

// TestBound: a bound child ends with its parent, also when that one is killed.
func TestBound(t *testing.T) {
	pidFile := filepath.Join(t.TempDir(), "pid")
	if os.Getenv("PROCESS_TEST_PARENT") != "" {
		s, err := process.Start(process.Spec{Path: "sleep", Args: []string{"100"}, Bound: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(os.Getenv("PROCESS_TEST_PARENT"), []byte(strconv.Itoa(s.PID)), 0o600); err != nil {
			t.Fatal(err)
		}
		<-s.Done()
		return
	}
	parent := start(t, process.Spec{Path: os.Args[0], Args: []string{"-test.run=^TestBound$"}, Env: []string{"PROCESS_TEST_PARENT=" + pidFile}})
	var child process.Identity
	for child.PID == 0 {
		raw, err := os.ReadFile(pidFile)
		if err == nil && len(raw) > 0 {
			pid, err := strconv.Atoi(string(raw))
			if err != nil {
				continue // half written
			}
			if child, err = process.Find(pid); err != nil {
				t.Fatal(err)
			}
			break
		}
		select {
		case <-parent.Done():
			t.Fatal("the parent ended early")
		case <-time.After(10 * time.Millisecond):
		}
	}
	if err := parent.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := child.Wait(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestSelect(t *testing.T) {
	// Not a shell: its child has the same arguments until it has become sleep.
	mark := "0.000" + strconv.Itoa(os.Getpid()) // seconds more
	s := start(t, process.Spec{Path: "sleep", Args: []string{"100", mark}})
	for len(process.Cmdline(s.PID)) == 0 { // execve(2) closes the file that Start waits for before it has set these
		time.Sleep(time.Millisecond)
	}
	found, err := process.Select(func(pid int) bool {
		args := process.Cmdline(pid)
		return len(args) == 3 && args[2] == mark
	})
	if err != nil || len(found) != 1 || found[0] != s.Identity {
		t.Errorf("found %v, %v; want %v", found, err, s.Identity)
	}
}

// TestKillFreesLocks: when Kill returns, a lock that the process held is free, whichever of its
// threads ends last.
func TestKillFreesLocks(t *testing.T) {
	file := filepath.Join(t.TempDir(), "lock")
	if os.Getenv("PROCESS_TEST_LOCK") != "" {
		for range 50 {
			go func() {
				runtime.LockOSThread()
				select {}
			}()
		}
		f, err := os.Create(os.Getenv("PROCESS_TEST_LOCK"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		ballast := make([]byte, 64<<20) // takes time to give back
		for i := range ballast {
			ballast[i] = 1
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
			t.Fatal(err)
		}
		f.WriteString("held")
		time.Sleep(time.Hour)
	}
	for range 5 {
		s := start(t, process.Spec{Path: os.Args[0], Args: []string{"-test.run=^TestKillFreesLocks$"}, Env: []string{"PROCESS_TEST_LOCK=" + file}})
		for {
			if raw, err := os.ReadFile(file); err == nil && string(raw) == "held" {
				break
			}
			select {
			case <-s.Done():
				t.Fatal("it ended early")
			case <-time.After(5 * time.Millisecond):
			}
		}
		if err := s.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			t.Errorf("the lock is held after the end: %v", err)
		}
		f.Close()
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
}
