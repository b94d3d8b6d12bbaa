package route

import (
	"context"
	"fmt"

	"github.com/skerry-io/skerry/edge/internal/store"
)

// InStore is a State in the edge's store.
func InStore(s *store.Store) State { return inStore{s} }

type inStore struct{ store *store.Store }

func (s inStore) Load() (map[string][]byte, error) {
	all := map[string][]byte{}
	err := s.store.View(func(tx *store.Tx) error {
		return tx.States(string(Name), func(key string, state []byte) error {
			all[key] = state
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("reading the store: %w", err)
	}
	return all, nil
}

func (s inStore) Save(ctx context.Context, changes map[string][]byte) error {
	err := s.store.Update(ctx, func(tx *store.Tx) error {
		for key, state := range changes {
			if err := tx.SetState(string(Name), key, state); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("writing the store: %w", err)
	}
	return nil
}
