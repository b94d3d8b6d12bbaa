package drain_test

import (
	"testing"

	"github.com/skerry-io/skerry/edge/internal/drain"
	"github.com/skerry-io/skerry/edge/internal/store"
)

func TestInStore(t *testing.T) {
	file := t.TempDir() + "/store.db"
	open := func() *store.Store {
		t.Helper()
		s, err := store.Open(t.Context(), store.Config{Path: file})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := open()
	if kept, err := drain.InStore(s).Load(); err != nil || kept != nil {
		t.Errorf("a new store has %q, %v; want nothing", kept, err)
	}
	if err := drain.InStore(s).Save(t.Context(), []byte("state")); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open()
	defer s.Close()
	if kept, err := drain.InStore(s).Load(); err != nil || string(kept) != "state" {
		t.Errorf("after a restart there is %q, %v", kept, err)
	}
}
