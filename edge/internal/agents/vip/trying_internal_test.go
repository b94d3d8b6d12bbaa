package vip

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/edge/internal/core/agent"
)

// Between the end of a trial and the Sync that takes its result in, an address with which the cloud
// was lost is not claimed again.
func TestWithheld_UntilTheResultIsTakenIn(t *testing.T) {
	for name, test := range map[string]struct {
		trial *trial
		want  map[types.UID]string
	}{
		"it is being found out":    {&trial{uids: []types.UID{"a"}, withheld: "no answer"}, map[types.UID]string{"a": "no answer"}},
		"it was the address":       {&trial{result: &trialResult{uids: []types.UID{"a"}, cutOff: "lost"}}, map[types.UID]string{"a": "lost"}},
		"it was another reason":    {&trial{result: &trialResult{uids: []types.UID{"a"}}}, map[types.UID]string{}},
		"the cloud was there":      {&trial{result: &trialResult{uids: []types.UID{"a"}, proven: true}}, map[types.UID]string{}},
		"there is nothing to know": {&trial{}, map[types.UID]string{}},
	} {
		t.Run(name, func(t *testing.T) {
			r := &run{Agent: &Agent{}, kit: &agent.Run{}, trial: test.trial}
			if diff := cmp.Diff(test.want, r.withheldNow()); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}
