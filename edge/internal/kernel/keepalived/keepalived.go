// Package keepalived elects, by VRRP (RFC 5798), which node of a LAN holds a virtual IP: it runs Debian's keepalived as a child process.
//
// It owns the process, the directory with its configuration, FIFO, pid files and tracked files, and the addresses that its configuration names, on whose
// interfaces it finds and removes what a killed keepalived left behind. It refuses a configuration that keepalived's own test refuses, since a reload of a bad one
// ends the daemon and leaves its addresses standing. A user's own sections are included as they were when they last passed that test. Everything is in a directory
// below /run: nothing is written to flash. The process survives the supervisor, so that a restart of edgecore moves no address; the next supervisor takes it over.
//
// Run is called once. The other methods may be called from any goroutine.
package keepalived

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// Config says where things are.
type Config struct {
	// Dir holds everything; it should be on a file system of memory, such as /run/skerry/keepalived.
	Dir string
	// Extra is a file with the user's own sections of keepalived.conf(5), which may be missing; "" for none. It must not contain global_defs.
	Extra string
	// Program is keepalived; default: found in PATH.
	Program string
}

// Instance is one election, with one address.
type Instance struct {
	Name      string // letters, digits, dots, dashes and underscores; unique
	Interface string
	VRID      uint8
	Priority  uint8 // 1 to 254
	Advert    time.Duration
	Preempt   bool // take the address back from a lower priority
	Address   netip.Addr
}

// State is what this node is in an election.
type State string

// The states, as keepalived names them. Unknown: no word from keepalived yet.
const (
	Unknown State = ""
	Master  State = "MASTER"
	Backup  State = "BACKUP"
	Fault   State = "FAULT"
	Stop    State = "STOP"
)

const (
	// grace is how long keepalived has to end by itself: it tells the others (0.5 s) and removes its addresses.
	grace      = 5 * time.Second
	backoffMin = 500 * time.Millisecond
	backoffMax = 30 * time.Second
	// sweepEvery is how often addresses are looked for that should be gone.
	sweepEvery = 2 * time.Second
	// testTimeout bounds keepalived's own test of a configuration.
	testTimeout = 20 * time.Second
)

// Daemon is a supervised keepalived.
type Daemon struct {
	// Set by New, never changed.
	cfg     Config
	wake    chan struct{} // something was applied
	changed chan struct{} // a state changed

	mu      sync.Mutex // held over a whole Apply
	applied bool       // Apply has worked once: before, a keepalived of an earlier run is left alone
	wanted  bool
	file    []byte // the configuration on disk
	proc    *process
	extra   error // why the user's sections are not as they are in the file

	statesMu sync.Mutex
	names    map[string]netip.Addr
	states   map[string]State
	restarts uint64
}

// New makes a Daemon. It starts nothing and touches no file.
func New(cfg Config) *Daemon {
	if cfg.Program == "" {
		cfg.Program = "keepalived"
	}
	return &Daemon{cfg: cfg, wake: make(chan struct{}, 1), changed: make(chan struct{}, 1), names: map[string]netip.Addr{}, states: map[string]State{}}
}

func (d *Daemon) path(name string) string { return filepath.Join(d.cfg.Dir, name) }

// Names of files in Config.Dir.
const (
	fileConfig = "keepalived.conf"
	fileTest   = "test.conf"
	fileExtra  = "extra.conf"
	filePID    = "keepalived.pid"
	fileVRRP   = "vrrp.pid"
	fileFIFO   = "notify"
	fileCheck  = "check.log"
	fileOwned  = "owned"
	dirReady   = "ready"
)

// Changed tells that States may differ from what it was. It is level-triggered: several changes may be told once.
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

// Restarts is how often keepalived had to be started again.
func (d *Daemon) Restarts() uint64 {
	d.statesMu.Lock()
	defer d.statesMu.Unlock()
	return d.restarts
}

// ExtraProblem is why the user's sections are not in force as they stand, or nil.
func (d *Daemon) ExtraProblem() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.extra
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// SetReady says whether this node may hold an instance's address. keepalived watches the file: no reload is needed, and giving up is told to the others at once. An
// instance that was never said to be ready is not.
func (d *Daemon) SetReady(name string, ready bool) error {
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
		return fmt.Errorf("telling keepalived: %w", err)
	}
	return nil
}

// Apply makes keepalived hold exactly these elections. Unchanged instances don't notice. An error leaves everything as it was.
func (d *Daemon) Apply(ctx context.Context, instances []Instance) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	instances = slices.Clone(instances)
	slices.SortFunc(instances, func(a, b Instance) int { return strings.Compare(a.Name, b.Name) })
	if err := os.MkdirAll(d.path(dirReady), 0o755); err != nil {
		return fmt.Errorf("making keepalived's directory: %w", err)
	}
	for _, i := range instances {
		if err := d.initReady(i.Name); err != nil {
			return err
		}
	}
	own := render(d.cfg, instances)
	extra, err := d.readExtra()
	if err != nil {
		return err
	}
	file, err := d.compose(ctx, own, extra, len(instances) > 0)
	if err != nil {
		return err
	}
	d.wanted = len(instances) > 0 || len(extra) > 0
	if err := d.own(instances); err != nil {
		return err
	}
	d.name(instances)
	d.applied = true
	if bytes.Equal(file, d.file) {
		if d.proc == nil && d.wanted {
			poke(d.wake)
		}
		return nil
	}
	if err := writeFile(d.path(fileConfig), file); err != nil {
		return err
	}
	d.file = file
	if d.proc == nil || !d.wanted {
		poke(d.wake)
		return nil
	}
	return d.proc.reload()
}

// name takes over which instances there are.
func (d *Daemon) name(instances []Instance) {
	d.statesMu.Lock()
	defer d.statesMu.Unlock()
	names := map[string]netip.Addr{}
	for _, i := range instances {
		names[i.Name] = i.Address
	}
	for n := range d.states {
		if _, ok := names[n]; !ok {
			delete(d.states, n)
			_ = os.Remove(filepath.Join(d.path(dirReady), n)) // a leftover does no harm
		}
	}
	d.names = names
}

func (d *Daemon) initReady(name string) error {
	if _, err := os.Stat(filepath.Join(d.path(dirReady), name)); err == nil {
		return nil
	}
	return d.SetReady(name, false)
}

func (d *Daemon) readExtra() ([]byte, error) {
	if d.cfg.Extra == "" {
		return nil, nil
	}
	b, err := os.ReadFile(d.cfg.Extra)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the user's sections: %w", err)
	}
	return b, nil
}

// compose makes the file that will be in force and puts the user's sections, as they are tested, beside it.
func (d *Daemon) compose(ctx context.Context, own, extra []byte, needed bool) ([]byte, error) {
	d.extra = nil
	if len(extra) == 0 {
		if !needed {
			return own, nil
		}
		if bytes.Equal(own, d.file) {
			return own, nil
		}
		return own, d.test(ctx, own)
	}
	with := slices.Concat(own, []byte("\n# The user's own sections, from "+d.cfg.Extra+"\n"), extra)
	if bytes.Equal(with, d.file) {
		return with, nil
	}
	wrong := d.test(ctx, with)
	if wrong == nil {
		return with, writeFile(d.path(fileExtra), extra)
	}
	d.extra = fmt.Errorf("%s: %w", d.cfg.Extra, wrong)
	// As they were when they were last good; else without.
	if good, err := os.ReadFile(d.path(fileExtra)); err == nil {
		with = slices.Concat(own, []byte("\n# The user's own sections, as they last passed the test\n"), good)
		if bytes.Equal(with, d.file) || d.test(ctx, with) == nil {
			return with, nil
		}
	}
	if bytes.Equal(own, d.file) {
		return own, nil
	}
	return own, d.test(ctx, own)
}

// test lets keepalived judge a configuration, in the network namespace where it is to run: a reload of a bad one is dangerous (VRID out of range or a missing
// interface: the daemon ends and leaves its addresses behind; nonsense: it drops all).
func (d *Daemon) test(ctx context.Context, conf []byte) error {
	path := d.path(fileTest)
	if err := writeFile(path, conf); err != nil {
		return err
	}
	defer os.Remove(path)
	ctx, cancel := context.WithTimeout(ctx, testTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, d.cfg.Program, "-t", "-f", path).CombinedOutput()
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("testing keepalived's configuration: %w", context.Cause(ctx))
	}
	if errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf("there is no %s on this device (apt-get install keepalived): %w", d.cfg.Program, err)
	}
	return fmt.Errorf("keepalived refuses the configuration: %w: %s", err, complaint(out, path))
}

// complaint is what keepalived said, without what it always says.
func complaint(out []byte, path string) string {
	var words []string
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSpace(strings.ReplaceAll(line, path, "line"))
		if line != "" && !strings.Contains(line, "SECURITY VIOLATION") {
			words = append(words, line)
		}
	}
	if len(words) > 5 {
		words = words[:5]
	}
	return strings.Join(words, "; ")
}

// render writes the configuration. Instances are in order, so that the same ones give the same file.
func render(cfg Config, instances []Instance) []byte {
	var b bytes.Buffer
	// script_user comes first: with vrrp_notify_fifo before it keepalived 2.2.7 may crash on a reload. A change of global_defs means a restart to be safe, so
	// they depend on nothing but the directory.
	fmt.Fprintf(&b, `# Made by edgecore. Your own sections belong into %s.
global_defs {
    script_user root
    router_id skerry
    vrrp_version 3
    vrrp_garp_master_refresh 60
    vrrp_garp_master_repeat 3
    vrrp_garp_lower_prio_repeat 3
    vrrp_notify_fifo %s
    reload_check_config %s
}
`, orNone(cfg.Extra), filepath.Join(cfg.Dir, fileFIFO), filepath.Join(cfg.Dir, fileCheck))
	for _, i := range instances {
		track := "ready_" + i.Name
		fmt.Fprintf(&b, `
track_file %s {
    file %s
    weight 0
}
vrrp_instance %s {
    state BACKUP
    interface %s
    virtual_router_id %d
    priority %d
    advert_int %s
`, track, filepath.Join(cfg.Dir, dirReady, i.Name), i.Name, i.Interface, i.VRID, i.Priority, strconv.FormatFloat(i.Advert.Seconds(), 'f', -1, 64))
		if !i.Preempt {
			b.WriteString("    nopreempt\n")
		}
		fmt.Fprintf(&b, `    track_file {
        %s
    }
    virtual_ipaddress {
        %s dev %s
    }
}
`, track, netip.PrefixFrom(i.Address, i.Address.BitLen()), i.Interface)
	}
	return b.Bytes()
}

func orNone(s string) string {
	if s == "" {
		return "another keepalived"
	}
	return s
}

// writeFile replaces a file at once: a reader sees the old one or the new one.
func writeFile(path string, data []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	_, err = tmp.Write(data)
	err = errors.Join(err, tmp.Chmod(0o644), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		_ = os.Remove(tmp.Name())
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}

// Run supervises until ctx ends. It then ends keepalived, which hands its addresses over.
func (d *Daemon) Run(ctx context.Context) error {
	log := klog.FromContext(ctx)
	if err := os.MkdirAll(d.path(dirReady), 0o755); err != nil {
		return fmt.Errorf("making keepalived's directory: %w", err)
	}
	reader, err := d.openFIFO()
	if err != nil {
		return err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.readFIFO(log, reader)
	}()
	defer func() {
		reader.Close()
		<-done
	}()
	return d.supervise(ctx)
}

func (d *Daemon) supervise(ctx context.Context) error {
	log := klog.FromContext(ctx)
	sweep := time.NewTicker(sweepEvery)
	defer sweep.Stop()
	backoff := backoffMin
	var again <-chan time.Time // set while it backs off
	for {
		ended := d.ended()
		select {
		case <-ctx.Done():
			return d.end(log)
		case <-again:
			again = nil
			poke(d.wake)
		case <-sweep.C:
			if err := d.sweep(false); err != nil {
				log.Error(err, "Removing addresses that should be gone failed; it is tried again")
			}
			if backoff > backoffMin && d.age() > time.Minute {
				backoff = backoffMin
			}
		case <-ended:
			log.Error(nil, "keepalived has ended by itself; its addresses are removed and it is started again", "in", backoff)
			d.buried()
			if err := d.sweep(true); err != nil {
				log.Error(err, "Removing what keepalived left behind failed; it is tried again")
			}
			again = time.After(backoff)
			backoff = min(2*backoff, backoffMax)
		case <-d.wake:
			if again != nil {
				continue // it starts when the time has come
			}
			if err := d.adjust(ctx); err != nil {
				log.Error(err, "Starting keepalived failed; it is tried again", "in", backoff)
				again = time.After(backoff)
				backoff = min(2*backoff, backoffMax)
			}
		}
	}
}

// adjust starts keepalived if it should run, and ends it if not.
func (d *Daemon) adjust(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	log := klog.FromContext(ctx)
	switch {
	case d.wanted && d.proc == nil:
		p, err := d.adopt()
		if err != nil {
			return err
		}
		if p != nil {
			log.Info("keepalived of an earlier run is taken over", "pid", p.pid)
			d.proc = p
			d.seedStates()
			return p.reload()
		}
		if err := d.sweepLocked(true); err != nil {
			log.Error(err, "Removing addresses of an earlier run failed; it is tried again")
		}
		if d.proc, err = d.start(log); err != nil {
			return err
		}
		log.Info("keepalived runs", "pid", d.proc.pid)
	case !d.wanted && d.proc == nil:
		// What an earlier run left, although nothing is wanted now.
		p, err := d.adopt()
		if p == nil || err != nil {
			return err
		}
		d.proc = p
		fallthrough
	case !d.wanted:
		p := d.proc
		d.proc = nil
		err := p.stop(log)
		d.removePIDFiles()
		return errors.Join(err, d.sweepLocked(true))
	}
	return nil
}

// Clear ends a keepalived that an earlier process left, and removes its addresses. It is for a Daemon that does not run.
func (d *Daemon) Clear(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, err := d.adopt()
	if err != nil {
		return err
	}
	if p == nil {
		d.killOrphans()
		return d.sweepLocked(true)
	}
	err = p.stop(klog.FromContext(ctx))
	d.removePIDFiles()
	return errors.Join(err, d.sweepLocked(true))
}

// end stops keepalived for good: the others are told and take over at once.
func (d *Daemon) end(log klog.Logger) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.applied {
		return nil
	}
	var err error
	if p := d.proc; p != nil {
		d.proc = nil
		err = p.stop(log)
		d.removePIDFiles()
	}
	return errors.Join(err, d.sweepLocked(true))
}

func (d *Daemon) ended() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.proc == nil {
		return nil
	}
	return d.proc.done
}

func (d *Daemon) age() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.proc == nil {
		return 0
	}
	return time.Since(d.proc.since)
}

// buried forgets a process that has ended, and ends its child if that one lives on.
func (d *Daemon) buried() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.proc = nil
	d.killOrphans()
	d.removePIDFiles()
	d.statesMu.Lock()
	d.restarts++
	clear(d.states)
	d.statesMu.Unlock()
	poke(d.changed)
}
