package store

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	bolt "go.etcd.io/bbolt"

	"github.com/skerry-io/skerry/common/programpages"
)

// Update calls do in a transaction and returns nil once its changes are on the disk. Functions that
// wait together share one transaction and one sync; each gets its own error, and a failed one does
// not affect the others. do may be called again after its effects were rolled back: it must only
// work on tx and keep nothing between calls. When ctx ends before the function's turn, it is not
// called.
func (s *Store) Update(ctx context.Context, do func(*Tx) error) error {
	select {
	case s.places <- struct{}{}:
	default:
		select {
		case s.places <- struct{}{}:
		case <-ctx.Done():
			return fmt.Errorf("waiting for a place in the store's queue: %w", context.Cause(ctx))
		}
	}
	defer func() { <-s.places }()

	c := &call{do: do, done: make(chan struct{}), lead: make(chan struct{})}
	s.mu.Lock()
	if err := s.usable(); err != nil {
		s.mu.Unlock()
		return err
	}
	s.queue = append(s.queue, c)
	if !s.leading {
		s.leading = true
		c.led = true
		close(c.lead)
	}
	s.mu.Unlock()

	select {
	case <-c.done:
		return c.err
	case <-c.lead:
	case <-ctx.Done():
		if s.withdraw(c) {
			return fmt.Errorf("waiting for the store: %w", context.Cause(ctx))
		}
		select { // it is being committed, or it must lead: both end soon
		case <-c.done:
			return c.err
		case <-c.lead:
		}
	}
	s.commitQueue()
	<-c.done
	return c.err
}

func (s *Store) usable() error {
	switch {
	case s.damaged != nil:
		return s.damaged
	case s.closed:
		return ErrClosed
	}
	return nil
}

// withdraw removes c from the queue, unless it has left it or must lead.
func (s *Store) withdraw(c *call) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.led {
		return false
	}
	for i, q := range s.queue {
		if q == c {
			s.queue = append(s.queue[:i], s.queue[i+1:]...)
			return true
		}
	}
	return false
}

// commitQueue commits the queued functions and passes the lead to the first one queued since, so
// that no caller works for others for long.
func (s *Store) commitQueue() {
	s.mu.Lock()
	batch := s.queue
	s.queue = nil
	s.mu.Unlock()

	s.commit(batch)
	for _, c := range batch {
		close(c.done)
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) == 0 {
		s.leading = false
		return
	}
	next := s.queue[0]
	next.led = true
	close(next.lead)
}

// commit puts the batch on the disk and sets the error of each call.
func (s *Store) commit(batch []*call) {
	for len(batch) > 0 {
		failed := -1
		var changed map[string]uint64
		err := s.write(s.db, func(tx *bolt.Tx) error {
			t := &Tx{seal: s.seal, tx: tx}
			for i, c := range batch {
				if err := c.do(t); err != nil {
					failed = i
					return err
				}
			}
			changed = t.changed
			return nil
		})
		damaged := errors.Is(err, ErrDamaged)
		if damaged {
			s.fail(err)
		}
		s.mu.Lock()
		s.stats.Full = errors.Is(noRoom(err), ErrFull)
		switch {
		case damaged:
			s.stats.Failures++
		case err == nil:
			s.stats.Commits++
			s.stats.Writes += uint64(len(batch))
			for where, n := range changed {
				s.stats.Records[where] += n
			}
		case failed < 0:
			s.stats.Failures++
		}
		s.mu.Unlock()
		if err == nil || damaged || failed < 0 {
			for _, c := range batch {
				c.err = noRoom(err)
			}
			return
		}
		batch[failed].err = err // the others go again without it
		rest := make([]*call, 0, len(batch)-1)
		rest = append(rest, batch[:failed]...)
		batch = append(rest, batch[failed+1:]...)
	}
}

// write makes one transaction. It is not bolt's own Update: if a page can't be read, that looks for
// free pages in the whole file, in a goroutine whose panic would end the process. (bolt still does
// so where the disk refuses a write: damage in pages not read so far then ends the process as
// well.)
func (s *Store) write(db *bolt.DB, do func(*bolt.Tx) error) error {
	return s.guarded(func() error {
		tx, err := db.Begin(true)
		if err != nil {
			return fmt.Errorf("beginning a transaction: %w", err)
		}
		defer tx.Rollback() // no effect after Commit
		if err := do(tx); err != nil {
			return err
		}
		return tx.Commit()
	})
}

// View calls do in a read transaction. Values read from tx are valid inside do only. Keep it short:
// a growing file waits for its readers.
func (s *Store) View(do func(*Tx) error) error {
	s.mu.Lock()
	err := s.usable()
	s.mu.Unlock()
	if err != nil {
		return err
	}
	err = s.guarded(func() error {
		return s.db.View(func(tx *bolt.Tx) error { return do(&Tx{seal: s.seal, tx: tx}) })
	})
	if errors.Is(err, ErrDamaged) {
		s.fail(err)
	}
	return err
}

// ReleasePages releases the mapped pages of the file. Later reads come from the page cache.
func (s *Store) ReleasePages() error {
	path, err := filepath.EvalSymlinks(s.config.Path)
	if err != nil {
		return fmt.Errorf("finding the store's file: %w", err)
	}
	return s.View(func(*Tx) error { // bbolt maps the file elsewhere only when no transaction reads
		_, err := programpages.ReleaseFile(path)
		return err
	})
}
