package route

import "time"

// Repairs are made at once, then ever more slowly, for each route on its own. quiet is how long a
// route must be left alone to be as good as new.
const (
	lastPause   = 5 * time.Minute
	quiet       = 10 * time.Minute
	manyRepairs = 5 // since the last quiet time: then another process keeps changing it
)

// drift is the history of one route that another process changes. The zero value is an untouched
// route.
type drift struct {
	pause time.Duration // after the last repair
	last  time.Time     // of the last repair
	count int           // since the last quiet time
}

// due is when the next repair may be made.
func (d *drift) due() time.Time {
	if d.count == 0 {
		return time.Time{}
	}
	return d.last.Add(d.pause)
}

// repaired notes a repair; first is the pause after the first one.
func (d *drift) repaired(now time.Time, first time.Duration) {
	switch {
	case d.count == 0:
		d.pause = first
	default:
		d.pause = min(2*d.pause, lastPause)
	}
	d.count++
	d.last = now
}

// settle forgets the story when it has been quiet for long enough since the last repair was due to
// hold.
func (d *drift) settle(now time.Time) {
	if d.count > 0 && now.Sub(d.last) >= quiet {
		*d = drift{}
	}
}

// degraded reports whether another process keeps changing the route.
func (d *drift) degraded() bool { return d.count >= manyRepairs }
