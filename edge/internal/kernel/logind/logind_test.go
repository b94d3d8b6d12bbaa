package logind_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/skerry-io/skerry/edge/internal/kernel/logind"
	"github.com/skerry-io/skerry/edge/internal/kernel/logind/logindtest"
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

// The lock is held until Prepare has ended, is taken again after a shutdown that was given up, and
// is given up in time where Prepare does not end.
func TestRun(t *testing.T) {
	l := logindtest.New(t, 20*time.Second)
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

// A device without a bus is tried again, and ends when it is to end.
func TestRun_NoBus(t *testing.T) {
	run(t, "unix:path="+t.TempDir()+"/none")
}
