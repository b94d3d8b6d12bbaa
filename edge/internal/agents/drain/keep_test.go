package drain_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/agents/drain"
	"github.com/skerry-io/skerry/edge/internal/core/agent"
	"github.com/skerry-io/skerry/edge/internal/core/store"
)

// The state saved by an agent can be read when edgecore does not run.
func TestStateIn(t *testing.T) {
	s, err := store.Open(t.Context(), store.Config{Path: t.TempDir() + "/store.db"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if state, err := drain.StateIn(s); err != nil || state != nil {
		t.Errorf("a new store has %v, %v; want nothing", state, err)
	}
	want := &drain.State{Drain: drain.Drain{Phase: v1alpha1.DrainCordoned}, Operations: []drain.Operation{{Name: "one", Stage: drain.Waiting}}}
	raw, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	if err := agent.NewMemory(s, string(drain.Name)).Save(t.Context(), map[string][]byte{"state": raw}); err != nil {
		t.Fatal(err)
	}
	state, err := drain.StateIn(s)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, state); diff != "" {
		t.Errorf("what was kept (-want +got):\n%s", diff)
	}
}
