package endpoints_test

import (
	"context"
	"maps"

	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/edge/internal/core/store"
)

type inMemory struct {
	kept map[string][]byte
	full bool // writes fail
}

func (m *inMemory) Load() (map[string][]byte, error) { return maps.Clone(m.kept), nil }

func (m *inMemory) Save(_ context.Context, changes map[string][]byte) error {
	if m.full {
		return store.ErrFull
	}
	if m.kept == nil {
		m.kept = map[string][]byte{}
	}
	maps.Copy(m.kept, changes)
	return nil
}

// ignored is the view of a device without slices.
type ignored struct{}

func (ignored) Recorrect(context.Context, ...object.Ref) error { return nil }
