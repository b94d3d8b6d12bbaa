package launch

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"
)

// Environment is the environment variable that skerry-launch sets for edgecore: a Started as JSON.
const Environment = "SKERRY_LAUNCH"

// Started has the parameters passed to an executed program.
type Started struct {
	Dir      string   `json:"dir"`
	Launcher []string `json:"launcher"` // how skerry-launch is executed again, its path first
	Program  Program  `json:"program"`
	Trial    bool     `json:"trial,omitempty"`
}

// FromEnvironment returns how this process was started; false if not by skerry-launch.
func FromEnvironment() (Started, bool) {
	var s Started
	text := os.Getenv(Environment)
	if text == "" || json.Unmarshal([]byte(text), &s) != nil || s.Dir == "" || len(s.Launcher) == 0 {
		return Started{}, false
	}
	return s, true
}

// Again executes skerry-launch in the place of this process. It returns only with an error.
func (s Started) Again() error {
	return fmt.Errorf("executing %s: %w", s.Launcher[0], syscall.Exec(s.Launcher[0], s.Launcher, withoutUs(os.Environ())))
}

func withoutUs(env []string) []string {
	var rest []string
	for _, e := range env {
		if !strings.HasPrefix(e, Environment+"=") {
			rest = append(rest, e)
		}
	}
	return rest
}

// Launch configures skerry-launch.
type Launch struct {
	Directory Directory
	Self      []string // its own path and arguments
	Program   string   // the package's
	Args      []string // of every program
	Version   string   // the file with the package's version; "" if there is no file
	Log       io.Writer
	Exec      func(path string, argv, env []string) error // syscall.Exec
	// Watch has systemd's watchdog kill a trial that hangs before it is ready: until then systemd
	// itself waits for any time. nil: there is no watchdog.
	Watch func() error
}

// Run executes the program whose turn it is. It returns only with an error: no program could be
// executed.
func (l Launch) Run(now time.Time) error {
	d := l.Directory
	before, err := d.Load()
	if err != nil {
		l.logf("%v: starting the package's edgecore", err)
	}
	state, choice := before.Start(Facts{Boot: bootID(), Now: now, Installed: l.installed()})
	state, choice = l.keep(before, state, choice)
	var errs []error
	for {
		path := l.Program
		if choice.Slot != Package {
			path = d.Program(choice.Slot)
		}
		started := Started{Dir: d.Path, Launcher: l.Self, Program: choice, Trial: state.Trial != nil}
		told, err := json.Marshal(started)
		if err != nil {
			return err
		}
		if started.Trial && l.Watch != nil {
			if err := l.Watch(); err != nil {
				l.logf("starting the watchdog: %v", err)
			}
		}
		err = l.Exec(path, append([]string{path}, l.Args...), append(withoutUs(os.Environ()), Environment+"="+string(told)))
		errs = append(errs, fmt.Errorf("%s: %w", path, err))
		l.logf("executing %s: %v", path, err)
		if choice.Slot == Package {
			return errors.Join(errs...)
		}
		next, other := state.Unusable(choice, err.Error())
		if state, err = d.Save(next); err != nil {
			l.logf("%v", err)
			state = next
		}
		choice = other
	}
}

// keep puts the state on the disk, if it is another. A trial that can't be counted is not started.
func (l Launch) keep(before, state State, choice Program) (State, Program) {
	if before.Trial == nil && before.Former == nil && before.Confirmed == state.Confirmed && (before.Generation == 0 || before.Installed == state.Installed) {
		return state, choice // no count: the disk is not written to
	}
	kept, err := l.Directory.Save(state)
	if err == nil {
		return kept, choice
	}
	l.logf("%v", err)
	if state.Trial == nil {
		return state, choice
	}
	l.logf("the trial of %s can't be counted, so it is not started", choice.Version)
	state.Trial = nil
	return state, state.Confirmed
}

func (l Launch) logf(format string, args ...any) {
	fmt.Fprintf(l.Log, "skerry-launch: "+format+"\n", args...)
}

// installed identifies the package's program by its file, and reads its version.
func (l Launch) installed() Installed {
	var i Installed
	if info, err := os.Stat(l.Program); err == nil {
		i.ID = fmt.Sprintf("%d-%d", info.Size(), info.ModTime().UnixNano())
	}
	if l.Version != "" {
		if raw, err := l.Directory.Disk.ReadFile(l.Version); err == nil && len(raw) <= 128 {
			i.Version = strings.TrimSpace(string(raw))
		}
	}
	return i
}

// bootID returns the unique ID of this boot (proc(5)).
func bootID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
}
