package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"

	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"

	"github.com/skerry-io/skerry/edge/internal/store/storepb"
)

// salvage is what can still be read of a damaged file and can't be had again from the cloud: writes that wait, answers, states of modules, numbers.
// Objects and interests are left: a set with holes must never pass for the whole.
type salvage struct {
	records []rawRecord
	numbers map[Number]uint64
}

type rawRecord struct {
	path       [][]byte
	key, value []byte
}

func salvageFrom(path string) *salvage {
	s := &salvage{numbers: map[Number]uint64{}}
	// A file whose meta pages are gone has no tree to follow: then there is nothing, which is what s says already.
	_ = walkFile(path, true, func(at [][]byte, key, value []byte) error {
		_, payload, err := unframe(at, key, value)
		if err != nil {
			return err
		}
		switch {
		case len(at) == 1 && bytes.Equal(at[0], bucketMeta):
			if n := Number(key); (n == Version || n == Epoch || n == Entry || n == Interest || n == Dropped) && len(payload) == 8 {
				s.numbers[n] = binary.BigEndian.Uint64(payload)
			}
		case len(at) == 1 && bytes.Equal(at[0], bucketOutbox):
			if proto.Unmarshal(payload, &storepb.Entry{}) != nil || len(key) != 8 {
				return errFrame
			}
			s.keep(at, key, value)
		case len(at) == 1 && bytes.Equal(at[0], bucketAnswers), len(at) == 2 && bytes.Equal(at[0], bucketModules):
			s.keep(at, key, value)
		}
		return nil
	})
	return s
}

func (s *salvage) keep(path [][]byte, key, value []byte) {
	s.records = append(s.records, rawRecord{path: path, key: bytes.Clone(key), value: bytes.Clone(value)})
}

// restore writes the salvage into the fresh file and returns how many writes of the outbox were in it.
func (s *Store) restore(saved *salvage) (entries int, err error) {
	err = s.guarded(func() error {
		return s.db.Update(func(tx *bolt.Tx) error {
			t := &Tx{store: s, tx: tx}
			for n, v := range saved.numbers {
				have, err := t.Number(n)
				if err != nil {
					return err
				}
				if v > have && v < have+maxLead {
					if err := t.SetNumber(n, v); err != nil {
						return err
					}
				}
			}
			newest := uint64(0)
			for _, r := range saved.records {
				if r.value[0] == formSealed {
					// Of another key, or of another place in a file that was put together by somebody: leave it.
					if _, _, err := s.seal.TransformFromStorage(context.Background(), r.value[frameSize:], place(r.path, r.key)); err != nil {
						continue
					}
				}
				b, err := t.bucket(r.path, true)
				if err != nil {
					return err
				}
				if err := b.Put(r.key, r.value); err != nil {
					return fmt.Errorf("writing to the store: %w", err)
				}
				if bytes.Equal(r.path[0], bucketOutbox) {
					entries++
					newest = max(newest, binary.BigEndian.Uint64(r.key))
				}
			}
			have, err := t.Number(Entry)
			if err == nil && newest > have {
				err = t.SetNumber(Entry, newest)
			}
			return err
		})
	})
	return entries, noRoom(err)
}

// maxLead is how far a number found in a damaged file may be ahead of the time and still be believed: 50 years in milliseconds.
const maxLead = 50 * 366 * 24 * 3600 * 1000
