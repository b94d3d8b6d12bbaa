package rerun_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/skerry-io/skerry/common/rerun"
)

// calls runs a Loop whose calls end as listed, one after the other and then well, and returns when
// each call began.
func calls(t *testing.T, c rerun.Config, ends []end, meanwhile func(wake func())) []time.Duration {
	t.Helper()
	var at []time.Duration
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		l := rerun.New(func(context.Context) (time.Duration, error) {
			n := len(at)
			at = append(at, time.Since(begin))
			if n < len(ends) {
				time.Sleep(ends[n].takes)
				return ends[n].again, ends[n].err
			}
			return 0, nil
		}, c)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			l.Run(ctx)
		}()
		synctest.Wait()
		meanwhile(l.Wake)
		time.Sleep(time.Hour)
		cancel()
		<-done
	})
	return at
}

type end struct {
	takes, again time.Duration
	err          error
}

func TestLoop(t *testing.T) {
	const s = time.Second
	failure := errors.New("failure")
	nothing := func(func()) {}
	tests := map[string]struct {
		config    rerun.Config
		ends      []end
		meanwhile func(wake func())
		want      []time.Duration
	}{
		"once at the begin":         {want: []time.Duration{0}, meanwhile: nothing},
		"again when it says so":     {ends: []end{{again: 5 * s}, {again: 7 * s}}, want: []time.Duration{0, 5 * s, 12 * s}, meanwhile: nothing},
		"failures wait ever longer": {config: rerun.Config{RetryMax: 3 * s}, ends: []end{{err: failure}, {err: failure}, {err: failure}, {err: failure}}, want: []time.Duration{0, s, 3 * s, 6 * s, 9 * s}, meanwhile: nothing},
		"the delay starts again":    {ends: []end{{err: failure}, {err: failure}, {again: s}, {err: failure}}, want: []time.Duration{0, s, 3 * s, 4 * s, 5 * s}, meanwhile: nothing},
		"a failure that must be looked at sooner": {
			config: rerun.Config{RetryMin: 10 * s}, ends: []end{{again: 2 * s, err: failure}}, want: []time.Duration{0, 2 * s}, meanwhile: nothing,
		},
		"many reasons are one call": {
			config: rerun.Config{Settle: 2 * s}, want: []time.Duration{0, 12 * s},
			meanwhile: func(wake func()) {
				time.Sleep(10 * s)
				for range 100 {
					wake()
					time.Sleep(10 * time.Millisecond)
				}
			},
		},
		"a reason that comes during a call is not lost": {
			ends: []end{{takes: 10 * s}}, want: []time.Duration{0, 10 * s},
			meanwhile: func(wake func()) {
				time.Sleep(5 * s)
				wake()
			},
		},
		"a reason ends the delay": {
			config: rerun.Config{RetryMin: time.Minute}, ends: []end{{err: failure}}, want: []time.Duration{0, 5 * s},
			meanwhile: func(wake func()) {
				time.Sleep(5 * s)
				wake()
			},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, calls(t, tc.config, tc.ends, tc.meanwhile)); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
		})
	}
}
