package main

import (
	"strings"
	"testing"

	"github.com/skerry-io/skerry/edge/app"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
)

// A join by force under another name first warns of the losses and of the Node that stays behind.
func TestClaims_41_JoinByForceSaysWhatIsLost(t *testing.T) {
	s := app.Status{Node: "edge1", Data: &metamanager.Status{}}
	s.Data.Outbox.Waiting = map[string]int{"EVENT": 10, "POD_STATUS": 1}
	got := strings.Join(givenUp(s, "edge1y"), "\n")
	for _, want := range []string{"11 writes of node edge1", "cloudcore node revoke edge1", "until it is restarted"} {
		if !strings.Contains(got, want) {
			t.Errorf("it lacks %q:\n%s", want, got)
		}
	}
	if got := givenUp(s, "edge1"); len(got) > 0 {
		t.Errorf("under the same name: %q", got)
	}
	s.Data.Outbox.Waiting = nil
	if got := strings.Join(givenUp(s, "edge2"), "\n"); strings.Contains(got, "lost") {
		t.Errorf("nothing waits: %s", got)
	}
	if got := givenUp(app.Status{}, "edge2"); len(got) > 0 {
		t.Errorf("a device that never joined: %q", got)
	}
}
