package store

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"

	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/aes"
)

// Every value in the file is framed: one byte that says how the rest is kept, four bytes of CRC-32C over the record's place and content, and the
// content. bbolt has no checksums of its own below its meta pages; flash that forgets a bit would go unnoticed.
const (
	formPlain  = 1
	formSealed = 2
	frameSize  = 5
)

var errFrame = errors.New("a record fails its checksum")

func frameSum(path [][]byte, key []byte, form byte, payload []byte) uint32 {
	table := crc32.MakeTable(crc32.Castagnoli) // a table that the package keeps
	sum := uint32(0)
	for _, p := range path {
		sum = crc32.Update(sum, table, p)
		sum = crc32.Update(sum, table, []byte{0})
	}
	sum = crc32.Update(sum, table, key)
	sum = crc32.Update(sum, table, []byte{0, form})
	return crc32.Update(sum, table, payload)
}

func frame(path [][]byte, key []byte, form byte, payload []byte) []byte {
	out := make([]byte, frameSize, frameSize+len(payload))
	out[0] = form
	binary.LittleEndian.PutUint32(out[1:], frameSum(path, key, form, payload))
	return append(out, payload...)
}

func unframe(path [][]byte, key, value []byte) (form byte, payload []byte, err error) {
	if len(value) < frameSize {
		return 0, nil, errFrame
	}
	form, payload = value[0], value[frameSize:]
	if (form != formPlain && form != formSealed) || binary.LittleEndian.Uint32(value[1:]) != frameSum(path, key, form, payload) {
		return 0, nil, errFrame
	}
	return form, payload, nil
}

func checkFrame(path [][]byte, key, value []byte) error {
	_, _, err := unframe(path, key, value)
	return err
}

// place ties a sealed record to where it lies, so that one record can't be passed off as another.
func place(path [][]byte, key []byte) value.Context {
	return value.DefaultContext(append(append(bytes.Join(path, []byte{0}), 0), key...))
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
		if payload, err = t.store.seal.TransformToStorage(context.Background(), payload, place(path, key)); err != nil {
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

// open checks and unseals a value. What it returns may lie in the mapped file: valid in the transaction only.
func (t *Tx) open(path [][]byte, key, v []byte) ([]byte, error) {
	form, payload, err := unframe(path, key, v)
	if err != nil {
		return nil, &DamageError{Reason: err.Error()}
	}
	if form == formPlain {
		return payload, nil
	}
	payload, _, err = t.store.seal.TransformFromStorage(context.Background(), payload, place(path, key))
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

// openKey reads the key, or makes it where the store is new and there is none yet.
func (s *Store) openKey(isNew bool) error {
	text, err := os.ReadFile(s.config.KeyFile)
	if errors.Is(err, os.ErrNotExist) && isNew {
		text, err = makeKey(s.config.KeyFile)
		if err != nil {
			return noRoom(err)
		}
	}
	if err != nil {
		return fmt.Errorf("%w: %w: put the key back, or move %s away: the device then gets its objects again from the cloud",
			ErrKey, err, s.config.Path)
	}
	key, err := hex.DecodeString(string(bytes.TrimSpace(text)))
	if err != nil || len(key) != 32 {
		return fmt.Errorf("%w: %s does not hold 32 bytes in hexadecimal", ErrKey, s.config.KeyFile)
	}
	// A key of its own for each record, derived from a random nonce: no bound on how many records one key may seal.
	if s.seal, err = aes.NewHKDFExtendedNonceGCMTransformer(key); err != nil {
		return fmt.Errorf("%w: %w", ErrKey, err)
	}
	return nil
}

func makeKey(path string) ([]byte, error) {
	key := make([]byte, 32)
	rand.Read(key) // never fails: crypto/rand ends the process instead
	text := []byte(hex.EncodeToString(key) + "\n")
	tmp := path + ".new"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("making the store's key: %w", err)
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		os.Remove(tmp)
		return nil, fmt.Errorf("making the store's key: %w", err)
	}
	return text, syncDir(filepath.Dir(path))
}
