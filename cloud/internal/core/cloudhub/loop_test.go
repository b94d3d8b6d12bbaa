package cloudhub_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/cloud/internal/core/cloudhub"
)

func quiet() context.Context { return klog.NewContext(context.Background(), klog.New(nil)) }

// A Signal while step runs, or before Start, has step called once more, and never twice at once.
func TestLoop_MissesNoSignal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(quiet())
		var calls, at atomic.Int32
		l := cloudhub.NewLoop(func(context.Context) error {
			if at.Add(1) > 1 {
				t.Error("two calls at once")
			}
			time.Sleep(time.Second)
			at.Add(-1)
			calls.Add(1)
			return nil
		})
		l.Signal()
		l.Signal()
		synctest.Wait()
		if calls.Load()+at.Load() != 0 {
			t.Error("step was called before Start")
		}
		l.Start(ctx, func(err error) { t.Error(err) })
		for i, c := range []struct {
			after   time.Duration
			signals int
			calls   int32
		}{{1500 * time.Millisecond, 0, 1}, {0, 3, 1}, {500 * time.Millisecond, 2, 1}, {3 * time.Second, 0, 3}, {time.Hour, 1, 3}} {
			time.Sleep(c.after)
			synctest.Wait()
			for range c.signals {
				l.Signal()
				synctest.Wait()
			}
			if calls.Load() != c.calls {
				t.Errorf("step %d: %d calls, want %d", i, calls.Load(), c.calls)
			}
		}
		l.Stop() // waits for the fourth
		if calls.Load() != 4 {
			t.Errorf("%d calls at the end, want 4", calls.Load())
		}
		l.Signal()
		cancel()
		time.Sleep(time.Hour)
		synctest.Wait()
		if calls.Load() != 4 {
			t.Error("step was called after Stop")
		}
	})
}

func TestLoop_FailsOnce(t *testing.T) {
	for name, c := range map[string]struct {
		step func(context.Context) error
		want string
	}{
		"error": {func(context.Context) error { return errors.New("no room") }, "no room"},
		"panic": {func(context.Context) error { panic("secret") }, "internal error"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var failures []error
				l := cloudhub.NewLoop(c.step)
				l.Start(quiet(), func(err error) { failures = append(failures, err) })
				for range 3 {
					l.Signal()
					synctest.Wait()
				}
				l.Stop()
				if len(failures) != 1 || !strings.Contains(failures[0].Error(), c.want) {
					t.Errorf("failures are %v, want one with %q", failures, c.want)
				}
			})
		})
	}
}

// No step begins once ctx has ended.
func TestLoop_EndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(quiet())
		l := cloudhub.NewLoop(func(context.Context) error { t.Error("called"); return nil })
		l.Start(ctx, func(err error) { t.Error(err) })
		cancel()
		l.Signal()
		synctest.Wait()
		l.Stop()
	})
}
