package store

import (
	"crypto/rand"
	"errors"
	"fmt"

	bolt "go.etcd.io/bbolt"

	"github.com/skerry-io/skerry/edge/internal/store/storepb"
)

// create lays out a new file.
func (s *Store) create(tx *bolt.Tx) error {
	for _, name := range buckets() {
		if _, err := tx.CreateBucketIfNotExists(name); err != nil {
			return fmt.Errorf("laying out the store: %w", err)
		}
	}
	t := &Tx{seal: s.seal, tx: tx}
	// Numbers begin at the time: a store made again never gives out one that its predecessor gave
	// out, and none that kube-apiserver could.
	start := max(uint64(max(s.config.Now().UnixMilli(), 0)), 1e12)
	for _, n := range []Number{Version, Epoch, Entry, Interest} {
		if err := t.SetNumber(n, start); err != nil {
			return err
		}
	}
	if err := t.SetNumber(schemaOf, Schema); err != nil {
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
	if have == 0 || have > Schema {
		return fmt.Errorf("%w: schema %d, this one knows %d", ErrSchema, have, Schema)
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

// upgrade brings a file of an older schema up to this one. Schema 2 keeps a copy of each interest.
func (s *Store) upgrade(tx *bolt.Tx) error {
	t := &Tx{seal: s.seal, tx: tx}
	have, err := t.Number(schemaOf)
	if err != nil || have == Schema {
		return err
	}
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
	return t.SetNumber(schemaOf, Schema)
}
