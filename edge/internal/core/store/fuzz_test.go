package store_test

import (
	"bytes"
	"encoding/binary"
	"hash/fnv"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/skerry-io/skerry/edge/internal/core/store"
	"github.com/skerry-io/skerry/edge/internal/core/store/storepb"
)

// FuzzWalkPages: for all pages the walk ends, returns no more data than the file has and never
// panics. The meta pages' checksums are corrected, so that the pages behind them are reached.
func FuzzWalkPages(f *testing.F) {
	path := filepath.Join(f.TempDir(), "edge.db")
	s, err := store.Open(f.Context(), store.Config{Path: path})
	if err != nil {
		f.Fatal(err)
	}
	if err := s.Update(f.Context(), func(tx *store.Tx) error {
		for i := range uint64(40) {
			if err := tx.PutEntry(i, entryNumber(i*60)); err != nil {
				return err
			}
			if err := tx.PutObject(ref("pods", "default", string(rune('a'+i))), objectNumber(i)); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		f.Fatal(err)
	}
	if err := s.Close(); err != nil {
		f.Fatal(err)
	}
	file, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(bytes.TrimRight(file, "\x00"))
	f.Fuzz(func(t *testing.T, file []byte) {
		for _, page := range []int{0, 4096} {
			if len(file) < page+16+64 {
				break
			}
			meta := file[page+16:]
			sum := fnv.New64a()
			sum.Write(meta[:56])
			binary.NativeEndian.PutUint64(meta[56:], sum.Sum64())
		}
		for _, tolerant := range []bool{false, true} {
			_ = store.WalkPages(bytes.NewReader(file), int64(len(file)), tolerant)
		}
	})
}

// FuzzUnframe: a frame returns its original content, and every other frame is rejected.
func FuzzUnframe(f *testing.F) {
	record, err := proto.Marshal(entryNumber(30))
	if err != nil {
		f.Fatal(err)
	}
	path := [][]byte{[]byte("outbox")}
	f.Add([]byte("key"), store.Frame(path, []byte("key"), 1, record))
	f.Add([]byte("key"), []byte{1, 0, 0, 0, 0})
	f.Add([]byte("key"), store.Frame(path, []byte("key"), 2, []byte("sealed")))
	f.Add([]byte("key"), record)
	f.Fuzz(func(t *testing.T, key, value []byte) {
		// Behind the checksum too: whoever has the file can make one.
		whole := store.Frame(path, key, 1, value)
		if form, payload, err := store.Unframe(path, key, whole); err != nil || form != 1 || !bytes.Equal(payload, value) {
			t.Errorf("%x of %x: %v", payload, value, err)
		}
		if _, _, err := store.Unframe([][]byte{[]byte("objects")}, key, whole); err == nil {
			t.Error("a record is valid in another place")
		}
		_ = proto.Unmarshal(value, &storepb.Entry{})
		form, payload, err := store.Unframe(path, key, value)
		if err != nil {
			return
		}
		if again := store.Frame(path, key, form, payload); !bytes.Equal(again, value) {
			t.Errorf("%x came from %x", again, value)
		}
		_ = proto.Unmarshal(payload, &storepb.Entry{})
	})
}
