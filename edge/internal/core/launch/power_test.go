package launch

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// file is a file of lossyDisk: its content for processes, and on the disk.
type file struct {
	seen, kept []byte
	synced     bool
}

// lossyDisk loses any combination of unsynced changes at a power cut: the content of a file, and
// each change of a directory. That includes changes that a journaling file system would keep.
type lossyDisk struct {
	seen, kept map[string]*file // by name; seen is the directories as processes see them
	steps      int              // until the power fails; negative: never
	random     *rand.Rand
}

var errPower = errors.New("the power has failed")

func newLossyDisk(r *rand.Rand) *lossyDisk {
	return &lossyDisk{seen: map[string]*file{}, kept: map[string]*file{}, steps: -1, random: r}
}

func (d *lossyDisk) step() error {
	if d.steps == 0 {
		return errPower
	}
	d.steps--
	return nil
}

func (d *lossyDisk) ReadFile(name string) ([]byte, error) {
	f, ok := d.seen[name]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return f.seen, nil
}

func (d *lossyDisk) WriteFile(name string, data []byte, _ fs.FileMode) error {
	if err := d.step(); err != nil {
		return err
	}
	f := d.seen[name]
	if f == nil {
		f = &file{}
		d.seen[name] = f
	}
	f.seen, f.synced = slices.Clone(data), false
	return nil
}

func (d *lossyDisk) Sync(name string) error {
	if err := d.step(); err != nil {
		return err
	}
	if f := d.seen[name]; f != nil {
		f.kept, f.synced = f.seen, true
		return nil
	}
	for _, of := range []map[string]*file{d.seen, d.kept} { // a directory
		for path := range of {
			if filepath.Dir(path) == name {
				d.keep(path)
			}
		}
	}
	return nil
}

// keep syncs a directory's entry of a name.
func (d *lossyDisk) keep(path string) {
	if f := d.seen[path]; f != nil {
		d.kept[path] = f
	} else {
		delete(d.kept, path)
	}
}

func (d *lossyDisk) Rename(from, to string) error {
	if err := d.step(); err != nil {
		return err
	}
	f, ok := d.seen[from]
	if !ok {
		return fs.ErrNotExist
	}
	d.seen[to] = f
	delete(d.seen, from)
	return nil
}

func (d *lossyDisk) MkdirAll(string, fs.FileMode) error { return d.step() }

// cut is the disk after a power cut.
func (d *lossyDisk) cut() {
	names := map[string]bool{}
	for _, of := range []map[string]*file{d.seen, d.kept} {
		for path := range of {
			names[path] = true
		}
	}
	for _, path := range slices.Sorted(func(yield func(string) bool) {
		for n := range names {
			if !yield(n) {
				return
			}
		}
	}) {
		if d.random.IntN(2) == 0 {
			d.keep(path)
		}
	}
	d.seen = map[string]*file{}
	for path, f := range d.kept {
		if !f.synced {
			switch d.random.IntN(3) {
			case 0:
				f.kept = f.seen
			case 1: // a part of it
				f.kept = f.seen[:d.random.IntN(len(f.seen)+1)]
			}
		}
		f.seen, f.synced = f.kept, true
		d.seen[path] = f
	}
	d.steps = -1
}

// upgrade performs an upgrade's changes of the disk, from the fetched program to its confirmation.
func upgrade(d Directory, fetched string, now time.Time) error {
	s, err := d.Load()
	if err != nil {
		return err
	}
	slot := s.Free()
	if s, err = d.Save(s.Release(slot)); err != nil {
		return err
	}
	if err := d.Install(fetched, slot); err != nil {
		return err
	}
	p := Program{Slot: slot, Version: "v2.0.0", Digest: "sha256:new"}
	if s, err = d.Save(s.Arm(p, "one", "1", now)); err != nil {
		return err
	}
	s, chosen := s.Start(Facts{Boot: "1", Now: now, Installed: disk1})
	if chosen != p {
		return fmt.Errorf("%+v is started", chosen)
	}
	if s, err = d.Save(s); err != nil {
		return err
	}
	_, err = d.Save(s.Confirm(now.Add(24 * time.Hour)))
	return err
}

// whole are the contents that a program may have.
var whole = []string{"the first", "the second"}

// prepared is a disk with a confirmed program in slot a, and a second one that was fetched.
func prepared(t *testing.T, disk Disk, dir string) (d Directory, fetched string) {
	t.Helper()
	d = Directory{Path: filepath.Join(dir, "bin"), Disk: disk}
	for i, name := range []string{"first", "second"} {
		path := filepath.Join(dir, name)
		if err := errors.Join(disk.MkdirAll(dir, 0o700), disk.WriteFile(path, content(whole[i]), 0o700), disk.Sync(dir)); err != nil {
			t.Fatal(err)
		}
	}
	err := errors.Join(disk.MkdirAll(d.Path, 0o700), d.Install(filepath.Join(dir, "first"), A))
	_, saved := d.Save(State{Installed: disk1, Confirmed: older})
	if err := errors.Join(err, saved); err != nil {
		t.Fatal(err)
	}
	return d, filepath.Join(dir, "second")
}

func content(name string) []byte { return []byte("#!/bin/sh\necho " + name + "\n") }

// Whichever step of an upgrade the power fails at, and whatever of the unsynced it takes: the next
// start finds a program that is whole, and the start after it too.
func TestFleet_05_PowerCutLeavesAWorkingVersion(t *testing.T) {
	const steps = 45 // more than an upgrade has
	ended := false
	for n := range 450 {
		r := rand.New(rand.NewPCG(5, uint64(n)))
		disk := newLossyDisk(r)
		d, fetched := prepared(t, disk, "/data")
		disk.steps = n % steps
		err := upgrade(d, fetched, noon)
		ended = ended || err == nil
		if err != nil && !errors.Is(err, errPower) {
			t.Fatalf("cut %d: %v", n, err)
		}
		disk.cut()
		for again := range 2 {
			s, err := d.Load()
			if err != nil {
				t.Fatalf("cut %d: %v", n, err)
			}
			s, p := s.Start(Facts{Boot: strconv.Itoa(again), Now: noon, Installed: disk1})
			raw, err := disk.ReadFile(d.Program(p.Slot))
			if err != nil || string(raw) != string(content(whole[0])) && string(raw) != string(content(whole[1])) {
				t.Fatalf("cut %d at step %d starts slot %q with %q, %v", n, n%steps, p.Slot, raw, err)
			}
			if _, err := d.Save(s); err != nil {
				t.Fatal(err)
			}
		}
	}
	if !ended {
		t.Error("no upgrade came to its end: the steps are too few")
	}
}

// killingDisk ends the process, as kill -9 does, before one of its steps.
type killingDisk struct {
	System
	steps *int
}

func (d killingDisk) step() {
	if *d.steps == 0 {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
	*d.steps--
}

func (d killingDisk) WriteFile(name string, data []byte, mode fs.FileMode) error {
	d.step()
	return d.System.WriteFile(name, data, mode)
}

func (d killingDisk) Sync(name string) error {
	d.step()
	return d.System.Sync(name)
}

func (d killingDisk) Rename(from, to string) error {
	d.step()
	return d.System.Rename(from, to)
}

const (
	killAt = "LAUNCH_TEST_KILL_AT"
	inDir  = "LAUNCH_TEST_DIR"
)

// TestMain runs as one of the two processes of the test below if its environment requests it: the
// upgrade that is killed, and skerry-launch.
func TestMain(m *testing.M) {
	d := Directory{Path: filepath.Join(os.Getenv(inDir), "bin"), Disk: System{}}
	switch at := os.Getenv(killAt); at {
	case "":
		os.Exit(m.Run())
	case "never":
		err := Launch{Directory: d, Self: os.Args, Program: "/nonexistent", Log: os.Stderr, Exec: syscall.Exec}.Run(time.Now())
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	default:
		steps, err := strconv.Atoi(at)
		if err != nil {
			panic(err)
		}
		d.Disk = killingDisk{steps: &steps}
		if err := upgrade(d, filepath.Join(os.Getenv(inDir), "second"), noon); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// The same with real processes: the upgrade is killed before each of its steps, and skerry-launch
// executes a program that runs.
func TestFleet_05_KilledUpgradeLeavesAWorkingVersion(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	const most = 100
	for step := range most {
		dir := t.TempDir()
		prepared(t, System{}, dir)
		child := exec.Command(self)
		child.Env = append(os.Environ(), killAt+"="+strconv.Itoa(step), inDir+"="+dir)
		out, upgraded := child.CombinedOutput()
		if status, ok := child.ProcessState.Sys().(syscall.WaitStatus); upgraded != nil && (!ok || status.Signal() != syscall.SIGKILL) {
			t.Fatalf("step %d: %v: %s", step, upgraded, out)
		}
		for range 2 {
			launcher := exec.Command(self)
			launcher.Env = append(os.Environ(), killAt+"=never", inDir+"="+dir)
			out, err := launcher.CombinedOutput()
			if err != nil || !slices.Contains(whole, strings.TrimSpace(string(out))) {
				t.Fatalf("killed at step %d, skerry-launch ends with %v: %s", step, err, out)
			}
			if upgraded == nil && strings.TrimSpace(string(out)) != whole[1] {
				t.Errorf("after the upgrade %q runs", out)
			}
		}
		if upgraded == nil {
			return
		}
	}
	t.Fatalf("the upgrade has not ended after %d steps", most)
}

// fullDisk fails at one of its writes, and at all after it, as a full disk does.
type fullDisk struct {
	System
	left *int
}

func (d fullDisk) WriteFile(name string, data []byte, mode fs.FileMode) error {
	if *d.left--; *d.left < 0 {
		_ = d.System.WriteFile(name, data[:len(data)/2], mode)
		return syscall.ENOSPC
	}
	return d.System.WriteFile(name, data, mode)
}

// Whichever write of an upgrade the disk has no room for, a program that is whole starts; a trial
// that can't be counted does not.
func TestFleet_13_FullDiskLeavesAWorkingVersion(t *testing.T) {
	ended := false
	for n := range 20 {
		dir := t.TempDir()
		d, fetched := prepared(t, System{}, dir)
		left := n
		full := Directory{Path: d.Path, Disk: fullDisk{left: &left}}
		err := upgrade(full, fetched, noon)
		if ended = err == nil; !ended && !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("write %d: %v", n, err)
		}
		var executed string
		err = Launch{
			Directory: full, Self: []string{"skerry-launch"}, Program: "/nonexistent", Log: os.Stderr,
			Exec: func(path string, _, _ []string) error {
				if executed == "" {
					executed = path
				}
				return errors.New("executed")
			},
		}.Run(noon)
		_ = err // of the Exec that returns
		after, loadErr := d.Load()
		if loadErr != nil {
			t.Fatalf("write %d: %v", n, loadErr)
		}
		if executed == "" {
			t.Fatalf("write %d: no program is executed", n)
		}
		if s := after; !ended && s.Trial != nil && executed == d.Program(s.Trial.Program.Slot) && left < 0 {
			t.Errorf("write %d: a trial that can't be counted is executed", n)
		}
		if ended {
			return
		}
	}
	t.Error("no upgrade came to its end")
}

// A package that is installed while a version of its own runs, or is tried, wins if it is not
// older; and the version of an upgrade after that is started again.
func TestFleet_12_NewerPackageWins(t *testing.T) {
	dir := t.TempDir()
	d, fetched := prepared(t, System{}, dir)
	pkg, version := filepath.Join(dir, "edgecore"), filepath.Join(dir, "version")
	install := func(v string) {
		t.Helper()
		if err := errors.Join(os.WriteFile(pkg, []byte(v), 0o755), os.WriteFile(version, []byte(v+"\n"), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	started := func() (path string) {
		t.Helper()
		_ = Launch{
			Directory: d, Self: []string{"skerry-launch"}, Program: pkg, Version: version, Log: os.Stderr,
			Exec: func(p string, _, _ []string) error {
				path = p
				panic(p) // as execve does, it does not return
			},
		}.run(noon)
		return path
	}
	save := func(change func(State) State) {
		t.Helper()
		s, err := d.Load()
		if err == nil {
			_, err = d.Save(change(s))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	install("v1.2.0")
	save(func(s State) State { s.Installed = Installed{}; return s })
	if got := started(); got != d.Program(A) {
		t.Fatalf("before: %s", got)
	}
	install("v1.2.10")
	if got := started(); got != d.Program(A) {
		t.Errorf("an older package: %s", got)
	}
	if err := d.Install(fetched, B); err != nil {
		t.Fatal(err)
	}
	save(func(s State) State { return s.Arm(newer, "one", "1", noon) })
	install("v1.5.0")
	if got := started(); got != pkg {
		t.Errorf("a newer package during a trial: %s", got)
	}
	if s, err := d.Load(); err != nil || s.Returned == nil || s.Returned.Cause != Superseded || s.Rejects(newer) {
		t.Errorf("the operation does not learn of it: %+v, %v", s, err)
	}
	later := newer
	later.Version = "v1.6.0"
	save(func(s State) State { return s.Arm(later, "two", "1", noon) })
	if got := started(); got != d.Program(B) {
		t.Errorf("an upgrade after it: %s", got)
	}
}

// A trial is watched from its start on, and no other program: a repair of the confirmed one's store
// may take any time.
func TestTrialIsWatched(t *testing.T) {
	d, _ := prepared(t, System{}, t.TempDir())
	watched := 0
	start := func() {
		_ = Launch{Directory: d, Self: []string{"skerry-launch"}, Log: os.Stderr, Watch: func() error { watched++; return nil }, Exec: func(p string, _, _ []string) error { panic(p) }}.run(noon)
	}
	if start(); watched != 0 {
		t.Error("the confirmed program is watched")
	}
	s, err := d.Load()
	if err == nil {
		_, err = d.Save(s.Arm(newer, "one", "1", noon))
	}
	if err != nil {
		t.Fatal(err)
	}
	if start(); watched != 1 {
		t.Errorf("the trial was watched %d times", watched)
	}
}

// run is Run with an Exec that does not return.
func (l Launch) run(now time.Time) (err error) {
	defer func() { _ = recover() }()
	return l.Run(now)
}
