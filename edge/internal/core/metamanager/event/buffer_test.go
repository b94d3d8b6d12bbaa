package event_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/skerry-io/skerry/edge/internal/core/metamanager/event"
	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/edge/internal/core/store"
)

func open(t *testing.T) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), store.Config{Path: filepath.Join(t.TempDir(), "edge.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// put adds an event, and drops the oldest.
func put(b *event.Buffer, name string) {
	b.Put(object.Object{Ref: event.Ref("default", name), Raw: []byte("event")}, -1)
	var gone []object.Ref
	b.Trim(b.Count(), func(ref object.Ref) int {
		gone = append(gone, ref)
		return len("event")
	})
	for _, ref := range gone {
		b.Remove(ref, len("event"))
	}
}

func stored(t *testing.T, s *store.Store) (names []string) {
	t.Helper()
	if err := s.View(func(tx *store.Tx) error {
		all, err := event.Read(tx)
		for _, e := range all {
			names = append(names, e.Ref.Name)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	return names
}

// While the disk fails, the unwritten changes are bounded by the current events and those on the
// disk; when it works again it gets the current events.
func TestBuffer_isBoundedWhileTheDiskTakesNothing(t *testing.T) {
	const most = 10
	s, broken := open(t), open(t)
	if err := broken.Close(); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel() // a closed store is waited for until then
	b := event.New(event.Limits{Events: most, Bytes: 1 << 20})
	for n := range most {
		put(b, fmt.Sprint("early-", n))
	}
	if err := b.Flush(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	var want []string
	for n := range 1000 {
		name := fmt.Sprintf("late-%03d", n)
		put(b, name)
		if n >= 1000-most {
			want = append(want, name)
		}
		if n%7 == 0 {
			if err := b.Flush(ended, broken); err == nil {
				t.Fatal("a closed store takes events")
			}
		}
	}
	if n := b.Unwritten(); n > 2*most {
		t.Errorf("%d changes are kept of %d events", n, most)
	}
	if err := b.Flush(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, stored(t, s)); diff != "" || b.Unwritten() != 0 {
		t.Errorf("%d changes are left; on the disk (-want +got):\n%s", b.Unwritten(), diff)
	}
}

// An event that is dropped while it is being written is deleted from the disk too.
func TestBuffer_eventsThatGoWhileTheyAreWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t)
		b := event.New(event.Limits{Events: 10, Bytes: 1 << 20})
		put(b, "stays")
		put(b, "goes")
		done := make(chan error, 2)
		busy := make(chan struct{})
		go func() { done <- s.Update(t.Context(), func(*store.Tx) error { <-busy; return nil }) }()
		synctest.Wait()
		go func() { done <- b.Flush(t.Context(), s) }()
		synctest.Wait()
		b.Remove(event.Ref("default", "goes"), len("event"))
		close(busy)
		for range 2 {
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
		if err := b.Flush(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"stays"}, stored(t, s)); diff != "" {
			t.Errorf("on the disk (-want +got):\n%s", diff)
		}
	})
}
