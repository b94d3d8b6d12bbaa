// Package process starts, finds and ends processes of this machine by pid and start time.
//
// It is stateless between calls: an Identity can be written to a file and used by another process
// later. It never signals by name, and never a pid that the kernel has reused in the meantime. Its
// functions may be called from any goroutine.
package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Identity names one process for as long as the machine runs: the kernel uses pids again, but not
// with the same start time.
type Identity struct {
	PID int `json:"pid"`
	// Start is field 22 of /proc/PID/stat, in clock ticks since boot (proc_pid_stat(5)).
	Start uint64 `json:"start"`
}

// Spec describes the process to start.
type Spec struct {
	Path string
	Args []string
	Env  []string // in addition to our own
	// Files are the child's from file descriptor 3 on.
	Files []*os.File
	Dir   string
	// Enter, when set, runs on the thread that forks and may change the attributes that a child
	// inherits, such as namespaces. The thread is never used again.
	Enter func() error
	// TimerSlack is by how much the kernel may delay the child's timers to wake it less often
	// (prctl(2), PR_SET_TIMERSLACK; systemd's TimerSlackNSec=); 0: as ours.
	TimerSlack time.Duration
	// Flags are those of clone(2) that make new namespaces (CLONE_NEWNET and so on).
	Flags uintptr
	// Log, when set, gets standard output and error, appended.
	Log string
	// Stdin, Stdout and Stderr are for a command in the foreground, which then stays in our session
	// and process group; Log is not used.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Bound ends the process by SIGKILL when ours ends, whatever the way. Without it, it lives on.
	// Not for a process in another namespace of processes: it can't see its parent, which looks as
	// if that had ended already.
	Bound bool
}

// Relaxed is the timer slack of programs of which many idle side by side: a control plane takes a
// third less CPU with it.
const Relaxed = 20 * time.Millisecond

// Started is a child of ours.
type Started struct {
	Identity
	done chan struct{}
	err  error // set before done is closed
}

// Start runs a program. A child's namespaces are those of the thread which forks, so a thread of
// its own enters them.
func Start(spec Spec) (*Started, error) {
	cmd := exec.Command(spec.Path, spec.Args...)
	cmd.Dir = spec.Dir
	cmd.Env = append(os.Environ(), spec.Env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = spec.Stdin, spec.Stdout, spec.Stderr
	cmd.ExtraFiles = spec.Files
	foreground := spec.Stdin != nil || spec.Stdout != nil || spec.Stderr != nil
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: !foreground, Cloneflags: spec.Flags}
	if spec.Bound {
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	if spec.Log != "" && !foreground {
		log, err := os.OpenFile(spec.Log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
		if err != nil {
			return nil, fmt.Errorf("opening the log of %s: %w", filepath.Base(spec.Path), err)
		}
		defer log.Close()
		cmd.Stdout, cmd.Stderr = log, log
	}
	s := &Started{done: make(chan struct{})}
	forked := make(chan error)
	identified := make(chan struct{})
	go func() {
		// Never unlocked: a thread that may have changed its namespaces, and whose end would be
		// the death signal of the child (prctl(2), PR_SET_PDEATHSIG), ends with this goroutine,
		// after the child.
		runtime.LockOSThread()
		if spec.Enter != nil {
			if err := spec.Enter(); err != nil {
				forked <- err
				return
			}
		}
		if spec.TimerSlack > 0 {
			if err := unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(spec.TimerSlack.Nanoseconds()), 0, 0, 0); err != nil {
				forked <- fmt.Errorf("setting the timer slack of %s: %w", spec.Path, err)
				return
			}
		}
		if err := cmd.Start(); err != nil {
			forked <- fmt.Errorf("starting %s: %w", spec.Path, err)
			return
		}
		forked <- nil
		// Not waited for until its start time was read: until then the pid can't become another's.
		<-identified
		s.err = cmd.Wait()
		close(s.done)
	}()
	if err := <-forked; err != nil {
		return nil, err
	}
	// Here and not above: the other thread may see another /proc.
	id, err := Find(cmd.Process.Pid)
	if err != nil {
		cmd.Process.Kill()
		close(identified)
		return nil, err
	}
	s.Identity = id
	close(identified)
	return s, nil
}

// Done is closed when the child has ended.
func (s *Started) Done() <-chan struct{} { return s.done }

// Err is how the child ended, once Done is closed.
func (s *Started) Err() error { return s.err }

// Find reads the identity of the process that has this pid now.
func Find(pid int) (Identity, error) {
	fields, err := stat(pid)
	if err != nil {
		return Identity{}, err
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return Identity{}, fmt.Errorf("reading the start time of %d: %w", pid, err)
	}
	return Identity{PID: pid, Start: start}, nil
}

// stat returns the fields of /proc/PID/stat from the third on: the second, the command, may contain
// spaces and parentheses.
func stat(pid int) ([]string, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, fmt.Errorf("looking at process %d: %w", pid, err)
	}
	end := bytes.LastIndexByte(raw, ')')
	fields := strings.Fields(string(raw[end+1:]))
	if end < 0 || len(fields) < 20 {
		return nil, fmt.Errorf("looking at process %d: unexpected stat line", pid)
	}
	return fields, nil
}

// Alive reports whether the process still runs, or still holds its files: a killed process of many
// threads shows as a zombie before the last of them has released its files and locks. A whole
// zombie that was not waited for is not alive.
func (id Identity) Alive() bool {
	fd, err := id.open()
	if err != nil || fd < 0 {
		return false
	}
	defer unix.Close(fd)
	// A pidfd becomes readable when the last thread has ended (pidfd_open(2)).
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		// Also without a wait a signal interrupts it (poll(2)), and Go's scheduler sends signals to
		// its own threads when they have had their time.
		if !errors.Is(err, unix.EINTR) {
			return err == nil && n == 0
		}
	}
}

// open returns a pidfd of the process, which stays with it and not with the number; -1
// when it is gone.
func (id Identity) open() (int, error) {
	if id.PID <= 0 {
		return -1, nil
	}
	fd, err := unix.PidfdOpen(id.PID, 0)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return -1, nil // EINVAL: the number is now that of a thread
	}
	if err != nil {
		return -1, fmt.Errorf("opening process %d: %w", id.PID, err)
	}
	if now, err := Find(id.PID); err != nil || now != id {
		unix.Close(fd)
		return -1, nil
	}
	return fd, nil
}

// Signal sends sig to the process if it is there; otherwise it has no effect.
func (id Identity) Signal(sig syscall.Signal) error {
	fd, err := id.open()
	if err != nil || fd < 0 {
		return err
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signalling process %d: %w", id.PID, err)
	}
	return nil
}

// Wait returns nil when the process has ended.
func (id Identity) Wait(ctx context.Context) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for id.Alive() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("waiting for the end of process %d: %w", id.PID, context.Cause(ctx))
		}
	}
	return nil
}

// Kill ends the process at once and waits until it is gone.
func (id Identity) Kill(ctx context.Context) error {
	if err := id.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	return id.Wait(ctx)
}

// Stop asks the process to end and, when it has not within patience, ends it.
func (id Identity) Stop(ctx context.Context, patience time.Duration) error {
	if err := id.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	patient, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if id.Wait(patient) == nil {
		return nil
	}
	return id.Kill(ctx)
}

// Select returns the identities of all processes that match.
func Select(match func(pid int) bool) ([]Identity, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("listing processes: %w", err)
	}
	var found []Identity
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() || !match(pid) {
			continue
		}
		if id, err := Find(pid); err == nil && id.Alive() {
			found = append(found, id)
		}
	}
	return found, nil
}

// Cmdline is the process' argument list, empty when it has gone or is a kernel thread.
func Cmdline(pid int) []string {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || len(raw) == 0 {
		return nil
	}
	return strings.Split(strings.TrimRight(string(raw), "\x00"), "\x00")
}
