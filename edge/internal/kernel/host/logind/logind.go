// Package logind delays a shutdown of the device, for as long as systemd-logind allows, while work
// is completed: plain `reboot` and `poweroff`, the power button, unattended upgrades. It takes an
// inhibitor lock of mode delay (https://systemd.io/INHIBITOR_LOCKS).
//
// It owns the lock, its connection to the system bus, and one drop-in of logind.conf(5) that allows
// the lock to last for the requested time. It never blocks a shutdown permanently: logind continues
// after its InhibitDelayMaxSec. A device without logind or without a bus is served without it. Run
// works in the calling goroutine, and calls its functions there; ShuttingDown may be called from
// any.
package logind

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/rerun"
)

const (
	service = "org.freedesktop.login1"
	path    = dbus.ObjectPath("/org/freedesktop/login1")
	manager = service + ".Manager"
	signal  = "PrepareForShutdown"

	properties = "org.freedesktop.DBus.Properties"

	systemd        = "org.freedesktop.systemd1"
	systemdPath    = dbus.ObjectPath("/org/freedesktop/systemd1")
	systemdManager = systemd + ".Manager"
	unit           = "systemd-logind.service"

	// DropIn is the file that raises InhibitDelayMaxSec. Its name sorts after 99-kubelet.conf,
	// which a kubelet may have left: of files with the same setting the last one counts.
	DropIn = "/etc/systemd/logind.conf.d/99-skerry.conf"

	// SystemBus is where the bus of the device is (D-Bus specification, "System message bus").
	SystemBus = "unix:path=/run/dbus/system_bus_socket"

	// retry is the delay before the next attempt to connect to a missing or lost bus: many devices
	// have no bus.
	retry = 30 * time.Second
	// callTimeout bounds one call of logind.
	callTimeout = 10 * time.Second
	// askTimeout bounds ShuttingDown: a bus that hangs does not keep a kubelet from starting.
	askTimeout = 2 * time.Second
	// reloadTimeout is how long logind may take to read its configuration again, reloadPoll how
	// often it is looked whether it has.
	reloadTimeout = 3 * time.Second
	reloadPoll    = 100 * time.Millisecond
	// margin is subtracted from logind's limit, so that the lock is released in time.
	margin = 500 * time.Millisecond
	// defaultDelay is logind's limit if it does not report one: the default of InhibitDelayMaxSec,
	// logind.conf(5).
	defaultDelay = 5 * time.Second
	// signals is how many signals may wait. PrepareForShutdown is sent at most twice a shutdown; at
	// the bound the library delays later ones.
	signals = 8
)

// Config configures Run.
type Config struct {
	// Bus is the bus's address; default SystemBus.
	Bus string
	// Retry is the delay before the next attempt to connect to a missing bus; default 30 s.
	Retry time.Duration
	// Why is the reason shown by systemd-inhibit --list.
	Why string
	// Delay is how long a shutdown should wait for Prepare; 0: logind's limit. If that is lower,
	// DropIn raises it.
	Delay time.Duration
	// DropIn is the path of the file; default DropIn.
	DropIn string
	// Prepare is called before the device shuts down; the shutdown waits for it until ctx ends. It
	// is called again, without a lock, if the bus was lost since, or if this process was started
	// during a shutdown. Resume is called when the shutdown was cancelled; its error ends Run.
	Prepare func(ctx context.Context) error
	Resume  func(ctx context.Context) error
}

// ShuttingDown reports whether the device is shutting down. A device without logind or without a
// bus is not, as far as is known.
func ShuttingDown(ctx context.Context, bus string) bool {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	conn, err := dial(ctx, bus)
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	return preparing(ctx, conn.Object(service, path))
}

// dial connects to the bus, or to SystemBus where it is "".
func dial(ctx context.Context, bus string) (*dbus.Conn, error) {
	if bus == "" {
		bus = SystemBus
	}
	conn, err := dbus.Dial(bus, dbus.WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("dialling the system bus: %w", err)
	}
	if err := errors.Join(conn.Auth(nil), conn.Hello()); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("greeting the system bus: %w", err)
	}
	return conn, nil
}

// preparing is logind's PreparingForShutdown: from the announcement to the end.
func preparing(ctx context.Context, logind dbus.BusObject) bool {
	var v dbus.Variant
	if err := logind.CallWithContext(ctx, properties+".Get", dbus.FlagNoAutoStart, manager, "PreparingForShutdown").Store(&v); err != nil {
		return false
	}
	yes, ok := v.Value().(bool)
	return ok && yes
}

// Run holds the lock, and calls Prepare and Resume, until ctx ends or Resume fails.
func Run(ctx context.Context, c Config) error {
	if c.Retry <= 0 {
		c.Retry = retry
	}
	if c.DropIn == "" {
		c.DropIn = DropIn
	}
	log := klog.FromContext(ctx)
	logged := ""
	s := server{Config: c}
	for {
		err := s.serve(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if failed, ok := errors.AsType[*resumeError](err); ok {
			return failed.err
		}
		if text := err.Error(); text != logged { // once a cause: it may be so for as long as the device lives
			log.Info("Failed to delay shutdowns: systemd-logind is unavailable, retrying", "in", c.Retry, "err", err)
			logged = text
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(c.Retry):
		}
	}
}

// server is the state of one Run.
type server struct {
	Config
	down bool // Prepare was called, and Resume was not since
}

type resumeError struct{ err error }

func (e *resumeError) Error() string { return e.err.Error() }

// serve holds the lock for as long as the bus lives.
func (s *server) serve(ctx context.Context) error {
	conn, err := dial(ctx, s.Bus)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	match := []dbus.MatchOption{dbus.WithMatchObjectPath(path), dbus.WithMatchInterface(manager), dbus.WithMatchMember(signal), dbus.WithMatchSender(service)}
	if err := conn.AddMatchSignalContext(ctx, match...); err != nil {
		return fmt.Errorf("listening for %s: %w", signal, err)
	}
	heard := make(chan *dbus.Signal, signals)
	conn.Signal(heard)
	logind := conn.Object(service, path)
	var lock *os.File // nil: no lock is held
	defer func() { _ = lock.Close() }()
	switch down := preparing(ctx, logind); {
	case down: // logind gives out no more locks
		s.prepare(ctx, delay(logind))
	case s.down: // it was cancelled while the bus was lost
		if err := s.resume(ctx); err != nil {
			return err
		}
		fallthrough
	default:
		s.raise(ctx, conn, logind)
		if lock, err = s.inhibit(ctx, logind); err == nil {
			klog.FromContext(ctx).Info("Delaying shutdowns of the device", "atMost", delay(logind), "why", s.Why)
		} else if !preparing(ctx, logind) {
			return err
		} // else it was announced just now, and the signal waits
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case said, ok := <-heard:
			if !ok {
				return errors.New("lost the system bus")
			}
			if said.Name != manager+"."+signal || len(said.Body) != 1 {
				continue
			}
			if down, is := said.Body[0].(bool); is && down {
				s.prepare(ctx, delay(logind))
				_ = lock.Close() // the shutdown continues
			} else if is {
				if err := s.resume(ctx); err != nil {
					return err
				}
				_ = lock.Close()
				if lock, err = s.inhibit(ctx, logind); err != nil {
					return err
				}
			}
		}
	}
}

// raise has logind wait for as long as is wanted. Where that can't be, it waits for as long
// as it does.
func (s *server) raise(ctx context.Context, conn *dbus.Conn, logind dbus.BusObject) {
	if s.Delay <= delay(logind) {
		return
	}
	log := klog.FromContext(ctx)
	text := fmt.Sprintf("# Written by edgecore: how long a shutdown waits for the pods of this device.\n[Login]\nInhibitDelayMaxSec=%.0f\n", math.Ceil(s.Delay.Seconds()))
	err := os.MkdirAll(filepath.Dir(s.DropIn), 0o755)
	if err == nil {
		err = os.WriteFile(s.DropIn, []byte(text), 0o644)
	}
	if err == nil { // logind.conf(5) is read again at SIGHUP
		err = conn.Object(systemd, systemdPath).CallWithContext(ctx, systemdManager+".KillUnit", 0, unit, "main", int32(unix.SIGHUP)).Err
	}
	for end := time.Now().Add(reloadTimeout); err == nil && delay(logind) < s.Delay; {
		if time.Now().After(end) {
			err = errors.New("logind does not take the new value over; it does with the next boot")
		} else if wait := rerun.Pause(ctx, reloadPoll); wait != nil {
			return
		}
	}
	if err != nil {
		log.Error(err, "Failed to raise systemd-logind's limit of a shutdown's delay: pods may be killed early at a shutdown", "wanted", s.Delay, "is", delay(logind), "file", s.DropIn)
	}
}

// inhibit takes the lock. It lasts until the file is closed, or this process ends.
func (s *server) inhibit(ctx context.Context, logind dbus.BusObject) (*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var fd dbus.UnixFD
	if err := logind.CallWithContext(ctx, manager+".Inhibit", 0, "shutdown", "edgecore", s.Why, "delay").Store(&fd); err != nil {
		return nil, fmt.Errorf("taking an inhibitor lock: %w", err)
	}
	return os.NewFile(uintptr(fd), "inhibitor lock"), nil
}

// delay returns how long logind waits for holders of a lock.
func delay(logind dbus.BusObject) time.Duration {
	v, err := logind.GetProperty(manager + ".InhibitDelayMaxUSec")
	if us, ok := v.Value().(uint64); err == nil && ok && us > 0 && us < uint64(time.Hour/time.Microsecond) {
		return time.Duration(us) * time.Microsecond
	}
	return defaultDelay
}

func (s *server) prepare(ctx context.Context, limit time.Duration) {
	log := klog.FromContext(ctx)
	log.Info("Device is shutting down", "delayedAtMost", limit)
	s.down = true
	ctx, cancel := context.WithTimeout(ctx, max(limit-margin, limit/2))
	defer cancel()
	if err := s.Prepare(ctx); err != nil {
		log.Error(err, "Failed to prepare completely for the shutdown, which continues")
	}
}

func (s *server) resume(ctx context.Context) error {
	klog.FromContext(ctx).Info("Shutdown of the device was cancelled")
	s.down = false
	if err := s.Resume(ctx); err != nil {
		return &resumeError{err}
	}
	return nil
}
