package drain_test

import (
	"testing"
	"time"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/agents/drain"
)

func skip(s *v1alpha1.NodeOperationSpec) { s.Drain = v1alpha1.DrainSkip } // as Agent.Request makes it

// An upgrade asks for no drain, and its end leaves no cordon, also next to a drain.
func TestUpgradeNeedsNoDrain(t *testing.T) {
	w := newWorld(t)
	w.ask("up", v1alpha1.OperationUpgrade, skip)
	w.does(drain.Do, drain.Result{Work: drain.Work{Message: "waits for the link", Next: w.facts.Now.Add(time.Minute)}})
	w.does(drain.Wait)
	if w.last.Until != w.facts.Now.Add(time.Minute) {
		t.Errorf("it waits until %v", w.last.Until)
	}
	w.is(v1alpha1.DrainNotRequested, drain.Running)
	w.facts.Now = w.facts.Now.Add(time.Minute)
	w.does(drain.Do, drain.Result{Work: drain.Work{Ended: drain.Done, Reason: v1alpha1.OperationConfirmed}})
	w.does(drain.Wait)
	w.is(v1alpha1.DrainNotRequested, drain.Done)
}

// A download does not hold up a drain or a reboot: it continues when these wait.
func TestDownloadGivesWay(t *testing.T) {
	w := newWorld(t)
	w.ask("up", v1alpha1.OperationUpgrade, skip)
	w.does(drain.Do)
	w.ask("reboot", v1alpha1.OperationReboot)
	w.does(drain.Check, drain.Result{Alone: true})
	w.does(drain.Operate, drain.Result{})
	w.does(drain.Wait)
	w.is(v1alpha1.DrainNotSupported, drain.Running, drain.Running)
	w.facts.Boot = "2"
	w.does(drain.Do)
	w.is(v1alpha1.DrainNotRequested, drain.Running, drain.Done)
}

// A trial holds up all else, and no cancellation ends it; before it, one does.
func TestTrialComesFirst(t *testing.T) {
	w := newWorld(t)
	w.ask("pull", v1alpha1.OperationImagePull, skip)
	w.ask("up", v1alpha1.OperationUpgrade, skip)
	w.does(drain.Do, drain.Result{Work: drain.Work{Next: w.facts.Now.Add(time.Hour)}})
	w.does(drain.Do, drain.Result{Work: drain.Work{Tried: true}})
	w.ask("drain", v1alpha1.OperationDrain)
	w.state.Operations[0].Spec.Cancel, w.state.Operations[1].Spec.Cancel = true, true
	w.does(drain.Do)
	if w.last.Operation != "up" {
		t.Errorf("it continues with %s", w.last.Operation)
	}
	w.is(v1alpha1.DrainRequested, drain.Cancelled, drain.Running)
}

// A trial that can't go on, as on a full disk, is put off like others, and still comes first.
func TestTrialIsPutOff(t *testing.T) {
	w := newWorld(t)
	w.ask("up", v1alpha1.OperationUpgrade, skip)
	w.ask("pull", v1alpha1.OperationImagePull, skip)
	w.does(drain.Do, drain.Result{Work: drain.Work{Tried: true, Next: w.facts.Now.Add(time.Minute)}})
	w.does(drain.Wait)
	if w.last.Until != w.facts.Now.Add(time.Minute) {
		t.Errorf("it waits until %v", w.last.Until)
	}
	w.later(time.Minute)
	w.does(drain.Do)
	if w.last.Operation != "up" {
		t.Errorf("it continues with %s", w.last.Operation)
	}
}

// A clock that was put back holds an operation up for no longer than was meant.
func TestWorkWithAClockPutBack(t *testing.T) {
	w := newWorld(t)
	w.ask("up", v1alpha1.OperationUpgrade, skip)
	w.does(drain.Do, drain.Result{Work: drain.Work{Next: w.facts.Now.Add(time.Minute)}})
	w.facts.Now = w.facts.Now.Add(-48 * time.Hour)
	w.does(drain.Do)
}
