package logind_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/skerry-io/skerry/edge/internal/kernel/host/logind"
	"github.com/skerry-io/skerry/edge/internal/kernel/host/logind/logindtest"
)

// run starts Run and reports its calls; each Prepare waits for goOn.
func run(t *testing.T, bus string) (calls chan string, goOn chan error) {
	t.Helper()
	calls, goOn = make(chan string), make(chan error)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- logind.Run(ctx, logind.Config{
			Bus: bus, Retry: 10 * time.Millisecond, Why: "hands over",
			Prepare: func(ctx context.Context) error {
				calls <- "prepare"
				select {
				case err := <-goOn:
					return err
				case <-ctx.Done():
					calls <- "out of time"
					return ctx.Err()
				}
			},
			Resume: func(context.Context) error { calls <- "resume"; return nil },
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return calls, goOn
}

func waitAsked(t *testing.T, l *logindtest.Logind, n int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); len(l.Asked()) < n; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d locks were taken, want %d", len(l.Asked()), n)
		}
	}
}

// The lock is held until Prepare has ended, is taken again after a cancelled shutdown, and is
// released in time if Prepare does not end.
func TestRun(t *testing.T) { shutdowns(t, logindtest.New) }

// The fake of tests behaves as systemd's does.
func TestRun_Fake(t *testing.T) { shutdowns(t, logindtest.NewFake) }

func shutdowns(t *testing.T, start func(testing.TB, time.Duration) *logindtest.Logind) {
	t.Helper()
	l := start(t, 20*time.Second)
	calls, goOn := run(t, l.Bus)
	waitAsked(t, l, 1)
	if diff := cmp.Diff([]string{"shutdown / edgecore / hands over / delay"}, l.Asked()); diff != "" {
		t.Errorf("the lock (-want +got):\n%s", diff)
	}
	for n := range 2 {
		l.Prepare(true)
		if call := <-calls; call != "prepare" {
			t.Fatalf("it called %s", call)
		}
		goOn <- []error{nil, errors.New("failed in part")}[n]
		l.Wait()
		l.Prepare(false)
		if call := <-calls; call != "resume" {
			t.Fatalf("it called %s", call)
		}
		waitAsked(t, l, n+2)
	}
}

func TestRun_OutOfTime(t *testing.T) {
	l := logindtest.New(t, 2*time.Second)
	calls, _ := run(t, l.Bus)
	waitAsked(t, l, 1)
	l.Prepare(true)
	for _, want := range []string{"prepare", "out of time"} {
		if call := <-calls; call != want {
			t.Fatalf("it called %s, want %s", call, want)
		}
	}
	l.Wait()
}

// logind's limit of a shutdown's delay is raised if necessary, by a file that survives a boot and
// is read after a kubelet's.
func TestRun_RaisesTheDelay(t *testing.T) {
	l := logindtest.New(t, 5*time.Second)
	file := filepath.Join(l.Conf, filepath.Base(logind.DropIn))
	for path, text := range map[string]string{"99-kubelet.conf": "[Login]\nInhibitDelayMaxSec=7\n"} {
		if err := errors.Join(os.MkdirAll(l.Conf, 0o755), os.WriteFile(filepath.Join(l.Conf, path), []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	limits := make(chan time.Duration)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- logind.Run(ctx, logind.Config{Bus: l.Bus, Delay: 90 * time.Second, DropIn: file, Prepare: func(ctx context.Context) error {
			end, _ := ctx.Deadline()
			limits <- time.Until(end)
			return nil
		}})
	}()
	waitAsked(t, l, 1)
	l.Prepare(true)
	if limit := <-limits; limit < 60*time.Second {
		t.Errorf("the shutdown is delayed for %v at most, want nearly 90 s", limit)
	}
	l.Wait()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A process that is started during a shutdown learns of it, and of its end; an error of Resume ends
// Run.
func TestRun_StartedDuringAShutdown(t *testing.T) {
	l := logindtest.New(t, 20*time.Second)
	if logind.ShuttingDown(t.Context(), l.Bus) {
		t.Error("before: it shuts down")
	}
	l.Prepare(true)
	if !logind.ShuttingDown(t.Context(), l.Bus) {
		t.Error("it does not shut down")
	}
	prepared, cancelled := make(chan struct{}), errors.New("again")
	done := make(chan error, 1)
	go func() {
		done <- logind.Run(t.Context(), logind.Config{
			Bus: l.Bus, Prepare: func(context.Context) error { close(prepared); return nil }, Resume: func(context.Context) error { return cancelled },
		})
	}()
	<-prepared
	l.Prepare(false)
	if err := <-done; !errors.Is(err, cancelled) {
		t.Errorf("it ended by %v", err)
	}
	if logind.ShuttingDown(t.Context(), "unix:path="+t.TempDir()+"/none") {
		t.Error("a device without a bus shuts down")
	}
}

// Without a bus the module retries, and ends with its context.
func TestRun_NoBus(t *testing.T) {
	run(t, "unix:path="+t.TempDir()+"/none")
}
