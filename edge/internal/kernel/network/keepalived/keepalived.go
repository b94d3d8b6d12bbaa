// Package keepalived elects, by VRRP (RFC 5798), which node of a LAN holds a virtual IP: it runs
// Debian's keepalived as a child process.
//
// It owns the process, the directory with its configuration, FIFO, pid files and tracked files, and
// the addresses that its configuration names, on whose interfaces it finds and removes the
// addresses left by a killed keepalived. It refuses a configuration that keepalived's own test
// refuses, since a reload of a bad one ends the daemon and leaves its addresses standing. A user's
// own sections are included as they were when they last passed that test. All files are in a
// directory below /run, not on flash. The process survives the supervisor, so that a restart of
// edgecore moves no address; the next supervisor takes it over.
//
// Run is called once. The other methods may be called from any goroutine.
package keepalived

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/skerry-io/skerry/common/atomicfile"
)

// Changed signals that States may have changed. It is level-triggered: several changes may be
// signalled once.
func (d *Daemon) Changed() <-chan struct{} { return d.changed }

// States are the states of all instances.
func (d *Daemon) States() map[string]State {
	d.statesMu.Lock()
	defer d.statesMu.Unlock()
	out := make(map[string]State, len(d.names))
	for n := range d.names {
		out[n] = d.states[n]
	}
	return out
}

// Problems returns the errors of skipped instances of the last Apply, by name.
func (d *Daemon) Problems() map[string]error {
	d.statesMu.Lock()
	defer d.statesMu.Unlock()
	return maps.Clone(d.problems)
}

// Restarts is how often keepalived had to be started again.
func (d *Daemon) Restarts() uint64 {
	d.statesMu.Lock()
	defer d.statesMu.Unlock()
	return d.restarts
}

// ExtraProblem returns why the user's sections are not in force in their current form, or nil.
func (d *Daemon) ExtraProblem() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.extra
}

// SetReady sets whether this node may hold an instance's address. keepalived watches the file: no
// reload is needed, and giving up is announced to the others at once. An instance is not ready
// before a call of SetReady.
func (d *Daemon) SetReady(name string, ready bool) error {
	if !plainName.MatchString(name) {
		return fmt.Errorf("%.40q can't be the name of an instance", name)
	}
	value := []byte("1\n") // anything but 0 is a fault, with weight 0
	if ready {
		value = []byte("0\n")
	}
	path := filepath.Join(d.path(dirReady), name)
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, value) {
		return nil
	}
	if err := os.MkdirAll(d.path(dirReady), 0o755); err != nil {
		return fmt.Errorf("making the directory of tracked files: %w", err)
	}
	// Written in place: keepalived watches this inode.
	if err := os.WriteFile(path, value, 0o644); err != nil {
		return fmt.Errorf("notifying keepalived: %w", err)
	}
	return nil
}

// Apply makes keepalived hold exactly these elections. Unchanged instances are not affected. An
// invalid instance is skipped and reported by Problems; the others are held nevertheless. After an
// error the state is unchanged.
func (d *Daemon) Apply(ctx context.Context, instances []Instance) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	instances, problems := valid(instances, d.inForce())
	if err := os.MkdirAll(d.path(dirReady), 0o755); err != nil {
		return fmt.Errorf("making keepalived's directory: %w", err)
	}
	for _, i := range instances {
		if err := d.initReady(i.Name); err != nil {
			return err
		}
	}
	extra, err := d.readExtra()
	if err != nil {
		return err
	}
	file, instances, refused, err := d.compose(ctx, instances, extra)
	if err != nil {
		return err
	}
	maps.Copy(problems, refused)
	d.wanted = len(instances) > 0 || len(extra) > 0
	if err := d.own(instances); err != nil {
		return err
	}
	d.name(instances, problems)
	d.applied = true
	if bytes.Equal(file, d.file) {
		if d.proc == nil && d.wanted {
			poke(d.wake)
		}
		return nil
	}
	if err := atomicfile.Write(d.path(fileConfig), file, secret); err != nil {
		return err
	}
	d.file = file
	if d.proc == nil || !d.wanted {
		poke(d.wake)
		return nil
	}
	return d.proc.reload()
}

// inForce reports which instances are held.
func (d *Daemon) inForce() func(name string) bool {
	d.statesMu.Lock()
	defer d.statesMu.Unlock()
	names := maps.Clone(d.names)
	return func(name string) bool { return names[name] != nil }
}

// name takes over which instances there are.
func (d *Daemon) name(instances []Instance, problems map[string]error) {
	d.statesMu.Lock()
	defer d.statesMu.Unlock()
	names := map[string][]netip.Addr{}
	for _, i := range instances {
		names[i.Name] = i.addresses()
	}
	for n := range d.states {
		if _, ok := names[n]; !ok {
			delete(d.states, n)
			_ = os.Remove(filepath.Join(d.path(dirReady), n)) // a leftover does no harm
		}
	}
	d.names, d.problems = names, problems
}

func (d *Daemon) initReady(name string) error {
	if _, err := os.Stat(filepath.Join(d.path(dirReady), name)); err == nil {
		return nil
	}
	return d.SetReady(name, false)
}
