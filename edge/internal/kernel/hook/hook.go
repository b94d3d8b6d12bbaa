// Package hook runs the operator's commands for operations of the device: reboot, shutdown, image update.
//
// It owns the process of a hook: its environment, the end of its output, its end. It refuses an operation that has no hook. What a hook is for,
// and when it may run, is decided elsewhere. A Hooks is never changed and may be used by many goroutines.
package hook

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// ErrNoHook is returned for an operation that no hook is configured for.
var ErrNoHook = errors.New("no hook is configured for this operation")

const (
	maxOutput = 4096             // bytes of output that are kept, the last ones
	patience  = 10 * time.Second // between SIGTERM and SIGKILL when ctx ends
)

// Hooks are the commands, by operation.
type Hooks struct{ commands map[string]string }

// New takes the commands, each for /bin/sh. An empty one is none.
func New(commands map[string]string) *Hooks { return &Hooks{maps.Clone(commands)} }

// Check says whether there is a hook.
func (h *Hooks) Check(operation string) error {
	if h.commands[operation] == "" {
		return fmt.Errorf("%s: %w", operation, ErrNoHook)
	}
	return nil
}

// Run runs a hook with env (NAME=value) besides our own environment, and returns the end of its output and its exit code. The error tells of one
// that could not be run, that a signal ended, or whose code is not 0. When ctx ends the hook is asked to end too: what it has set going, a
// reboot say, goes on.
func (h *Hooks) Run(ctx context.Context, operation string, env ...string) (output string, code int, err error) {
	if err := h.Check(operation); err != nil {
		return "", -1, err
	}
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", h.commands[operation])
	cmd.Env = append(os.Environ(), env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = patience
	var out tail
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	code = -1
	if cmd.ProcessState != nil {
		code = cmd.ProcessState.ExitCode()
	}
	if err != nil {
		err = fmt.Errorf("the hook of %s: %w", operation, err)
	}
	return out.String(), code, err
}

// tail keeps the end of what is written. os/exec writes to it from one goroutine.
type tail struct{ kept []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.kept = append(t.kept, p...)
	if over := len(t.kept) - maxOutput; over > 0 {
		t.kept = append(t.kept[:0], t.kept[over:]...)
	}
	return len(p), nil
}

func (t *tail) String() string { return string(t.kept) }
