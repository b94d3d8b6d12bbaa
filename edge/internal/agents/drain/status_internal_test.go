package drain

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

func TestReportIsBounded(t *testing.T) {
	o := Operation{Stage: Waiting, Phase: v1alpha1.DrainCordoned, Output: strings.Repeat("é", 5000), Message: strings.Repeat("ß", 2000)}
	for i := range maxBlocked {
		o.Blocked = append(o.Blocked, v1alpha1.BlockedPod{
			Namespace: "a-namespace", Name: fmt.Sprintf("%s-%d", strings.Repeat("n", 200), i), Reason: v1alpha1.BlockedByBudget, Message: strings.Repeat("m", maxMessage),
		})
	}
	raw, err := reportOf(statusOf(o, ""))
	if err != nil || len(raw) > maxReport+len("é")*maxOutput {
		t.Fatalf("%d bytes, %v", len(raw), err)
	}
	var s v1alpha1.NodeOperationStatus
	if err := json.Unmarshal(raw, &s); err != nil || len([]rune(s.Output)) != maxOutput || len(o.Blocked) != maxBlocked || len(o.Blocked[0].Message) != maxMessage {
		t.Errorf("%v: the output has %d characters, the operation %d pods", err, len([]rune(s.Output)), len(o.Blocked))
	}
}

// An operation that waits for its window has begun for the device, which may have fetched its
// program, and waits for everybody else: a set that is paused takes it back.
func TestOperationInFrontOfItsWindowWaits(t *testing.T) {
	for name, c := range map[string]struct {
		work Work
		want string
	}{
		"before its window": {Work{Message: "fetched; waits for its window", Waits: true}, "Waiting"},
		"fetches":           {Work{Message: "fetched 1 of 2 KiB"}, "Running"},
		"put off":           {Work{Message: "waits for the link"}, "Running"},
	} {
		o := Operation{Stage: Running, Spec: v1alpha1.NodeOperationSpec{Operation: v1alpha1.OperationUpgrade}}
		s := State{Operations: []Operation{o}}
		s.worked("", c.work, Facts{})
		if got := statusOf(s.Operations[0], "").Conditions[0].Reason; got != c.want {
			t.Errorf("%s: the reason is %s, want %s", name, got, c.want)
		}
	}
}

// An ended operation is reported in full for a while, then by name while its object exists, then
// not at all.
func TestForget(t *testing.T) {
	var s State
	end := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	for i := range 3 * maxEnded {
		o := Operation{Name: fmt.Sprint(i), UID: "uid", Stage: Failed, EndedAt: end, Message: "why", Reported: true}
		switch {
		case i < maxEnded/2:
			o.UID = "" // made on the device, and never known in the cloud
		case i < maxEnded:
			o.Gone = true
		case i == maxEnded:
			o.Reported = false
		}
		s.Operations = append(s.Operations, o)
	}
	s.Step(Facts{Now: end}, DefaultRules())
	var got []string
	for _, o := range s.Operations {
		got = append(got, o.Name+o.Message)
	}
	var want []string
	for i := maxEnded; i < 3*maxEnded; i++ {
		text := fmt.Sprint(i)
		if i == maxEnded || i >= 2*maxEnded {
			text += "why"
		}
		want = append(want, text)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
