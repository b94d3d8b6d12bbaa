package store

import (
	"context"
	"time"
)

// NextEpoch is the epoch of a new session with the cloud: higher than every one before, also those of a store that was lost. It is on the disk
// when NextEpoch returns.
func (s *Store) NextEpoch(ctx context.Context) (uint64, error) {
	var epoch uint64
	err := s.Update(ctx, func(t *Tx) error {
		last, err := t.Number(Epoch)
		if err != nil {
			return err
		}
		epoch = max(last+1, uint64(max(s.config.Now().UnixMilli(), 0)))
		return t.SetNumber(Epoch, epoch)
	})
	return epoch, err
}

// LastTime is the newest time known when SetLastTime was last called; the zero time if it never was.
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

// SetLastTime keeps a time for the next start. One that is not later than what is kept is not written.
func (s *Store) SetLastTime(ctx context.Context, at time.Time) error {
	return s.Update(ctx, func(t *Tx) error {
		kept, err := t.Number(LastTime)
		if ms := uint64(max(at.UnixMilli(), 0)); err == nil && ms > kept {
			err = t.SetNumber(LastTime, ms)
		}
		return err
	})
}
