package login1test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/godbus/dbus/v5/prop"
)

const (
	program = "/lib/systemd/systemd-logind"

	rebootUnit = "reboot.target"
	rebootPath = dbus.ObjectPath("/org/freedesktop/systemd1/unit/reboot_2etarget")
	rebootJob  = dbus.ObjectPath("/org/freedesktop/systemd1/job/1")

	// poll is the interval of questions to logind, patience the bound of their number.
	poll     = 20 * time.Millisecond
	patience = time.Minute
)

// setUp gives logind a /run and a configuration of its own: $1 is the folder of drop-ins, $2 its
// InhibitDelayMaxSec in microseconds.
const setUp = `mount --make-rprivate / && mount -t tmpfs run /run && mkdir -p /run/systemd/system /run/systemd/logind.conf.d /run/udev &&
mount --bind "$1" /run/systemd/logind.conf.d && mount -t tmpfs etc /etc/systemd &&
printf '[Login]\nInhibitDelayMaxSec=%sus\nReserveVT=0\nNAutoVTs=0\n' "$2" >/etc/systemd/logind.conf && exec ` + program

// Real is a systemd-logind that serves. It may be used from any goroutine.
type Real struct {
	bus
	options Options
	logind  *exec.Cmd
	ended   chan struct{} // logind has

	mu      sync.Mutex
	begun   chan struct{} // closed once the job of a reboot has begun
	present []string      // locks since then
	asked   []string
}

// HasReal reports whether the machine has a systemd-logind that this process may start.
func HasReal() bool {
	_, err := os.Stat(program)
	return err == nil && os.Getuid() == 0
}

// StartReal starts a bus with systemd's logind on it, in a mount namespace of its own. Of the
// options Reboot and Log are not used.
func StartReal(o Options) (r *Real, err error) {
	r = &Real{options: o, begun: make(chan struct{})}
	defer func() {
		if err != nil {
			r.Close()
		}
	}()
	if r.bus, err = startBus(o.Socket); err != nil {
		return nil, err
	}
	if err := r.serveSystemd(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(o.Conf, 0o755); err != nil {
		return nil, fmt.Errorf("making the folder of drop-ins: %w", err)
	}
	logind := exec.Command("sh", "-c", setUp, "logind", o.Conf, fmt.Sprint(o.Delay.Microseconds()))
	var log strings.Builder
	logind.Env = append(os.Environ(), "DBUS_SYSTEM_BUS_ADDRESS="+r.Bus(), "SYSTEMD_LOG_TARGET=console")
	logind.Stdout, logind.Stderr = &log, &log
	logind.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	if err := logind.Start(); err != nil {
		return nil, fmt.Errorf("starting logind: %w", err)
	}
	r.logind, r.ended = logind, make(chan struct{})
	go func() { _ = logind.Wait(); close(r.ended) }()
	if err := r.until("logind to serve", func() bool { _, err := r.preparing(); return err == nil }); err != nil {
		r.Close()
		return nil, fmt.Errorf("%w: %s", err, log.String())
	}
	return r, nil
}

// serveSystemd answers as systemd's manager as far as logind asks for a reboot.
func (r *Real) serveSystemd() error {
	_, err := prop.Export(r.conn, rebootPath, prop.Map{systemd + ".Unit": {"LoadState": {Value: "loaded"}}})
	if err == nil {
		err = r.conn.ExportMethodTable(map[string]any{"Subscribe": func() *dbus.Error { return nil }, "StartUnit": r.startUnit, "KillUnit": r.killUnit}, systemdPath, systemdManager)
	}
	if err == nil {
		_, err = r.conn.RequestName(systemd, dbus.NameFlagDoNotQueue)
	}
	if err != nil {
		return fmt.Errorf("serving as systemd: %w", err)
	}
	return nil
}

func (r *Real) startUnit(unit, _ string) (dbus.ObjectPath, *dbus.Error) {
	if unit != rebootUnit {
		return "/", dbus.MakeFailedError(fmt.Errorf("%s is not started here", unit))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.begun:
	default:
		close(r.begun)
	}
	r.present = nil
	return rebootJob, nil
}

func (r *Real) killUnit(unit, _ string, signal int32) *dbus.Error {
	if unit != "systemd-logind.service" || syscall.Signal(signal) != syscall.SIGHUP {
		return dbus.MakeFailedError(fmt.Errorf("%s is sent no signal %d here", unit, signal))
	}
	if err := r.logind.Process.Signal(syscall.SIGHUP); err != nil {
		return dbus.MakeFailedError(err)
	}
	return nil
}

// until waits for a condition, while logind runs.
func (r *Real) until(what string, so func() bool) error {
	for end := time.Now().Add(patience); !so(); time.Sleep(poll) {
		select {
		case <-r.ended:
			return fmt.Errorf("waiting for %s: logind has ended", what)
		default:
		}
		if time.Now().After(end) {
			return fmt.Errorf("waiting for %s: it took more than %v", what, patience)
		}
	}
	return nil
}

func (r *Real) preparing() (yes bool, err error) {
	err = r.conn.Object(name, path).StoreProperty(manager+".PreparingForShutdown", &yes)
	return yes, err
}

// held are the locks that delay a shutdown now, as `systemd-inhibit --list` has them.
func (r *Real) held() (all []string) {
	var locks []struct {
		What, Who, Why, Mode string
		UID, PID             uint32
	}
	if err := r.conn.Object(name, path).Call(manager+".ListInhibitors", 0).Store(&locks); err != nil {
		return nil
	}
	for _, l := range locks {
		if l.Mode == "delay" {
			all = append(all, strings.Join([]string{l.What, l.Who, l.Why, l.Mode}, " / "))
		}
	}
	return all
}

// Bus is the bus's address.
func (r *Real) Bus() string { return "unix:path=" + r.options.Socket }

// Close ends logind and the bus.
func (r *Real) Close() {
	if r.logind != nil {
		_ = r.logind.Process.Kill()
		<-r.ended
	}
	r.close()
}

// Asked are the locks that were seen so far: logind grants none from the announcement of a shutdown
// to its end, so that a lock after it is a new one.
func (r *Real) Asked() []string {
	now := r.held()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range now {
		if !slices.Contains(r.present, l) {
			r.present, r.asked = append(r.present, l), append(r.asked, l)
		}
	}
	return slices.Clone(r.asked)
}

// Announce has logind reboot the device, or has systemd give the job up.
func (r *Real) Announce(down bool) error {
	if down {
		return Reboot(r.Bus())
	}
	if yes, err := r.preparing(); err != nil || !yes {
		return err
	}
	r.mu.Lock()
	begun := r.begun
	r.mu.Unlock()
	select {
	case <-begun:
	case <-time.After(patience):
		return errors.New("the reboot has no job that can be given up: a lock delays it")
	}
	r.mu.Lock()
	r.begun = make(chan struct{})
	r.mu.Unlock()
	// logind may hear of the end of a job before it has the answer that names it.
	return r.until("the reboot to be given up", func() bool {
		_ = r.conn.Emit(systemdPath, systemdManager+".JobRemoved", uint32(1), rebootJob, rebootUnit, "canceled")
		yes, err := r.preparing()
		return err == nil && !yes
	})
}

// Released waits until logind begins the reboot, and returns the locks that are held in spite of
// it.
func (r *Real) Released(ctx context.Context) []string {
	r.mu.Lock()
	begun := r.begun
	r.mu.Unlock()
	select {
	case <-begun:
	case <-ctx.Done():
	}
	return r.held()
}
