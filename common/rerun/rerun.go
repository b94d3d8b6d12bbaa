// Package rerun calls a function again whenever there is a reason to: the loop of every
// level-triggered controller.
//
// It owns when the function is called, and is independent of its work. Reasons are not queued:
// however many come, one call follows, which is to look at the present state. It refuses to call it
// twice at a time. Wake may be called by any goroutine, also before Run; Run by one at a time.
package rerun

import (
	"context"
	"time"
)

// Sync updates something to the present state, and is safe to repeat. again is how long it may take
// until it must be called again without a Wake; 0: for ever.
type Sync func(ctx context.Context) (again time.Duration, err error)

// Config sets the delays of a Loop.
type Config struct {
	// Settle is how long a Loop waits after a Wake before it calls: changes often come in numbers.
	Settle time.Duration
	// RetryMin and RetryMax bound the delay after a failure, which doubles. 1 s and 30 s where
	// zero. A Wake ends the delay.
	RetryMin, RetryMax time.Duration
	// Failed is called after each failure, and how long it is until the next call; nil: no
	// callback.
	Failed func(ctx context.Context, err error, retry time.Duration)
}

// Loop calls a Sync.
type Loop struct {
	config Config
	sync   Sync
	wake   chan struct{} // one slot: many reasons are one call
}

// New makes a Loop. The first call is made by Run.
func New(sync Sync, c Config) *Loop {
	if c.RetryMin == 0 {
		c.RetryMin = time.Second
	}
	if c.RetryMax == 0 {
		c.RetryMax = 30 * time.Second
	}
	return &Loop{config: c, sync: sync, wake: make(chan struct{}, 1)}
}

// Wake asks for a call.
func (l *Loop) Wake() {
	select {
	case l.wake <- struct{}{}:
	default: // one is due already
	}
}

// Run calls the function once at its begin and then whenever there is a reason, until ctx ends.
func (l *Loop) Run(ctx context.Context) {
	retry := l.config.RetryMin
	for {
		select {
		case <-l.wake: // wakes before this call are answered by it
		default:
		}
		wait, err := l.sync(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			retry = l.config.RetryMin
		} else {
			if l.config.Failed != nil {
				l.config.Failed(ctx, err, retry)
			}
			if wait <= 0 || retry < wait {
				wait = retry
			}
			retry = min(2*retry, l.config.RetryMax)
		}
		if !l.pause(ctx, wait) {
			return
		}
	}
}

// Pause waits for d, or until ctx ends, whose cause it returns then.
func Pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// pause waits for a reason, or for as long as d where that is not 0. It returns false when
// ctx has ended.
func (l *Loop) pause(ctx context.Context, d time.Duration) (goOn bool) {
	var due <-chan time.Time
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-ctx.Done():
	case <-due:
	case <-l.wake:
		if l.config.Settle > 0 {
			timer := time.NewTimer(l.config.Settle)
			defer timer.Stop()
			select {
			case <-ctx.Done():
			case <-timer.C:
			}
		}
	}
	return ctx.Err() == nil
}
