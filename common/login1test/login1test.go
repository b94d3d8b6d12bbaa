// Package login1test stands for systemd-logind where no systemd runs: org.freedesktop.login1 on a
// real dbus-daemon of its own, as far as a shutdown needs it. It implements inhibitor locks of mode
// delay as described in https://systemd.io/INHIBITOR_LOCKS, org.freedesktop.login1(5) and
// logind.conf(5).
//
// Real is systemd's own logind on such a bus, where the machine has it. Its systemd is a fake,
// which begins the job of a reboot and leaves the device as it is.
//
// It owns the daemon, all locks, and the shutdown from its announcement until the locks are
// released; the rest is the caller's. It refuses locks while a shutdown is under way, and a second
// shutdown. A Login1 may be used from any goroutine.
package login1test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/godbus/dbus/v5/prop"
)

const (
	name    = "org.freedesktop.login1"
	manager = name + ".Manager"
	path    = dbus.ObjectPath("/org/freedesktop/login1")

	systemd        = "org.freedesktop.systemd1"
	systemdManager = systemd + ".Manager"
	systemdPath    = dbus.ObjectPath("/org/freedesktop/systemd1")

	inProgress = name + ".OperationInProgress"
)

// Options configure a Login1.
type Options struct {
	Socket string        // of the bus, below a directory that is made where it is missing
	Delay  time.Duration // InhibitDelayMaxSec, unless Conf sets it
	Conf   string        // the folder of drop-ins (logind.conf.d), "" without one: read at the start and when systemd is asked to send SIGHUP
	Log    func(text string)
	// Reboot is called, in a goroutine of its own, when a client asks for a reboot; nil: clients
	// can't.
	Reboot func()
}

// Login1 is a logind that serves.
type Login1 struct {
	bus
	options    Options
	properties *prop.Properties

	mu    sync.Mutex
	down  bool
	delay time.Duration
	locks []lock
	asked []string
}

// lock is a pipe: held is at its end once all copies of given are closed.
type lock struct {
	what        string
	held, given *os.File
}

// configuration lets any process that can reach the socket do anything on the bus.
const configuration = `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN" "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>custom</type>
  <listen>unix:path=SOCKET</listen>
  <auth>EXTERNAL</auth>
  <policy context="default"><allow send_destination="*"/><allow receive_sender="*"/><allow own="*"/><allow user="*"/></policy>
</busconfig>
`

// Start starts a bus with a logind on it.
func Start(o Options) (l *Login1, err error) {
	if o.Log == nil {
		o.Log = func(string) {}
	}
	l = &Login1{options: o}
	defer func() {
		if err != nil {
			l.Close()
		}
	}()
	if l.bus, err = startBus(o.Socket); err != nil {
		return nil, err
	}
	return l, l.serve()
}

// bus is a dbus-daemon, and a connection to it.
type bus struct {
	daemon *exec.Cmd
	conn   *dbus.Conn
}

// startBus starts one that listens at socket. It returns with an error what is to be closed too.
func startBus(socket string) (b bus, err error) {
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		return b, fmt.Errorf("making the folder of the bus: %w", err)
	}
	file := socket + ".conf"
	if err := os.WriteFile(file, []byte(strings.Replace(configuration, "SOCKET", socket, 1)), 0o600); err != nil {
		return b, fmt.Errorf("writing the configuration of the bus: %w", err)
	}
	daemon := exec.Command("dbus-daemon", "--config-file="+file, "--nofork", "--nopidfile", "--print-address=1")
	out, err := daemon.StdoutPipe()
	if err != nil {
		return b, err
	}
	if err := daemon.Start(); err != nil {
		return b, fmt.Errorf("starting dbus-daemon: %w", err)
	}
	b.daemon = daemon
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil { // once it listens
		return b, fmt.Errorf("waiting for dbus-daemon: %w", err)
	}
	if b.conn, err = dbus.Connect("unix:path=" + socket); err != nil {
		return b, fmt.Errorf("connecting to the bus: %w", err)
	}
	return b, nil
}

func (b bus) close() {
	if b.conn != nil {
		_ = b.conn.Close()
	}
	if b.daemon != nil {
		_ = b.daemon.Process.Kill()
		_ = b.daemon.Wait()
	}
}

func (l *Login1) serve() (err error) {
	export := func(of map[string]any, at dbus.ObjectPath, as string) error {
		return l.conn.ExportMethodTable(of, at, as)
	}
	l.properties, err = prop.Export(l.conn, path, prop.Map{manager: {
		"InhibitDelayMaxUSec":  {Value: uint64(l.options.Delay / time.Microsecond)},
		"PreparingForShutdown": {Value: false},
	}})
	if err != nil {
		return err
	}
	l.configure()
	if err := errors.Join(
		export(map[string]any{"Inhibit": l.inhibit, "Reboot": l.reboot}, path, manager),
		export(map[string]any{"KillUnit": l.killUnit}, systemdPath, systemdManager),
	); err != nil {
		return err
	}
	for _, n := range []string{systemd, name} {
		if _, err := l.conn.RequestName(n, dbus.NameFlagDoNotQueue); err != nil {
			return fmt.Errorf("taking the name %s: %w", n, err)
		}
	}
	return nil
}

// Bus is the bus's address.
func (l *Login1) Bus() string { return "unix:path=" + l.options.Socket }

// Close ends the bus.
func (l *Login1) Close() { l.close() }

// configure reads the drop-ins: of those that set InhibitDelayMaxSec the last one counts.
func (l *Login1) configure() {
	delay := l.options.Delay
	files, _ := filepath.Glob(filepath.Join(l.options.Conf, "*.conf")) // the pattern is right
	slices.Sort(files)
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(raw)) {
			if text, ok := strings.CutPrefix(strings.TrimSpace(line), "InhibitDelayMaxSec="); ok {
				if n, err := strconv.Atoi(text); err == nil {
					delay = time.Duration(n) * time.Second
				}
			}
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.delay = delay
	l.properties.SetMust(manager, "InhibitDelayMaxUSec", uint64(delay/time.Microsecond))
}

func (l *Login1) killUnit(unit, _ string, signal int32) *dbus.Error {
	if unit != "systemd-logind.service" || signal != 1 {
		return dbus.MakeFailedError(fmt.Errorf("%s is sent no signal %d here", unit, signal))
	}
	l.configure()
	return nil
}

func (l *Login1) inhibit(what, who, why, mode string) (dbus.UnixFD, *dbus.Error) {
	held, given, err := os.Pipe()
	if err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down {
		return 0, dbus.NewError(inProgress, []any{"a shutdown is under way"})
	}
	l.asked = append(l.asked, strings.Join([]string{what, who, why, mode}, " / "))
	l.locks = append(l.locks, lock{l.asked[len(l.asked)-1], held, given})
	l.options.Log("lock taken: " + l.asked[len(l.asked)-1])
	return dbus.UnixFD(given.Fd()), nil
}

func (l *Login1) reboot(bool) *dbus.Error {
	l.mu.Lock()
	down := l.down
	l.mu.Unlock()
	switch {
	case l.options.Reboot == nil:
		return dbus.MakeFailedError(errors.New("this device does not reboot"))
	case down:
		return dbus.NewError(inProgress, []any{"a shutdown is under way"})
	}
	go l.options.Reboot()
	return nil
}

// Asked are the locks that were taken so far, as `systemd-inhibit --list` has them.
func (l *Login1) Asked() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.asked)
}

// Announce announces that a shutdown begins, or that it was given up.
func (l *Login1) Announce(down bool) error {
	l.mu.Lock()
	l.down = down
	l.properties.SetMust(manager, "PreparingForShutdown", down)
	l.mu.Unlock()
	return l.conn.Emit(path, manager+".PrepareForShutdown", down)
}

// Released waits for the locks, for as long as logind does, and names those that are still held.
func (l *Login1) Released(ctx context.Context) (held []string) {
	l.mu.Lock()
	locks := l.locks
	end := time.Now().Add(l.delay)
	l.locks = nil
	l.mu.Unlock()
	if at, ok := ctx.Deadline(); ok && at.Before(end) {
		end = at
	}
	for _, k := range locks {
		_ = k.given.Close() // our copy, of a descriptor sent long ago
	}
	for _, k := range locks {
		began := time.Now()
		_ = k.held.SetReadDeadline(end)
		var b [1]byte
		if _, err := k.held.Read(b[:]); errors.Is(err, os.ErrDeadlineExceeded) {
			held = append(held, k.what)
		}
		l.options.Log(fmt.Sprintf("lock of %s: %v", k.what, time.Since(began).Round(time.Millisecond)))
		_ = k.held.Close()
	}
	return held
}

// Reboot asks the logind on a bus for a reboot, as `systemctl reboot` does. One that is under way
// is no error.
func Reboot(bus string) error {
	conn, err := dbus.Connect(bus)
	if err != nil {
		return fmt.Errorf("connecting to the bus: %w", err)
	}
	defer conn.Close()
	err = conn.Object(name, path).Call(manager+".Reboot", 0, false).Err
	if failed, ok := errors.AsType[dbus.Error](err); ok && failed.Name == inProgress {
		return nil
	}
	return err
}
