package store

import (
	"k8s.io/apiserver/pkg/storage/value"

	"bytes"
	"context"
	"fmt"

	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"
)

// Tx is a transaction. It is used by the function that it was given to, and not after.
type Tx struct {
	seal    value.Transformer
	tx      *bolt.Tx
	changed map[string]uint64 // records, by where they lie
}

func (t *Tx) put(path [][]byte, key []byte, sealed bool, m proto.Message) error {
	payload, err := proto.Marshal(m)
	if err != nil {
		return fmt.Errorf("encoding a record: %w", err)
	}
	return t.putBytes(path, key, sealed, payload)
}

func (t *Tx) putBytes(path [][]byte, key []byte, sealed bool, payload []byte) error {
	form := byte(formPlain)
	if sealed {
		form = formSealed
		var err error
		if payload, err = t.seal.TransformToStorage(context.Background(), payload, place(path, key)); err != nil {
			return fmt.Errorf("sealing a record: %w", err)
		}
	}
	b, err := t.bucket(path, true)
	if err != nil {
		return err
	}
	if err := b.Put(key, frame(path, key, form, payload)); err != nil {
		return fmt.Errorf("writing to the store: %w", err)
	}
	t.count(path)
	return nil
}

func (t *Tx) delete(path [][]byte, key []byte) error {
	b, err := t.bucket(path, false)
	if b == nil || err != nil {
		return err
	}
	if err := b.Delete(key); err != nil {
		return fmt.Errorf("deleting from the store: %w", err)
	}
	t.count(path)
	return nil
}

// count notes a change for Stats.Records.
func (t *Tx) count(path [][]byte) {
	if bytes.Equal(path[0], bucketMeta) {
		return
	}
	if t.changed == nil {
		t.changed = map[string]uint64{}
	}
	t.changed[string(bytes.Join(path, []byte{'/'}))]++
}

// open checks and unseals a value. The result may be part of the mapped file: it is valid in the
// transaction only.
func (t *Tx) open(path [][]byte, key, v []byte) ([]byte, error) {
	form, payload, err := unframe(path, key, v)
	if err != nil {
		return nil, &DamageError{Reason: err.Error()}
	}
	if form == formPlain {
		return payload, nil
	}
	payload, _, err = t.seal.TransformFromStorage(context.Background(), payload, place(path, key))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKey, err)
	}
	return payload, nil
}

// get returns nil where there is no such record.
func (t *Tx) get(path [][]byte, key []byte) ([]byte, error) {
	b, err := t.bucket(path, false)
	if b == nil || err != nil {
		return nil, err
	}
	v := b.Get(key)
	if v == nil {
		return nil, nil
	}
	return t.open(path, key, v)
}

func (t *Tx) each(path [][]byte, do func(key, payload []byte) error) error {
	b, err := t.bucket(path, false)
	if b == nil || err != nil {
		return err
	}
	return b.ForEach(func(key, v []byte) error {
		if v == nil {
			return nil // a bucket
		}
		payload, err := t.open(path, key, v)
		if err != nil {
			return err
		}
		return do(key, payload)
	})
}

func decode(payload []byte, m proto.Message) error {
	if err := proto.Unmarshal(payload, m); err != nil {
		return &DamageError{Reason: fmt.Sprintf("a record can't be read: %v", err)}
	}
	return nil
}

func (t *Tx) bucket(path [][]byte, create bool) (*bolt.Bucket, error) {
	b := t.tx.Bucket(path[0])
	if b == nil {
		return nil, &DamageError{Reason: fmt.Sprintf("bucket %q is missing", path[0])}
	}
	for _, name := range path[1:] {
		inner := b.Bucket(name)
		if inner == nil {
			if !create {
				return nil, nil
			}
			var err error
			if inner, err = b.CreateBucket(name); err != nil {
				return nil, fmt.Errorf("making a bucket: %w", err)
			}
		}
		b = inner
	}
	return b, nil
}
