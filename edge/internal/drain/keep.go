package drain

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/skerry-io/skerry/edge/internal/store"
)

// InStore keeps the state in the edge's store.
func InStore(s *store.Store) Store { return inStore{s} }

const (
	storeModule = "drain"
	storeKey    = "state"
)

type inStore struct{ store *store.Store }

func (s inStore) Load() (state []byte, err error) {
	err = s.store.View(func(tx *store.Tx) (err error) {
		state, err = tx.State(storeModule, storeKey)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading the store: %w", err)
	}
	return state, nil
}

func (s inStore) Save(ctx context.Context, state []byte) error {
	err := s.store.Update(ctx, func(tx *store.Tx) error { return tx.SetState(storeModule, storeKey, state) })
	if err != nil {
		return fmt.Errorf("writing the store: %w", err)
	}
	return nil
}

// StateIn is what a store keeps; nil where it keeps nothing.
func StateIn(s *store.Store) (*State, error) {
	kept, err := InStore(s).Load()
	if err != nil || kept == nil {
		return nil, err
	}
	state := &State{}
	if err := json.Unmarshal(kept, state); err != nil {
		return nil, fmt.Errorf("reading the operations: %w", err)
	}
	return state, nil
}
