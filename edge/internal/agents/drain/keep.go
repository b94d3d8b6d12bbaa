package drain

import (
	"encoding/json"
	"fmt"

	"github.com/skerry-io/skerry/edge/internal/core/agent"
	"github.com/skerry-io/skerry/edge/internal/core/store"
)

// StateIn returns the state in a store; nil if there is no state.
func StateIn(s *store.Store) (*State, error) {
	kept, err := agent.NewMemory(s, string(Name)).Load()
	if err != nil || kept[stateKey] == nil {
		return nil, err
	}
	state := &State{}
	if err := json.Unmarshal(kept[stateKey], state); err != nil {
		return nil, fmt.Errorf("reading the operations: %w", err)
	}
	return state, nil
}
