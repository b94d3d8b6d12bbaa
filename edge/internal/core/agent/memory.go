package agent

import (
	"context"
	"fmt"

	"github.com/skerry-io/skerry/edge/internal/core/store"
)

// Memory is the state of an agent that survives restarts: small values by key.
type Memory interface {
	Load() (map[string][]byte, error)
	// Save makes the changes atomically; nil deletes. They are on the disk when it returns nil.
	Save(ctx context.Context, changes map[string][]byte) error
}

// memory is a part of the edge's store, under the agent's name.
type memory struct {
	store *store.Store
	name  string
}

// NewMemory is the memory of the agent of that name.
func NewMemory(s *store.Store, name string) Memory { return memory{s, name} }

// Load implements Memory.
func (m memory) Load() (map[string][]byte, error) {
	all := map[string][]byte{}
	err := m.store.View(func(tx *store.Tx) error {
		return tx.States(m.name, func(key string, state []byte) error {
			all[key] = state
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("reading the state of %s: %w", m.name, err)
	}
	return all, nil
}

// Save implements Memory.
func (m memory) Save(ctx context.Context, changes map[string][]byte) error {
	err := m.store.Update(ctx, func(tx *store.Tx) error {
		for key, state := range changes {
			if err := tx.SetState(m.name, key, state); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("writing the state of %s: %w", m.name, err)
	}
	return nil
}
