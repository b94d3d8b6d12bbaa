package store

import (
	"crypto/rand"
	"errors"
	"fmt"

	bolt "go.etcd.io/bbolt"

	"github.com/skerry-io/skerry/edge/internal/core/store/storepb"
)

// create lays out a new file.
func (s *Store) create(tx *bolt.Tx) error {
	for _, name := range buckets() {
		if _, err := tx.CreateBucketIfNotExists(name); err != nil {
			return fmt.Errorf("laying out the store: %w", err)
		}
	}
	t := &Tx{seal: s.seal, tx: tx}
	// Numbers begin at the current time: a recreated store never issues a number of its
	// predecessor, or one that kube-apiserver could issue.
	start := max(uint64(max(s.config.Now().UnixMilli(), 0)), 1e12)
	for _, n := range []Number{Version, Epoch, Entry, Interest} {
		if err := t.SetNumber(n, start); err != nil {
			return err
		}
	}
	if err := t.setSchema(); err != nil {
		return err
	}
	id := make([]byte, 16)
	rand.Read(id)
	if err := t.putBytes([][]byte{bucketMeta}, []byte("id"), false, id); err != nil {
		return err
	}
	return t.putBytes([][]byte{bucketMeta}, []byte(keyCheck), true, []byte(keyCheck))
}

// check refuses a file that is not ours to use.
func (s *Store) check(tx *bolt.Tx) error {
	t := &Tx{seal: s.seal, tx: tx}
	have, err := t.Number(schemaOf)
	if err != nil {
		return err
	}
	readers, err := t.readers(have)
	if err != nil {
		return err
	}
	if have == 0 || readers > Schema {
		return fmt.Errorf("%w: schema %d, readable by builds of schema %d; this build has %d", ErrSchema, have, readers, Schema)
	}
	if _, err := t.get([][]byte{bucketMeta}, []byte(keyCheck)); err != nil {
		if errors.Is(err, ErrKey) {
			if s.config.Key != nil {
				return fmt.Errorf("%w: %s was sealed with another key: bring the right one back, or move the store away", ErrKey, s.config.Path)
			}
			return fmt.Errorf("%w: %s is not the key that %s was sealed with: put the right one back, or move both away",
				ErrKey, s.config.KeyFile, s.config.Path)
		}
		return err
	}
	return nil
}

// setSchema writes the schema of the file, and the oldest build that may use it.
func (t *Tx) setSchema() error {
	return errors.Join(t.SetNumber(schemaOf, Schema), t.SetNumber(readersOf, Readers))
}

// readers is the oldest schema whose builds can use a file. One that does not state it can be used
// by builds of its own schema alone.
func (t *Tx) readers(schema uint64) (uint64, error) {
	readers, err := t.Number(readersOf)
	if readers == 0 {
		readers = schema
	}
	return readers, err
}

// adapt brings a file of another schema to this one. An older one gets its upgrade. One of a newer
// build, after a downgrade, is marked as this one's: this build's writes lack the additions of the
// newer schema, and the newer build makes them again by its upgrade.
func (s *Store) adapt(tx *bolt.Tx) error {
	t := &Tx{seal: s.seal, tx: tx}
	have, err := t.Number(schemaOf)
	if err != nil {
		return err
	}
	if have < Schema {
		if err := s.upgrade(tx); err != nil {
			return err
		}
	}
	return t.setSchema()
}

// upgrade adds the data that schemas after 1 need. Schema 2 keeps a copy of each interest.
func (s *Store) upgrade(tx *bolt.Tx) error {
	t := &Tx{seal: s.seal, tx: tx}
	for _, name := range buckets() {
		if _, err := tx.CreateBucketIfNotExists(name); err != nil {
			return fmt.Errorf("laying out the store: %w", err)
		}
	}
	all := map[uint64]*storepb.Interest{}
	if err := t.Interests(func(id uint64, i *storepb.Interest) error { all[id] = i; return nil }); err != nil {
		return err
	}
	for id, i := range all {
		if err := t.PutInterest(id, i); err != nil {
			return err
		}
	}
	return nil
}
