package hook_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/skerry-io/skerry/edge/internal/kernel/host/hook"
	"github.com/skerry-io/skerry/tests/cluster/poll"
)

func TestRun(t *testing.T) {
	h := hook.New(hook.Config{Dir: t.TempDir() + "/hook", Boot: "1", Commands: map[string]string{
		"good": `echo "$IMAGE"; echo aside >&2`,
		"bad":  "echo why; exit 3",
		"long": "head -c 3000000 /dev/zero | tr '\\0' x; sleep 0.1; echo END",
		"fork": "sleep 600 >/dev/null 2>&1 & echo $!",
		"none": "",
	}})
	tests := map[string]struct {
		output string
		code   int
		fails  bool
	}{
		"good": {"v2\naside\n", 0, false},
		"bad":  {"why\n", 3, true},
		"long": {strings.Repeat("x", 4092) + "END\n", 0, false},
	}
	for operation, want := range tests {
		t.Run(operation, func(t *testing.T) {
			output, code, err := h.Run(t.Context(), operation, operation, "IMAGE=v2")
			if output != want.output || code != want.code || (err != nil) != want.fails {
				t.Errorf("got %.20q, %d, %v; want %.20q, %d, an error: %v", output, code, err, want.output, want.code, want.fails)
			}
		})
	}
	for _, operation := range []string{"none", "unknown"} {
		if _, _, err := h.Run(t.Context(), operation, operation); !errors.Is(err, hook.ErrNoHook) {
			t.Errorf("%s: got %v, want ErrNoHook", operation, err)
		}
	}
	// Background processes of a hook do not delay its end.
	output, _, err := h.Run(t.Context(), "fork", "fork")
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(output))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Errorf("what the hook left in the background: %v", err)
	}
}

// A hook that hangs is killed with its child processes, and its output is returned.
func TestTraps_17_TimeoutKillsTheHooksGroup(t *testing.T) {
	alive := filepath.Join(t.TempDir(), "alive")
	h := hook.New(hook.Config{Dir: t.TempDir(), Boot: "1", Timeout: 300 * time.Millisecond, Commands: map[string]string{
		"hang": "echo begins; sleep 600 & echo $! >" + alive + "; wait",
	}})
	output, code, err := h.Run(t.Context(), "1", "hang")
	if !errors.Is(err, hook.ErrTimeout) || code != -1 || !strings.HasPrefix(output, "begins\n") {
		t.Errorf("got %q, %d, %v; want what it printed, and ErrTimeout", output, code, err)
	}
	gone(t, alive)
}

// A cancelled Run leaves the hook running; Kill ends it.
func TestTraps_17_KillEndsTheHookItsRunDoesNot(t *testing.T) {
	dir := t.TempDir()
	alive := filepath.Join(dir, "alive")
	c := hook.Config{Dir: dir, Boot: "1", Commands: map[string]string{"hang": "echo said; sleep 600 & echo $! >" + alive + "; wait"}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, _, err := hook.New(c).Run(ctx, "1", "hang")
		done <- err
	}()
	await(t, alive)
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the Run that was given up: %v", err)
	}
	later := hook.New(c)
	if _, err := later.Kill(t.Context(), "another"); err != nil {
		t.Error(err)
	}
	if pid := pidIn(t, alive); syscall.Kill(pid, 0) != nil {
		t.Error("it was ended for another")
	}
	if output, err := later.Kill(t.Context(), "1"); err != nil || !strings.HasPrefix(output, "said\n") {
		t.Errorf("killed: %q, %v", output, err)
	}
	gone(t, alive)
	if _, err := later.Kill(t.Context(), "1"); err != nil {
		t.Errorf("a second kill: %v", err)
	}
}

// childDir in the environment makes this test binary a process that runs a hook there, and
// is killed.
const childDir = "HOOK_TEST_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		_, _, _ = commands(dir).Run(context.Background(), "1", "slow")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func commands(dir string) *hook.Hooks {
	return hook.New(hook.Config{Dir: filepath.Join(dir, "hook"), Boot: "1", Commands: map[string]string{
		"slow":  "echo x >>" + dir + "/ran; until [ -e " + dir + "/go ]; do sleep 0.02; done; echo done; exit 7",
		"other": "echo other",
	}})
}

// kill -9 of edgecore and a start: the hook is adopted, with its output and its code, and
// never run twice.
func TestTraps_17_HookIsAdoptedAfterKill(t *testing.T) {
	for name, ends := range map[string]bool{"ends before the start": true, "ends after the start": false} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			edgecore := exec.Command(self)
			edgecore.Env = append(os.Environ(), childDir+"="+dir)
			if err := edgecore.Start(); err != nil {
				t.Fatal(err)
			}
			await(t, dir+"/ran")
			if err := edgecore.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = edgecore.Wait() // it was killed
			let := func() {
				if err := os.WriteFile(dir+"/go", nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if ends {
				let()
				await(t, dir+"/hook/exit")
			} else {
				time.AfterFunc(50*time.Millisecond, let)
			}
			output, code, err := commands(dir).Run(t.Context(), "1", "slow")
			if output != "done\n" || code != 7 || err == nil {
				t.Errorf("adopted: %q, %d, %v", output, code, err)
			}
			if ran, err := os.ReadFile(dir + "/ran"); err != nil || string(ran) != "x\n" {
				t.Errorf("it ran %d times, %v", strings.Count(string(ran), "x"), err)
			}
		})
	}
}

// The hook of a forgotten operation is ended before another one begins.
func TestTraps_17_ForgottenHookIsEndedFirst(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _, _ = commands(dir).Run(ctx, "1", "slow")
	}()
	await(t, dir+"/ran")
	await(t, dir+"/hook/pid")
	cancel()
	<-done
	if output, _, err := commands(dir).Run(t.Context(), "2", "other"); err != nil || output != "other\n" {
		t.Errorf("the other one: %q, %v", output, err)
	}
}

func await(t *testing.T, file string) {
	t.Helper()
	poll.True(t, file, func() bool {
		raw, err := os.ReadFile(file)
		return err == nil && len(raw) > 0
	})
}

func pidIn(t *testing.T, file string) int {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// gone checks that a process has ended; a zombie that init has not reaped yet has.
func gone(t *testing.T, file string) {
	t.Helper()
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pidIn(t, file)) + "/stat")
	if err == nil && !strings.Contains(string(stat), ") Z ") {
		t.Errorf("it lives: %s", stat)
	}
}
