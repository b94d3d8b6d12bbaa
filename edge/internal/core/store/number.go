package store

import (
	"context"
	"errors"
	"time"
)

// epochReserve is the distance of the epoch on the disk from the one in use: so many more can be
// issued while writes fail, and a later process is still above them.
const epochReserve = 1024

// NextEpoch is the epoch of a new session with the cloud: higher than every one before, also those
// of a store that was lost. It is covered by the epoch on the disk when NextEpoch returns. With a
// full disk or a damaged store it continues from memory: a device is not cut off for them.
func (s *Store) NextEpoch(ctx context.Context) (uint64, error) {
	e := &s.epochs
	e.mu.Lock()
	defer e.mu.Unlock()
	now := uint64(max(s.config.Now().UnixMilli(), 0))
	next := max(e.last+1, now)
	err := s.Update(ctx, func(t *Tx) error { return t.SetNumber(Epoch, next+epochReserve) })
	switch {
	case err == nil:
		e.reserved = next + epochReserve
	case !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrFull):
		return 0, err
	case e.last < e.reserved:
		next = e.last + 1
	}
	// Beyond the reserve only the clock keeps a later process above.
	e.last = next
	return next, nil
}

// LastTime is the newest time known when SetLastTime was last called; the zero time if it
// never was.
func (s *Store) LastTime() (time.Time, error) {
	var ms uint64
	err := s.View(func(t *Tx) error {
		var err error
		ms, err = t.Number(LastTime)
		return err
	})
	if err != nil || ms == 0 {
		return time.Time{}, err
	}
	return time.UnixMilli(int64(ms)), nil
}

// SetLastTime keeps a time for the next start. One that is not later than the stored time is not
// written.
func (s *Store) SetLastTime(ctx context.Context, at time.Time) error {
	return s.Update(ctx, func(t *Tx) error {
		kept, err := t.Number(LastTime)
		if ms := uint64(max(at.UnixMilli(), 0)); err == nil && ms > kept {
			err = t.SetNumber(LastTime, ms)
		}
		return err
	})
}
