// Package logind holds up a shutdown of the device, for as long as systemd-logind allows, while
// something is brought to an end: plain `reboot` and `poweroff`, the power button, unattended
// upgrades. It takes an inhibitor lock of mode delay (https://systemd.io/INHIBITOR_LOCKS).
//
// It owns the lock and its connection to the system bus. It refuses nothing and never blocks a
// shutdown for good: logind goes on after its InhibitDelayMaxSec. A device without logind or
// without a bus is served without it. Run works in the calling goroutine, and calls its
// functions there.
package logind

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/godbus/dbus/v5"
	"k8s.io/klog/v2"
)

const (
	service = "org.freedesktop.login1"
	path    = dbus.ObjectPath("/org/freedesktop/login1")
	manager = service + ".Manager"
	signal  = "PrepareForShutdown"

	// SystemBus is where the bus of the device is (D-Bus specification, "System message bus").
	SystemBus = "unix:path=/run/dbus/system_bus_socket"

	// retry is how soon a bus that is not there, or went, is tried again: many devices have none.
	retry = 30 * time.Second
	// callTimeout bounds one call of logind.
	callTimeout = 10 * time.Second
	// margin is left of what logind allows, for the lock to be given up in time.
	margin = 500 * time.Millisecond
	// defaultDelay is what logind allows where it does not say: the default of InhibitDelayMaxSec,
	// logind.conf(5).
	defaultDelay = 5 * time.Second
	// signals is how many signals may wait. PrepareForShutdown comes twice a shutdown at most; at
	// the bound the library waits with later ones.
	signals = 8
)

// Config is what Run needs.
type Config struct {
	// Bus is the bus's address; default SystemBus.
	Bus string
	// Retry is how soon a bus that is not there is tried again; default 30 s.
	Retry time.Duration
	// Why says to a person (systemd-inhibit --list) what is delayed for.
	Why string
	// Prepare is called before the device shuts down; the shutdown waits for it until ctx ends.
	// Resume is called when the shutdown was given up.
	Prepare func(ctx context.Context) error
	Resume  func(ctx context.Context) error
}

// Run holds the lock, and calls Prepare and Resume, until ctx ends.
func Run(ctx context.Context, c Config) error {
	if c.Bus == "" {
		c.Bus = SystemBus
	}
	if c.Retry <= 0 {
		c.Retry = retry
	}
	log := klog.FromContext(ctx)
	logged := ""
	for {
		err := c.serve(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if text := err.Error(); text != logged { // once a cause: it may be so for as long as the device lives
			log.Info("Shutdowns are not delayed: systemd-logind can't be asked; it is tried again", "in", c.Retry, "err", err)
			logged = text
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(c.Retry):
		}
	}
}

// serve holds the lock for as long as the bus lives.
func (c Config) serve(ctx context.Context) error {
	conn, err := dbus.Dial(c.Bus, dbus.WithContext(ctx))
	if err != nil {
		return fmt.Errorf("dialling the system bus: %w", err)
	}
	defer func() { _ = conn.Close() }()
	if err := errors.Join(conn.Auth(nil), conn.Hello()); err != nil {
		return fmt.Errorf("greeting the system bus: %w", err)
	}
	match := []dbus.MatchOption{dbus.WithMatchObjectPath(path), dbus.WithMatchInterface(manager), dbus.WithMatchMember(signal), dbus.WithMatchSender(service)}
	if err := conn.AddMatchSignalContext(ctx, match...); err != nil {
		return fmt.Errorf("listening for %s: %w", signal, err)
	}
	heard := make(chan *dbus.Signal, signals)
	conn.Signal(heard)
	logind := conn.Object(service, path)
	lock, err := c.inhibit(ctx, logind)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	klog.FromContext(ctx).Info("Shutdowns of the device are delayed", "atMost", delay(logind), "why", c.Why)
	for {
		select {
		case <-ctx.Done():
			return nil
		case s, ok := <-heard:
			if !ok {
				return errors.New("the system bus has gone")
			}
			if s.Name != manager+"."+signal || len(s.Body) != 1 {
				continue
			}
			if down, is := s.Body[0].(bool); is && down {
				c.prepare(ctx, delay(logind))
				_ = lock.Close() // it goes on
			} else if is {
				if lock, err = c.resume(ctx, logind, lock); err != nil {
					return err
				}
			}
		}
	}
}

// inhibit takes the lock. It lasts until the file is closed, or this process ends.
func (c Config) inhibit(ctx context.Context, logind dbus.BusObject) (*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var fd dbus.UnixFD
	if err := logind.CallWithContext(ctx, manager+".Inhibit", 0, "shutdown", "edgecore", c.Why, "delay").Store(&fd); err != nil {
		return nil, fmt.Errorf("taking an inhibitor lock: %w", err)
	}
	return os.NewFile(uintptr(fd), "inhibitor lock"), nil
}

// delay is how long logind waits for those who hold a lock.
func delay(logind dbus.BusObject) time.Duration {
	v, err := logind.GetProperty(manager + ".InhibitDelayMaxUSec")
	if us, ok := v.Value().(uint64); err == nil && ok && us > 0 && us < uint64(time.Hour/time.Microsecond) {
		return time.Duration(us) * time.Microsecond
	}
	return defaultDelay
}

func (c Config) prepare(ctx context.Context, limit time.Duration) {
	log := klog.FromContext(ctx)
	log.Info("The device shuts down", "delayedAtMost", limit)
	ctx, cancel := context.WithTimeout(ctx, max(limit-margin, limit/2))
	defer cancel()
	if err := c.Prepare(ctx); err != nil {
		log.Error(err, "Preparing for the shutdown failed in part")
	}
}

// resume takes the lock again.
func (c Config) resume(ctx context.Context, logind dbus.BusObject, old *os.File) (*os.File, error) {
	log := klog.FromContext(ctx)
	log.Info("The shutdown of the device was cancelled")
	if err := c.Resume(ctx); err != nil {
		log.Error(err, "Resuming after a cancelled shutdown failed in part")
	}
	_ = old.Close()
	return c.inhibit(ctx, logind)
}
