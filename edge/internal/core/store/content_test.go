package store_test

import (
	"bytes"
	"fmt"
	"maps"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/edge/internal/core/store"
	"github.com/skerry-io/skerry/edge/internal/core/store/storepb"
)

func entryNumber(id uint64) *storepb.Entry {
	return &storepb.Entry{Class: storepb.Class_EVENT, Name: fmt.Sprint(id), Body: bytes.Repeat([]byte{byte(id)}, int(id%3000))}
}

// fill creates a store with records of every kind, and returns its content before the last
// transaction.
func fill(t *testing.T, path string) (before content) {
	t.Helper()
	s := open(t, path)
	update(t, s, func(tx *store.Tx) error {
		for i := range uint64(60) {
			if err := tx.PutEntry(i, entryNumber(i*50)); err != nil {
				return err
			}
			if err := tx.PutObject(ref("pods", "default", fmt.Sprint(i)), objectNumber(i)); err != nil {
				return err
			}
			if err := tx.PutObject(ref("secrets", "default", fmt.Sprint(i)), objectNumber(i)); err != nil {
				return err
			}
		}
		if err := tx.PutEvent("default", "a", &storepb.Event{Version: 1, Raw: bytes.Repeat([]byte{0xC0}, 100)}); err != nil {
			return err
		}
		if err := tx.PutInterest(8, &storepb.Interest{Dependencies: true, Synced: true}); err != nil {
			return err
		}
		return tx.PutInterest(7, &storepb.Interest{Version: "v1", Resource: "pods", Synced: true})
	})
	before = read(t, s)
	update(t, s, func(tx *store.Tx) error {
		for i := range uint64(10) {
			if err := tx.DeleteObject(ref("pods", "default", fmt.Sprint(i*6))); err != nil {
				return err
			}
		}
		return tx.SetState("drain", "phase", []byte("cordoned"))
	})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return before
}

func objectNumber(i uint64) *storepb.Object {
	return &storepb.Object{Uid: fmt.Sprint(i), Version: i, Raw: bytes.Repeat([]byte{byte(i)}, int(i)*40)}
}

func equal[K comparable, M proto.Message](a, b map[K]M) bool {
	return maps.EqualFunc(a, b, func(x, y M) bool { return proto.Equal(x, y) })
}

type content struct {
	Objects   map[object.Ref]*storepb.Object
	Entries   map[uint64]*storepb.Entry
	Interests map[uint64]*storepb.Interest
}

// of returns the objects of one resource.
func (c content) of(resource string) map[object.Ref]*storepb.Object {
	some := maps.Clone(c.Objects)
	maps.DeleteFunc(some, func(r object.Ref, _ *storepb.Object) bool { return r.Resource.Resource != resource })
	return some
}

// synced reports whether all of a resource that fill has put there passes for the whole set.
func (c content) synced(resource string) bool {
	if resource == "pods" {
		return c.Interests[7].GetSynced()
	}
	return c.Interests[8].GetSynced()
}

func read(t *testing.T, s *store.Store) content {
	t.Helper()
	c := content{Objects: map[object.Ref]*storepb.Object{}, Entries: map[uint64]*storepb.Entry{}, Interests: map[uint64]*storepb.Interest{}}
	if err := s.View(func(tx *store.Tx) error {
		if err := tx.Objects(func(r object.Ref, o *storepb.Object) error { c.Objects[r] = o; return nil }); err != nil {
			return err
		}
		if err := tx.Interests(func(id uint64, i *storepb.Interest) error { c.Interests[id] = i; return nil }); err != nil {
			return err
		}
		return tx.Entries(func(id uint64, e *storepb.Entry) error { c.Entries[id] = e; return nil })
	}); err != nil {
		t.Fatal(err)
	}
	return c
}
