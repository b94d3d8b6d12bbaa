// Package logindtest gives a test a systemd-logind of its own (common/login1test): systemd's, with
// a fake of systemd itself, where the machine has one and the test is root; else a fake.
//
// It owns the bus and all locks; both go with the test. A Logind may be used from any goroutine.
package logindtest

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/skerry-io/skerry/common/login1test"
)

// Logind is the one of a test.
type Logind struct {
	// Bus is the bus's address.
	Bus string
	// Conf is its folder of drop-ins.
	Conf string

	t testing.TB
	l login1
}

// login1 is a logind, which a test may have reboot.
type login1 interface {
	Bus() string
	Asked() []string
	Announce(down bool) error
	Released(ctx context.Context) (held []string)
	Close()
}

// New starts a bus with a logind on it that waits delay for locks.
func New(t testing.TB, delay time.Duration) *Logind {
	t.Helper()
	if login1test.HasReal() {
		return start(t, delay, func(o login1test.Options) (login1, error) { return login1test.StartReal(o) })
	}
	return NewFake(t, delay)
}

// NewFake is New with the fake on any machine.
func NewFake(t testing.TB, delay time.Duration) *Logind {
	t.Helper()
	return start(t, delay, func(o login1test.Options) (login1, error) { return login1test.Start(o) })
}

func start(t testing.TB, delay time.Duration, do func(login1test.Options) (login1, error)) *Logind {
	t.Helper()
	dir, err := os.MkdirTemp("", "bus") // a socket's path is short: t.TempDir may not be
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	conf := filepath.Join(dir, "logind.conf.d")
	l, err := do(login1test.Options{Socket: filepath.Join(dir, "s"), Delay: delay, Conf: conf})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return &Logind{Bus: l.Bus(), Conf: conf, t: t, l: l}
}

// Asked are the locks that were taken so far, as `systemd-inhibit --list` has them.
func (l *Logind) Asked() []string { return l.l.Asked() }

// Prepare announces a shutdown, or its cancellation.
func (l *Logind) Prepare(down bool) {
	l.t.Helper()
	if err := l.l.Announce(down); err != nil {
		l.t.Fatal(err)
	}
}

// Boot is the device's next boot: logind prepares for no shutdown. A process that starts before it
// belongs to that shutdown.
func (l *Logind) Boot() {
	l.t.Helper()
	l.Prepare(false)
}

// Wait returns when all locks were released.
func (l *Logind) Wait() {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), time.Minute)
	defer cancel()
	if held := l.l.Released(ctx); len(held) > 0 {
		l.t.Fatalf("not given up: %q", held)
	}
}
