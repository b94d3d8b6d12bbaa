package store

import (
	"bytes"
	"encoding/binary"
	"fmt"

	bolt "go.etcd.io/bbolt"
)

// maxLead is how far a number found in a damaged file may be ahead of the time and still be
// believed: 50 years in milliseconds.
const maxLead = 50 * 366 * 24 * 3600 * 1000

// restore writes the salvage into the fresh file.
func (s *Store) restore(saved *salvage) error {
	return noRoom(s.write(s.db, func(tx *bolt.Tx) error {
		t := &Tx{seal: s.seal, tx: tx}
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
