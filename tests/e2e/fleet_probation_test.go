package e2e_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// restarted ends edgecore by a signal, and waits until its supervisor has started it again.
func (f *fleet) restarted(node, signal string) {
	f.T.Helper()
	pid := func() string { return f.onHost(node, "sh", "-c", "pgrep -x edgecore || true") }
	before := ""
	f.WaitFor("an edgecore", func(context.Context) error { // it may be between two executions
		if before = pid(); before == "" {
			return errors.New("none runs")
		}
		return nil
	})
	f.onHost(node, "pkill", "-"+signal, "-x", "edgecore")
	f.WaitFor("another edgecore", func(ctx context.Context) error {
		var status struct{}
		if err := f.AskSocket(ctx, node, &status); err != nil {
			return err
		}
		if now := pid(); now == "" || now == before {
			return errors.New("it is the same")
		}
		return nil
	})
}

// A confirmed version that crashes three times in its probation is rolled back, and its operation
// has failed then. A restart on request is no crash, and neither is a power cut.
func TestFleet_24_CrashesInTheProbationGoBack(t *testing.T) {
	f := newSystem(t).fleet()
	target := f.add("v9.5.0", f.another("v9.5.0"), nil)
	f.upgrade("up", "v9.5.0", "")
	if o := f.waitOperation("up", "confirmed", ended); !isDone(v1alpha1.OperationConfirmed)(o) {
		t.Fatalf("%+v", o.Status)
	}
	f.restarted("edge1", "TERM")
	for crashes := range 3 {
		if s := f.slots(); s.Confirmed.Digest != target.Digest || s.Former.Crashes != crashes {
			t.Fatalf("after %d crashes: %+v", crashes, s)
		}
		f.restarted("edge1", "KILL")
		if crashes == 1 {
			f.Reboot("edge1", false)
			f.waitLinked("edge1")
		}
	}
	if s := f.slots(); s.Confirmed.Digest == target.Digest {
		t.Errorf("after three crashes: %+v", s)
	}
	o := f.waitOperation("up", "overturned", isDone(v1alpha1.OperationRolledBack))
	if text := o.Status.Conditions[0].Message; !strings.Contains(text, "crashed 3 times") {
		t.Errorf("the message is %q", text)
	}
	f.upgrade("again", "v9.5.0", "")
	if o := f.waitOperation("again", "rejected", ended); !isDone(v1alpha1.OperationRejected)(o) {
		t.Errorf("the same version again: %+v", o.Status)
	}
}
