// Package launch decides which edgecore a device starts: the version or configuration that is
// tried, the confirmed one, or the package's.
//
// It owns the directory dataDir/bin: two slots for programs, and the state, in two checksummed
// copies that are replaced atomically and synced, the confirmed one first readable whenever the
// power fails. State is a value, and its methods are pure; Directory reads and writes. It refuses
// to start a trial that it could not count. It imports no Kubernetes: skerry-launch is made of it.
//
// One process at a time owns a directory: skerry-launch, and then, in the same process, the
// edgecore that it has executed.
package launch

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// MaxStarts is how many starts a trial has: one that ends early is repeated until then.
	MaxStarts = 3
	// MaxCrashes is how many crashes within the probation make the former program return.
	MaxCrashes = 3
	// maxRejected bounds the digests that are remembered as rejected; the oldest go first.
	maxRejected = 16
)

// Slot names a place for a program: "a", "b", or "" for the package's own.
type Slot string

// The slots.
const (
	Package Slot = ""
	A       Slot = "a"
	B       Slot = "b"
)

// Program is an edgecore, and the configuration that it runs with.
type Program struct {
	Slot    Slot   `json:"slot"`
	Version string `json:"version,omitempty"`
	Digest  string `json:"digest,omitempty"`  // "sha256:" and hexadecimal digits; "" of the package's
	Overlay string `json:"overlay,omitempty"` // name of the file with the configuration's overlay; "" without an overlay
}

// Installed is the package's program on the disk.
type Installed struct {
	Version string `json:"version,omitempty"`
	ID      string `json:"id,omitempty"` // changes with the file
}

// Trial is a program that is tried.
type Trial struct {
	Program   Program   `json:"program"`
	Operation string    `json:"operation"` // whose trial it is
	Starts    int       `json:"starts"`
	Begun     time.Time `json:"begun"`
	// Boot is the boot in which it was armed, "" from a version that did not write it.
	Boot string `json:"boot,omitempty"`
}

// Former is the program before the confirmed one, during the probation.
type Former struct {
	Program   Program   `json:"program"`
	Operation string    `json:"operation"`
	Until     time.Time `json:"until"`
	Crashes   int       `json:"crashes"`
}

// Cause is the reason of a rollback.
type Cause string

// The causes.
const (
	EndedEarly   Cause = "EndedEarly"   // it ended as often as a trial may start
	Unexecutable Cause = "Unexecutable" // the kernel does not execute it
	Superseded   Cause = "Superseded"   // a package with a newer version was installed
	Unhealthy    Cause = "Unhealthy"    // it was not healthy in time
	NoLink       Cause = "NoLink"       // it had no link to the cloud in time, and all else was healthy
	Crashed      Cause = "Crashed"      // it crashed too often during its probation
)

// Returned is a trial, or a confirmed program, that was rolled back.
type Returned struct {
	Program   Program `json:"program"`
	Operation string  `json:"operation"`
	Cause     Cause   `json:"cause"`
	Message   string  `json:"message,omitempty"`
	Starts    int     `json:"starts"`
}

// State is the stored state.
type State struct {
	Generation uint64    `json:"generation"`
	Installed  Installed `json:"installed"`
	Confirmed  Program   `json:"confirmed"`
	Trial      *Trial    `json:"trial,omitempty"`
	Former     *Former   `json:"former,omitempty"`
	Returned   *Returned `json:"returned,omitempty"`
	// Rejected are digests of programs and overlays that a trial run has judged.
	Rejected []string `json:"rejected,omitempty"`
	// Boot is the boot of the last start; Stopped: that run was stopped deliberately.
	Boot    string `json:"boot,omitempty"`
	Stopped bool   `json:"stopped,omitempty"`
}

// Facts are the input of a start.
type Facts struct {
	Boot      string
	Now       time.Time
	Installed Installed
}

// Start updates the state by the facts and returns the program to execute. The state must be saved
// first.
func (s State) Start(f Facts) (State, Program) {
	s.Rejected = slices.Clone(s.Rejected)
	s.installed(f)
	if t := s.Trial; t != nil {
		if t.Starts >= MaxStarts {
			s = s.back(EndedEarly, "it ended early "+strconv.Itoa(t.Starts)+" times")
		} else {
			counted := *t
			counted.Starts++
			s.Trial = &counted
			s.Boot, s.Stopped = f.Boot, false
			return s, counted.Program
		}
	}
	if p := s.Former; p != nil {
		counted := *p
		// A power cut or a requested stop is no evidence against the program.
		if s.Boot == f.Boot && f.Boot != "" && !s.Stopped {
			counted.Crashes++
		}
		s.Former = &counted
		switch {
		case f.Now.After(p.Until): // a crash of now is no longer one of the probation
			s.Former = nil
		case counted.Crashes >= MaxCrashes:
			s.Returned = &Returned{Program: s.Confirmed, Operation: p.Operation, Cause: Crashed, Message: "it crashed " + strconv.Itoa(counted.Crashes) + " times during its probation", Starts: counted.Crashes}
			s.reject(s.Confirmed)
			s.Confirmed, s.Former = p.Program, nil
		}
	}
	s.Boot, s.Stopped = f.Boot, false
	return s, s.Confirmed
}

// installed notices that another package was installed. One that is not older than the program in a
// slot wins: its operator wanted that.
func (s *State) installed(f Facts) {
	before := s.Installed
	if f.Installed.ID == "" {
		return // missing or unreadable
	}
	s.Installed = f.Installed
	if before == f.Installed || before == (Installed{}) {
		return
	}
	if t := s.Trial; t != nil && t.Program.Slot != Package && !Older(f.Installed.Version, t.Program.Version) {
		*s = s.back(Superseded, "package "+f.Installed.Version+" was installed")
	}
	if s.Confirmed.Slot != Package && !Older(f.Installed.Version, s.Confirmed.Version) {
		s.Confirmed, s.Former = Program{Slot: Package, Overlay: s.Confirmed.Overlay}, nil
	}
}

// Arm sets the program to try at the next start. The former program of a probation stays armed,
// unless the new one is in its slot: a configuration that is tried, and goes back, ends no
// probation.
func (s State) Arm(p Program, operation, boot string, now time.Time) State {
	if p.Slot != s.Confirmed.Slot {
		s = s.Release(p.Slot)
	}
	s.Trial, s.Returned = &Trial{Program: p, Operation: operation, Begun: now, Boot: boot}, nil
	return s
}

// Free returns the slot that a new program may be written to. It may be Former's: Release, and save
// that first.
func (s State) Free() Slot {
	if s.Confirmed.Slot == A {
		return B
	}
	return A
}

// Release forgets the former program if it is in that slot.
func (s State) Release(slot Slot) State {
	if s.Former != nil && s.Former.Program.Slot == slot {
		s.Former = nil
	}
	return s
}

// Confirm makes the trial the confirmed program, and keeps the former one armed until then.
func (s State) Confirm(until time.Time) State {
	if s.Trial == nil {
		return s
	}
	t := *s.Trial
	s.Former = &Former{Program: s.Confirmed, Operation: t.Operation, Until: until}
	s.Confirmed, s.Trial, s.Returned = t.Program, nil, nil
	return s
}

// Back ends the trial: the confirmed program is started next. Only a verdict on the program rejects
// it: a lost link is no verdict until the confirmed program has a link (Judge).
func (s State) Back(cause Cause, message string) State {
	s.Rejected = slices.Clone(s.Rejected)
	return s.back(cause, message)
}

func (s State) back(cause Cause, message string) State {
	t := *s.Trial
	s.Returned = &Returned{Program: t.Program, Operation: t.Operation, Cause: cause, Message: message, Starts: t.Starts}
	if cause == EndedEarly || cause == Unhealthy {
		s.reject(t.Program)
	}
	s.Trial = nil
	s.Stopped = true // the end of a trial is no crash of the confirmed program in its probation
	return s
}

// Judge rejects a program that was rolled back without a link: the confirmed program has one.
func (s State) Judge() State {
	if s.Returned != nil {
		s.Rejected = slices.Clone(s.Rejected)
		s.reject(s.Returned.Program)
	}
	return s
}

// Noted drops the record of a rolled-back trial: its operation has it.
func (s State) Noted() State {
	s.Returned = nil
	return s
}

// Stop records that this run is stopped deliberately.
func (s State) Stop() State {
	s.Stopped = true
	return s
}

// Key identifies a rejected program: its digest and its overlay.
func (p Program) Key() string { return p.Digest + " " + p.Overlay }

func (s *State) reject(p Program) {
	if slices.Contains(s.Rejected, p.Key()) {
		return
	}
	s.Rejected = append(s.Rejected, p.Key())
	s.Rejected = s.Rejected[max(0, len(s.Rejected)-maxRejected):]
}

// Forgive allows a rejected program to be tried again.
func (s State) Forgive(p Program) State {
	s.Rejected = slices.DeleteFunc(slices.Clone(s.Rejected), func(k string) bool { return k == p.Key() })
	return s
}

// Rejects reports whether a trial run has judged a program.
func (s State) Rejects(p Program) bool { return slices.Contains(s.Rejected, p.Key()) }

// Unusable records that the kernel did not execute a program, and returns the program to execute
// instead. The package's own is the last.
func (s State) Unusable(p Program, why string) (State, Program) {
	if s.Trial != nil && s.Trial.Program == p {
		s = s.Back(Unexecutable, why)
		s.reject(p)
		s.Stopped = false // the confirmed program's run begins now
		return s, s.Confirmed
	}
	s.Former = nil
	s.Confirmed = Program{Slot: Package, Overlay: p.Overlay}
	return s, s.Confirmed
}

// Older reports whether version a is older than b, by its three numbers: v1.4.0 and v1.4.0-rc.1 are
// alike. An invalid version is not older than any other.
func Older(a, b string) bool {
	x, xOK := numbers(a)
	y, yOK := numbers(b)
	return xOK && yOK && slices.Compare(x[:], y[:]) < 0
}

func numbers(version string) (n [3]int, ok bool) {
	text, found := strings.CutPrefix(version, "v")
	if !found {
		return n, false
	}
	if i := strings.IndexAny(text, "-+"); i >= 0 {
		text = text[:i]
	}
	parts := strings.Split(text, ".")
	if len(parts) != len(n) {
		return n, false
	}
	for i, p := range parts {
		v, err := strconv.Atoi(p)
		if err != nil || v < 0 {
			return n, false
		}
		n[i] = v
	}
	return n, true
}
