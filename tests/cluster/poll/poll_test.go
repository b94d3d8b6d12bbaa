package poll_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/skerry-io/skerry/tests/cluster/poll"
)

// Of a minute, no question takes more than a fifth; a quick one is asked at the pace that was
// asked for, and one that hangs is asked again soon after.
func TestPauses(t *testing.T) {
	for _, tc := range []struct {
		name        string
		takes       time.Duration
		least, most int
	}{
		{"at once", 0, 120, 130},
		{"as long as a program takes to start", 300 * time.Millisecond, 35, 45},
		{"hung for a while", 10 * time.Second, 5, 6},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				asked := 0
				err := poll.Until(ctx, 500*time.Millisecond, func(context.Context) error {
					asked++
					time.Sleep(tc.takes)
					return errors.New("not yet")
				})
				if err == nil || asked < tc.least || asked > tc.most {
					t.Errorf("%v, asked %d times; want %d to %d", err, asked, tc.least, tc.most)
				}
			})
		})
	}
}

// The last answer counts, and not the one that the end cut off.
func TestLastError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		tries := 0
		err := poll.Until(ctx, time.Second, func(ctx context.Context) error {
			if tries++; tries == 1 {
				return errors.New("the store is closed")
			}
			<-ctx.Done()
			return ctx.Err()
		})
		if err == nil || err.Error() != "the store is closed" {
			t.Errorf("got %v", err)
		}
		if err := poll.Until(t.Context(), time.Second, func(context.Context) error {
			if tries++; tries < 5 {
				return errors.New("not yet")
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	})
}

// A failed is a test that fails without failing the one that runs.
type failed struct {
	testing.TB
	said string
}

func (f *failed) Fatalf(format string, args ...any) {
	f.said = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// A condition that never becomes true fails the test after the patience, with its name; one that
// does lets it continue.
func TestFails(t *testing.T) {
	for name, wait := range map[string]func(testing.TB, bool){
		"True": func(t testing.TB, is bool) { poll.True(t, "the lamp to be on", func() bool { return is }) },
		"Eventually": func(t testing.TB, is bool) {
			poll.Eventually(t, "the lamp to be on", func(context.Context) error {
				if !is {
					return errors.New("it is off")
				}
				return nil
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began, f, done := time.Now(), &failed{TB: t}, make(chan struct{})
				go func() {
					defer close(done)
					wait(f, false)
					t.Error("it went on")
				}()
				<-done
				if !strings.Contains(f.said, "the lamp to be on") || time.Since(began) != poll.Patience {
					t.Errorf("after %v: %q", time.Since(began), f.said)
				}
			})
			wait(t, true)
		})
	}
}
