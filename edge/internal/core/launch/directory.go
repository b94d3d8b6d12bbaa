package launch

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Disk is a file system, each step of whose writes can be lost.
type Disk interface {
	ReadFile(name string) ([]byte, error)
	// WriteFile writes a file without a sync.
	WriteFile(name string, data []byte, mode fs.FileMode) error
	Sync(name string) error // of a file or a directory
	Rename(from, to string) error
	MkdirAll(name string, mode fs.FileMode) error
}

// System is the machine's own file system.
type System struct{}

// ReadFile implements Disk.
func (System) ReadFile(name string) ([]byte, error) { return os.ReadFile(name) }

// WriteFile implements Disk.
func (System) WriteFile(name string, data []byte, mode fs.FileMode) error {
	return os.WriteFile(name, data, mode)
}

// Rename implements Disk.
func (System) Rename(from, to string) error { return os.Rename(from, to) }

// MkdirAll implements Disk.
func (System) MkdirAll(name string, mode fs.FileMode) error { return os.MkdirAll(name, mode) }

// Sync implements Disk.
func (System) Sync(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

const (
	magic    = "skerry-launch 1"
	maxState = 64 << 10 // bytes of a copy; a longer one is damaged
	program  = "edgecore"
)

// ErrDamaged means that no copy of the state is readable, although there is one.
var ErrDamaged = errors.New("both copies of the state of skerry-launch are damaged")

// Directory is dataDir/bin.
type Directory struct {
	Path string
	Disk Disk
}

func (d Directory) copies() [2]string {
	return [2]string{filepath.Join(d.Path, "state.0"), filepath.Join(d.Path, "state.1")}
}

// Program is the path of a slot's program.
func (d Directory) Program(s Slot) string { return filepath.Join(d.Path, string(s), program) }

// Overlays is the directory of overlays.
func (d Directory) Overlays() string { return filepath.Join(d.Path, "overlays") }

// Load returns the newest copy that is whole; the zero State if it was never written. With
// ErrDamaged the State is zero too: the package's program can be started.
func (d Directory) Load() (State, error) {
	var newest State
	found, damaged := false, false
	for _, file := range d.copies() {
		raw, err := d.Disk.ReadFile(file)
		if err != nil {
			damaged = damaged || !errors.Is(err, fs.ErrNotExist)
			continue
		}
		s, err := Decode(raw)
		if err != nil {
			damaged = true
			continue
		}
		if !found || s.Generation > newest.Generation {
			newest, found = s, true
		}
	}
	if !found && damaged {
		return State{}, ErrDamaged
	}
	return newest, nil
}

// Save keeps a state: when it returns nil, both copies are on the disk. After an error either the
// old state or the new one is read.
func (d Directory) Save(s State) (State, error) {
	s.Generation++
	raw, err := Encode(s)
	if err != nil {
		return s, err
	}
	if err := d.Disk.MkdirAll(d.Path, 0o700); err != nil {
		return s, fmt.Errorf("keeping the state of skerry-launch: %w", err)
	}
	for _, file := range d.copies() {
		if err := d.replace(file, raw); err != nil {
			return s, fmt.Errorf("keeping the state of skerry-launch: %w", err)
		}
	}
	return s, nil
}

func (d Directory) replace(file string, data []byte) error {
	next := file + ".next"
	if err := d.Disk.WriteFile(next, data, 0o600); err != nil {
		return err
	}
	if err := d.Disk.Sync(next); err != nil {
		return err
	}
	if err := d.Disk.Rename(next, file); err != nil {
		return err
	}
	return d.Disk.Sync(filepath.Dir(file))
}

// Install moves a program that is whole, synced and executable into a slot, which no program that
// may be started is in.
func (d Directory) Install(from string, slot Slot) error {
	to := d.Program(slot)
	dir := filepath.Dir(to)
	if err := d.Disk.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("making slot %s: %w", slot, err)
	}
	if err := d.Disk.Sync(from); err != nil {
		return fmt.Errorf("syncing a program: %w", err)
	}
	if err := d.Disk.Rename(from, to); err != nil {
		return fmt.Errorf("filling slot %s: %w", slot, err)
	}
	for _, dir := range []string{dir, d.Path} {
		if err := d.Disk.Sync(dir); err != nil {
			return fmt.Errorf("syncing slot %s: %w", slot, err)
		}
	}
	return nil
}

// WriteOverlay keeps an overlay of the configuration and returns its name, which is its hash.
func (d Directory) WriteOverlay(data []byte) (string, error) {
	sum := sha256.Sum256(data)
	name := hex.EncodeToString(sum[:])
	if err := d.Disk.MkdirAll(d.Overlays(), 0o700); err != nil {
		return "", fmt.Errorf("keeping an overlay: %w", err)
	}
	if err := d.replace(filepath.Join(d.Overlays(), name), data); err != nil {
		return "", fmt.Errorf("keeping an overlay: %w", err)
	}
	return name, nil
}

// CleanOverlays removes the overlays that no program of a state has.
func (d Directory) CleanOverlays(s State) error {
	entries, err := os.ReadDir(d.Overlays())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("removing overlays: %w", err)
	}
	used := map[string]bool{s.Confirmed.Overlay: true}
	if s.Trial != nil {
		used[s.Trial.Program.Overlay] = true
	}
	if s.Former != nil {
		used[s.Former.Program.Overlay] = true
	}
	var errs []error
	for _, e := range entries {
		if !used[e.Name()] {
			errs = append(errs, os.Remove(filepath.Join(d.Overlays(), e.Name())))
		}
	}
	return errors.Join(errs...)
}

// ReadOverlay returns an overlay that is whole.
func (d Directory) ReadOverlay(name string) ([]byte, error) {
	data, err := d.Disk.ReadFile(filepath.Join(d.Overlays(), filepath.Base(name)))
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != name {
		return nil, fmt.Errorf("overlay %.12s is damaged", name)
	}
	return data, nil
}

// Encode is a copy of the state as a file.
func Encode(s State) ([]byte, error) {
	body, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("writing the state of skerry-launch: %w", err)
	}
	sum := sha256.Sum256(body)
	return fmt.Appendf(nil, "%s\n%x\n%s\n", magic, sum, body), nil
}

// Decode reads a copy.
func Decode(raw []byte) (State, error) {
	var s State
	if len(raw) > maxState {
		return s, fmt.Errorf("%d bytes, at most %d may be", len(raw), maxState)
	}
	parts := bytes.SplitN(raw, []byte("\n"), 3)
	if len(parts) != 3 || string(parts[0]) != magic {
		return s, errors.New("it does not begin with " + magic)
	}
	body, whole := bytes.CutSuffix(parts[2], []byte("\n"))
	sum := sha256.Sum256(body)
	if !whole || hex.EncodeToString(sum[:]) != string(parts[1]) {
		return s, errors.New("its checksum is another")
	}
	if err := json.Unmarshal(body, &s); err != nil {
		return State{}, err
	}
	programs := []Program{s.Confirmed}
	if s.Trial != nil {
		programs = append(programs, s.Trial.Program)
	}
	if s.Former != nil {
		programs = append(programs, s.Former.Program)
	}
	for _, p := range programs {
		if p.Slot != Package && p.Slot != A && p.Slot != B {
			return State{}, fmt.Errorf("there is no slot %q", p.Slot)
		}
	}
	return s, nil
}
