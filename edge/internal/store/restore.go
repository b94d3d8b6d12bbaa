package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	bolt "go.etcd.io/bbolt"
)

// maxLead is how far a number found in a damaged file may be ahead of the time and still be believed: 50 years in milliseconds.
const maxLead = 50 * 366 * 24 * 3600 * 1000

// replace puts a fresh file, with what can be read of the damaged one, in its place. The damaged one
// stays under another name. A crash on the way leaves the damaged file where it was.
func (s *Store) replace() error {
	trees := readTrees(s.config.Path)
	if err := s.dropOld(s.config.KeepDamaged - 1); err != nil { // makes room for this one
		return err
	}
	fresh := s.config.Path + ".fresh"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("making a fresh store: %w", err)
	}
	if err := s.openFile(fresh); err != nil {
		return err
	}
	for _, t := range trees {
		t.unseal(s.opens)
	}
	saved := planOf(trees)
	if err := errors.Join(s.restore(saved), s.db.Close()); err != nil {
		os.Remove(fresh)
		return fmt.Errorf("restoring what could be read of the damaged store: %w", err)
	}
	aside, err := s.setAside(fresh)
	if err != nil {
		return fmt.Errorf("setting the damaged store aside: %w", err)
	}
	s.aside, s.lost = aside, saved.lost
	return nil
}

// setAside gives the damaged file another name, and its own to the fresh one.
func (s *Store) setAside(fresh string) (string, error) {
	aside := s.config.Path + ".damaged-" + s.config.Now().UTC().Format("20060102T150405.000000000Z")
	if err := os.Link(s.config.Path, aside); err != nil {
		return "", err
	}
	if err := os.Rename(fresh, s.config.Path); err != nil {
		return "", err
	}
	return aside, syncDir(filepath.Dir(s.config.Path))
}

// dropOld removes files that were set aside before, the oldest first, until keep are left.
func (s *Store) dropOld(keep int) error {
	old, err := filepath.Glob(s.config.Path + ".damaged-*") // sorted, and the names sort by time
	if err != nil || len(old) <= keep {
		return err
	}
	for _, path := range old[:len(old)-keep] {
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("removing a damaged store of before: %w", err)
		}
	}
	return nil
}

// restore writes the salvage into the fresh file.
func (s *Store) restore(saved *salvage) error {
	return noRoom(s.guarded(func() error {
		return s.db.Update(func(tx *bolt.Tx) error {
			t := &Tx{store: s, tx: tx}
			for n, v := range saved.numbers {
				if err := t.raise(n, v); err != nil {
					return err
				}
			}
			for id, i := range saved.interests {
				if err := t.PutInterest(id, i); err != nil {
					return err
				}
				if err := t.raise(Interest, id); err != nil {
					return err
				}
			}
			for _, r := range saved.records {
				if err := t.restoreRecord(r); err != nil {
					return err
				}
			}
			return nil
		})
	}))
}

// raise sets a number to v, if it is lower and v can be believed.
func (t *Tx) raise(n Number, v uint64) error {
	have, err := t.Number(n)
	if err != nil || v <= have || v >= have+maxLead && have > 0 {
		return err
	}
	return t.SetNumber(n, v)
}

func (t *Tx) restoreRecord(r rawRecord) error {
	b, err := t.bucket(r.path, true)
	if err != nil {
		return err
	}
	if err := b.Put(r.key, r.value); err != nil {
		return fmt.Errorf("writing to the store: %w", err)
	}
	if bytes.Equal(r.path[0], bucketOutbox) {
		return t.raise(Entry, binary.BigEndian.Uint64(r.key))
	}
	return nil
}
