package kube

import (
	"math"
	"slices"
	"sync"
	"time"
)

const (
	// UnknownVersion is for a caller without a resourceVersion: only a read is enough.
	UnknownVersion uint64 = math.MaxUint64

	// catchUpPatience is how long a watch that is behind is given before the collection is read,
	// and catchUpPoll how often it is checked in the meantime.
	catchUpPatience = time.Second
	catchUpPoll     = 50 * time.Millisecond
	// A collection is read at most once in readPause, and for at most one part in readShare of the
	// time, whatever versions nodes report.
	readPause = 200 * time.Millisecond
	readShare = 20
)

// catchUps are the waits for the copy of a collection to reach a version.
type catchUps struct {
	mu      sync.Mutex
	waiting []*catchUp
	running bool
	next    time.Time // no read begins before
}

type catchUp struct {
	version uint64
	since   time.Time
	done    func()
}

func (u *catchUps) remove(c *catchUp) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if at := slices.Index(u.waiting, c); at >= 0 {
		u.waiting = slices.Delete(u.waiting, at, at+1)
	}
}

// look releases those whose version is reached. due: one has waited long enough for a read. Else
// wait is how long to wait before looking again, negative where no one waits any more.
func (u *catchUps) look(version uint64) (due bool, wait time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := time.Now()
	rest := u.waiting[:0]
	for _, c := range u.waiting {
		if c.version <= version {
			go c.done()
			continue
		}
		rest = append(rest, c)
		due = due || c.version == UnknownVersion || now.Sub(c.since) >= catchUpPatience
	}
	clear(u.waiting[len(rest):])
	u.waiting = rest
	if len(rest) == 0 {
		u.waiting, u.running = nil, false
		return false, -1
	}
	if due && now.Before(u.next) {
		return false, u.next.Sub(now)
	}
	return due, catchUpPoll
}

// served releases the waits that began before a successful read.
func (u *catchUps) served(began time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := time.Now()
	u.next = now.Add(max(readPause, readShare*now.Sub(began)))
	u.waiting = slices.DeleteFunc(u.waiting, func(c *catchUp) bool {
		if c.since.After(began) {
			return false
		}
		go c.done()
		return true
	})
}
