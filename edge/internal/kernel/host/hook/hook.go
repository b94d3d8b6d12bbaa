// Package hook runs the operator's commands for operations of the device: reboot,
// shutdown, image update.
//
// It owns the processes of a hook: their process group, their environment, the end of their output,
// their end. It refuses an operation that has no hook. Its callers decide the purpose and the time
// of a hook.
//
// A hook outlives the process that started it: systemd's KillMode=process leaves it alone when
// edgecore is restarted, and an update must not be cut in the middle by that. So its state is in
// files, and a later process adopts it (record.go). At most one hook runs at a time. A Hooks is
// never changed; Run and Kill must not be called at the same time.
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

// Errors that callers branch on.
var (
	ErrNoHook  = errors.New("no hook is configured for this operation")
	ErrTimeout = errors.New("it did not end in time and was killed")
)

const (
	grace     = 10 * time.Second       // between SIGTERM and SIGKILL
	settle    = 5 * time.Second        // after SIGKILL: how long the end of the group is waited for
	firstPoll = 20 * time.Millisecond  // between two checks of a hook, doubled each time
	lastPoll  = 500 * time.Millisecond // up to this
)

// Config configures Hooks.
type Config struct {
	Commands map[string]string // by operation, each for /bin/sh; empty: no hook
	Dir      string            // where a running hook is recorded; made on first use
	Boot     string            // unique ID of the device's boot
	Timeout  time.Duration     // after which a hook is killed, on the monotonic clock; 0: never
}

// Hooks are the commands, by operation.
type Hooks struct {
	config  Config
	records records
}

// New makes Hooks.
func New(c Config) *Hooks {
	c.Commands = maps.Clone(c.Commands)
	return &Hooks{config: c, records: records{dir: c.Dir, boot: c.Boot}}
}

// Check returns an error for an operation without a hook.
func (h *Hooks) Check(operation string) error {
	if h.config.Commands[operation] == "" {
		return fmt.Errorf("%s: %w", operation, ErrNoHook)
	}
	return nil
}

// Run runs the hook of an operation once for each id, with env (NAME=value) besides our own
// environment, and returns the end of its output and its exit code. Where the hook of this id runs
// already, or has ended since, it is adopted and not started again. The error is of a hook that
// could not be run, that was killed, or whose code is not 0. When ctx ends Run returns and the hook
// keeps running: the next Run adopts it. Kill ends it.
func (h *Hooks) Run(ctx context.Context, id, operation string, env ...string) (output string, code int, err error) {
	if err := h.Check(operation); err != nil {
		return "", -1, err
	}
	code, err = h.run(ctx, id, operation, env)
	if err == nil && code != 0 {
		err = fmt.Errorf("exit status %d", code)
	}
	if err != nil {
		err = fmt.Errorf("the hook of %s: %w", operation, err)
	}
	return h.records.output(), code, err
}

func (h *Hooks) run(ctx context.Context, id, operation string, env []string) (code int, err error) {
	last, running, err := h.records.last()
	if err != nil {
		return -1, err
	}
	if running && last.ID != id { // obsolete, or it would be asked for
		if err := h.end(ctx, last); err != nil {
			return -1, fmt.Errorf("ending the hook of another operation: %w", err)
		}
		running = false
	}
	if !running {
		if code, ended := h.records.exit(); ended && last.ID == id {
			return code, nil // it ended while edgecore did not run
		}
		if last, err = h.start(id, h.config.Commands[operation], env); err != nil {
			return -1, err
		}
	}
	return h.wait(ctx, last)
}

// script is the shell in front of a hook. It is the leader of the hook's process group and has the
// lock (file descriptor 3), which the hook itself doesn't get: its background processes are no
// longer part of the hook. A SIGTERM to the group is for the hook.
const script = `trap : TERM
echo $$ >"$3.new" && mv "$3.new" "$3" || exit 125
/bin/sh -c "$1" 2>&1 3>&-
code=$?
echo $code >"$2.new" && mv "$2.new" "$2"
exit $code`

// start starts a hook in a session of its own. Its record is written before.
func (h *Hooks) start(id, command string, env []string) (record, error) {
	lock, out, r, err := h.records.begin(id)
	if err != nil {
		return record{}, err
	}
	defer lock.Close() // the hook has it now: the lock belongs to the open file, not to us
	defer out.Close()
	cmd := exec.Command("/bin/sh", "-c", script, "hook", command, h.records.path(exitFile), h.records.path(pidFile))
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.ExtraFiles = out, []*os.File{lock} // the shell's own words on how the hook ended are no output
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return record{}, err
	}
	r.pid = cmd.Process.Pid
	return r, cmd.Process.Release() // wait reaps it
}

// wait waits for the end of a hook.
func (h *Hooks) wait(ctx context.Context, r record) (code int, err error) {
	var deadline <-chan time.Time
	if h.config.Timeout > 0 {
		left := h.config.Timeout - (monotonic() - r.Started)
		timer := time.NewTimer(max(0, left))
		defer timer.Stop()
		deadline = timer.C
	}
	for poll := firstPoll; ; poll = min(2*poll, lastPoll) {
		over, err := h.records.over(&r)
		if err != nil {
			return -1, err
		}
		if over {
			if code, ended := h.records.exit(); ended {
				return code, nil
			}
			return -1, errors.New("it was killed")
		}
		h.records.shorten()
		select {
		case <-ctx.Done():
			return -1, context.Cause(ctx)
		case <-deadline:
			if err := h.end(ctx, r); err != nil {
				return -1, err
			}
			return -1, fmt.Errorf("%w, after %v", ErrTimeout, h.config.Timeout)
		case <-time.After(poll):
		}
	}
}

// Kill ends the hook of an id with all of its process group, and returns the end of its output. One
// that does not run is no error.
func (h *Hooks) Kill(ctx context.Context, id string) (output string, err error) {
	last, running, err := h.records.last()
	if err != nil || last.ID != id {
		return "", err
	}
	if running {
		err = h.end(ctx, last)
	}
	return h.records.output(), err
}

// end asks the processes of a hook to end, and kills them if they don't within the grace period.
func (h *Hooks) end(ctx context.Context, r record) error {
	for _, step := range []struct {
		signal syscall.Signal
		wait   time.Duration
	}{{syscall.SIGTERM, grace}, {syscall.SIGKILL, settle}} {
		timer := time.NewTimer(step.wait)
		defer timer.Stop()
		for signalled, waiting := false, true; waiting; {
			over, err := h.records.over(&r)
			if err != nil {
				return err
			}
			if r.pid > 0 {
				sent := step.signal
				if signalled {
					sent = 0 // is any process alive?
				}
				signalled = true
				err = syscall.Kill(-r.pid, sent)
			}
			if over && (r.pid == 0 || errors.Is(err, syscall.ESRCH)) {
				return nil
			}
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-timer.C:
				waiting = false
			case <-time.After(firstPoll):
			}
		}
	}
	return fmt.Errorf("process group %d can't be ended", r.pid)
}
