package vip

import (
	"context"
	"errors"
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/edge/internal/core/store"
)

type disk struct {
	kept map[string][]byte
	full bool
}

func (d *disk) Load() (map[string][]byte, error) { return maps.Clone(d.kept), nil }

func (d *disk) Save(_ context.Context, changes map[string][]byte) error {
	if d.full {
		return store.ErrFull
	}
	maps.Copy(d.kept, changes)
	return nil
}

// With a full disk findings count, orders and trials do not: those must be on the disk.
func TestMemory_fullDisk(t *testing.T) {
	d := &disk{kept: map[string][]byte{}}
	a := New(Config{Memory: d})
	if err := a.load(); err != nil {
		t.Fatal(err)
	}
	change := func(edit func(*memory)) {
		t.Helper()
		if err := a.change(t.Context(), edit); errors.Is(err, store.ErrFull) != d.full {
			t.Errorf("a change: %v", err)
		}
	}
	change(func(m *memory) { m.BootID, m.Proven = "b", []types.UID{"u"} })
	d.full = true
	change(func(m *memory) { m.Clear = []string{"u/eth0"} })
	change(func(m *memory) { m.Trying = []types.UID{"v"} })
	change(func(m *memory) { m.CutOff = map[types.UID]string{"w": "why"} })
	if err := a.SetMaintenance(t.Context(), true); !errors.Is(err, store.ErrFull) {
		t.Errorf("an order: %v", err)
	}
	want := memory{BootID: "b", Proven: []types.UID{"u"}, Clear: []string{"u/eth0"}, CutOff: map[types.UID]string{"w": "why"}}
	if diff := cmp.Diff(want, a.memory); diff != "" {
		t.Errorf("what counts (-want +got):\n%s", diff)
	}
	if err := a.keep(t.Context()); !errors.Is(err, store.ErrFull) {
		t.Errorf("keeping it: %v", err)
	}
	d.full = false
	if err := a.keep(t.Context()); err != nil {
		t.Error(err)
	}
	next := New(Config{Memory: d})
	if err := next.load(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, next.memory); diff != "" {
		t.Errorf("what the next run has (-want +got):\n%s", diff)
	}
}
