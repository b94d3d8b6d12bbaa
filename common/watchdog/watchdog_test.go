package watchdog_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/skerry-io/skerry/common/health"
	"github.com/skerry-io/skerry/common/notifytest"
	"github.com/skerry-io/skerry/common/watchdog"
)

// run runs a Watchdog; stop ends it and returns its result.
func run(t *testing.T, live map[string]health.Check) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	w, err := watchdog.New()
	if err != nil {
		t.Fatal(err)
	}
	if live != nil {
		w.Watch(live)
	}
	go func() { done <- w.Run(ctx) }()
	return func() error { cancel(); return <-done }
}

// systemd is notified of a healthy cloudcore again and again, and not while a check fails: the next
// message comes only after the check has been made to pass.
func TestWatchdog(t *testing.T) {
	l := notifytest.New(t)
	l.Watch(30 * time.Millisecond)
	var ill atomic.Bool
	looked := make(chan bool, 1000)
	stop := run(t, map[string]health.Check{"modules": func() error {
		bad := ill.Load()
		select {
		case looked <- bad:
		default:
		}
		if bad {
			return errors.New("a module has failed")
		}
		return nil
	}})
	for range 3 {
		if got := l.Hear(); got != "WATCHDOG=1" {
			t.Fatalf("%q, want WATCHDOG=1", got)
		}
	}
	ill.Store(true)
	for !<-looked {
	}
	// The notification of the check before may still come. One after this mark was sent while
	// unhealthy.
	<-looked
	l.Mark("mark")
	for range 3 {
		<-looked
	}
	l.Mark("mark")
	for l.Hear() != "mark" {
	}
	if got := l.Hear(); got != "mark" {
		t.Errorf("%q while a check failed", got)
	}
	ill.Store(false)
	if got := l.Hear(); got != "WATCHDOG=1" {
		t.Errorf("%q when it was well again", got)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// A program that is executed in the place of the process has its watchdog.
func TestPassOn(t *testing.T) {
	l := notifytest.New(t)
	l.Watch(time.Millisecond)
	w, err := watchdog.New()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.PassOn(); err != nil {
		t.Fatal(err)
	}
	stop := run(t, nil) // it reads the environment as that program does
	if got := l.Hear(); got != "WATCHDOG=1" {
		t.Errorf("%q, want WATCHDOG=1", got)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// Without systemd's watchdog, or with one of another process, Run only waits; a wrong time is an
// error.
func TestNoWatchdog(t *testing.T) {
	for name, set := range map[string]func(t *testing.T){
		"none":               func(t *testing.T) { t.Setenv("WATCHDOG_USEC", "") },
		"of another process": func(t *testing.T) { t.Setenv("WATCHDOG_PID", "1") },
	} {
		t.Run(name, func(t *testing.T) {
			l := notifytest.New(t)
			l.Watch(time.Millisecond)
			set(t)
			if err := run(t, nil)(); err != nil {
				t.Error(err)
			}
			l.Mark("mark")
			if got := l.Hear(); got != "mark" {
				t.Errorf("systemd heard %q", got)
			}
		})
	}
	t.Setenv("WATCHDOG_USEC", "soon")
	if _, err := watchdog.New(); err == nil {
		t.Error("no error with WATCHDOG_USEC=soon")
	}
}
