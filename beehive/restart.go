package beehive

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// Restart is the policy after a module's failure. The zero value is Never.
type Restart struct {
	onFailure bool
	backoff   Backoff
}

// Never makes a failure end the Runner with the module's error.
func Never() Restart { return Restart{} }

// OnFailure starts the module again after a while. Fields of b that are 0 take their defaults.
func OnFailure(b Backoff) Restart {
	if b.Min == 0 {
		b.Min = time.Second
	}
	if b.Max == 0 {
		b.Max = max(b.Min, time.Minute)
	}
	if b.Jitter == 0 {
		b.Jitter = 0.2
	}
	if b.Reset == 0 {
		b.Reset = time.Minute
	}
	return Restart{onFailure: true, backoff: b}
}

func (r Restart) String() string {
	if !r.onFailure {
		return "never"
	}
	return fmt.Sprintf("on failure, %v to %v", r.backoff.Min, r.backoff.Max)
}

func (r Restart) validate() error {
	if b := r.backoff; r.onFailure && (b.Min < 0 || b.Max < b.Min || b.Jitter < 0 || b.Jitter > 1 || b.Reset < 0) {
		return fmt.Errorf("back-off %+v: want 0 <= Min <= Max, Jitter from 0 to 1, Reset >= 0", b)
	}
	return nil
}

// Backoff is how long a module waits before it starts again: Min after the first failure, doubled
// with each that follows, at most Max.
type Backoff struct {
	Min time.Duration // default 1 s
	Max time.Duration // default 1 min
	// Jitter is the part of the wait, 0 to 1, that is left to chance; default 0.2: a wait of 10 s
	// becomes one of 8 to 10 s.
	Jitter float64
	// Reset is how long the module must have been ready for its next failure to count as the
	// first; default 1 min.
	Reset time.Duration
}

// wait returns the time to wait after the nth failure in a row, n counted from 1. random
// is in [0, 1).
func (b Backoff) wait(n int, random float64) time.Duration {
	d := b.Min
	for ; n > 1 && d < b.Max; n-- {
		d *= 2
	}
	d = min(d, b.Max)
	return d - time.Duration(b.Jitter*random*float64(d))
}

func (b Backoff) next(n int) time.Duration { return b.wait(n, rand.Float64()) }
