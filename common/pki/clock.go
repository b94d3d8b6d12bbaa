package pki

import (
	"sync"
	"time"
)

// Clock is the time by which certificates are judged, on devices whose own clock may be far off:
// many have no battery and start in 1970.
//
// Until the cloud has sent its time it is the system's, but never before the last time that is
// known to have passed. Once the cloud has sent its time over a verified link it is the cloud's,
// advanced by the monotonic clock, whatever the system's is.
type Clock struct {
	keep func(time.Time) // set by NewClock, never changed

	mu     sync.Mutex
	floor  time.Time
	synced time.Time // when the cloud sent its time: the system's reading, with the monotonic one
	cloud  time.Time // the time that it sent; zero: not yet
	kept   time.Time
}

// keepEvery is how far the time must have moved before it is worth a write: flash wears out.
const keepEvery = 24 * time.Hour

// NewClock makes a clock that never reads less than known: the latest of the build's date and the
// last time that was kept. keep, which may be nil, is called with a time worth keeping over a
// restart, at most once a day of progress.
func NewClock(known time.Time, keep func(time.Time)) *Clock {
	return &Clock{keep: keep, floor: known, kept: known}
}

// Now is the best that is known of the time.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now()
}

func (c *Clock) now() time.Time {
	t := time.Now()
	if !c.cloud.IsZero() {
		t = c.cloud.Add(t.Sub(c.synced))
	}
	if t.Before(c.floor) {
		return c.floor
	}
	return t.Round(0)
}

// AtLeast notes that t has passed, because a trusted signer has signed it.
func (c *Clock) AtLeast(t time.Time) {
	c.mu.Lock()
	if t.After(c.floor) {
		c.floor = t
	}
	c.unlockAndKeep()
}

// Sync sets the clock to the cloud's time, as it came over a verified link.
func (c *Clock) Sync(t time.Time) {
	c.mu.Lock()
	c.cloud, c.synced = t, time.Now()
	// A floor that came from a wrong clock must not outlive the right time.
	c.floor = t
	c.unlockAndKeep()
}

func (c *Clock) unlockAndKeep() {
	moved := c.floor.Sub(c.kept)
	worth := c.keep != nil && (moved >= keepEvery || moved <= -keepEvery)
	if worth {
		c.kept = c.floor
	}
	t := c.floor
	c.mu.Unlock()
	if worth {
		c.keep(t)
	}
}

// Skew is how far the system's clock is ahead of the best that is known (negative: behind).
func (c *Clock) Skew() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Round(0).Sub(c.now())
}
