package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Variables that tell exec where its notes go, and tests where to note their starts (see package
// tally).
const (
	costsVariable = "SKERRY_TEST_COSTS"
	tallyVariable = "SKERRY_TEST_TALLY"
)

// A cost is that of one run of a test binary, with everything that it started.
type cost struct {
	Dir    string         `json:"dir"` // of the package
	Wall   seconds        `json:"wall"`
	User   seconds        `json:"user"`
	Kernel seconds        `json:"kernel"`
	Starts map[string]int `json:"starts,omitempty"` // control planes, trials
	Left   int            `json:"left,omitempty"`   // processes that it left running: they are not in the figures
}

// seconds is how times are written.
type seconds float64

func secondsOf(d time.Duration) seconds { return seconds(d.Seconds()) }

func (s seconds) String() string { return fmt.Sprintf("%.0f", float64(s)) }

func secondsOfTimeval(t syscall.Timeval) seconds {
	return seconds(float64(t.Sec) + float64(t.Usec)/1e6)
}

// wrap runs a test binary and notes its costs. It is the reaper of processes that the binary leaves
// without a parent, such as the first processes of hosts and daemons of trials, so that their time
// is counted too: the kernel adds up the time of processes that were waited for (getrusage(2)).
func wrap(args []string) (code int, err error) {
	file := os.Getenv(costsVariable)
	if file == "" {
		return 1, errors.New("exec: " + costsVariable + " names no file")
	}
	tally, err := os.CreateTemp("", "skerry-tally-")
	if err != nil {
		return 1, fmt.Errorf("making a file for what is started: %w", err)
	}
	defer os.Remove(tally.Name())
	defer tally.Close()
	c := cost{}
	if c.Dir, err = os.Getwd(); err != nil {
		return 1, fmt.Errorf("asking for the working directory: %w", err)
	}
	began := time.Now()
	if code, err = c.reap(args, append(os.Environ(), tallyVariable+"="+tally.Name())); err != nil {
		return code, err
	}
	c.Wall = secondsOf(time.Since(began))
	if c.Starts, err = countLines(tally.Name()); err != nil {
		return 1, err
	}
	return code, appendLine(file, c)
}

// reap runs a program to its end, and waits for all that ends in the meantime.
func (c *cost) reap(args, env []string) (code int, err error) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return 1, fmt.Errorf("becoming the reaper of orphans: %w", err)
	}
	// The death signal comes with the end of the thread that forked (prctl(2), PR_SET_PDEATHSIG).
	runtime.LockOSThread()
	signals := make(chan os.Signal, 16) // go test sends one when time is out
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	p, err := os.StartProcess(args[0], args, &os.ProcAttr{
		Env: env, Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}, Sys: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		return 1, fmt.Errorf("starting %s: %w", args[0], err)
	}
	pid := p.Pid
	go func() {
		for s := range signals {
			_ = syscall.Kill(pid, s.(syscall.Signal)) // it may have ended
		}
	}()
	ended := false
	for {
		flags := 0
		if ended {
			flags = unix.WNOHANG
		}
		var status syscall.WaitStatus
		var usage syscall.Rusage
		got, err := syscall.Wait4(-1, &status, flags, &usage)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case errors.Is(err, syscall.ECHILD):
			return code, nil
		case err != nil:
			return 1, fmt.Errorf("waiting: %w", err)
		case got == 0: // the rest still runs
			c.Left, err = children()
			return code, err
		}
		c.User += secondsOfTimeval(usage.Utime)
		c.Kernel += secondsOfTimeval(usage.Stime)
		if got == pid {
			ended, code = true, status.ExitStatus()
			if status.Signaled() {
				code = 128 + int(status.Signal())
			}
		}
	}
}

// children is how many children this process has.
func children() (int, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/children", os.Getpid()))
	if errors.Is(err, os.ErrNotExist) { // a kernel without CONFIG_PROC_CHILDREN: at least one
		return 1, nil
	}
	if err != nil {
		return 0, fmt.Errorf("listing children: %w", err)
	}
	return max(1, len(strings.Fields(string(raw)))), nil
}

func countLines(file string) (map[string]int, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading what was started: %w", err)
	}
	counts := map[string]int{}
	for line := range strings.Lines(string(raw)) {
		counts[strings.TrimSpace(line)]++
	}
	return counts, nil
}

// appendLine adds a line of JSON to a file, in one write: other processes do the same.
func appendLine(file string, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encoding a line of %s: %w", file, err)
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("opening %s: %w", file, err)
	}
	_, err = f.Write(append(raw, '\n'))
	return errors.Join(err, f.Close())
}

// add sums up.
func (c *cost) add(d cost) {
	c.Wall += d.Wall
	c.User += d.User
	c.Kernel += d.Kernel
	c.Left += d.Left
	if c.Starts == nil {
		c.Starts = map[string]int{}
	}
	for what, n := range d.Starts {
		c.Starts[what] += n
	}
	if len(c.Starts) == 0 {
		c.Starts = nil
	}
}
