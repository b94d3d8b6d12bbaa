package drain_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/agents/drain"
)

// The defer table of the design, and the numbers of the phases.
func TestDeferred(t *testing.T) {
	type answer struct{ wait, ask bool }
	want := []answer{
		0: {false, false}, 1: {false, false}, 2: {true, true}, 3: {true, false}, 4: {true, false},
		5: {true, false}, 6: {true, true}, 7: {true, false}, 8: {true, true}, 9: {false, false},
	}
	var got []answer
	for _, p := range v1alpha1.DrainPhases() {
		wait, ask := drain.Deferred(p)
		got = append(got, answer{wait, ask})
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(answer{})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// world steps a state through events, with a clock of its own.
type world struct {
	t     *testing.T
	state drain.State
	facts drain.Facts
	rules drain.Rules
	last  drain.Action
}

func newWorld(t *testing.T) *world {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	return &world{t: t, rules: drain.DefaultRules(), facts: drain.Facts{Now: now, Boot: "1", Reachable: true, Ready: true}}
}

func (w *world) ask(name string, operation v1alpha1.OperationType, change ...func(*v1alpha1.NodeOperationSpec)) {
	o := drain.Operation{Name: name, Stage: drain.Waiting, RequestedAt: w.facts.Now, Spec: v1alpha1.NodeOperationSpec{
		Operation: operation, Drain: v1alpha1.DrainRequired, WhenUnreachable: v1alpha1.UnreachableDefer,
	}}
	for _, c := range change {
		c(&o.Spec)
	}
	w.state.Operations = append(w.state.Operations, o)
}

// does steps and expects an action; res, if given, is its result.
func (w *world) does(verb drain.Verb, res ...drain.Result) {
	w.t.Helper()
	w.last = w.state.Step(w.facts, w.rules)
	if w.last.Verb != verb {
		w.t.Fatalf("it does %v at %s, want %s", w.last, w.state.Drain.Phase, verb)
	}
	if again := w.state.Step(w.facts, w.rules); again != w.last {
		w.t.Fatalf("a repeated step does %v instead of %v", again, w.last)
	}
	for _, r := range res {
		w.state.Apply(w.last, r, w.facts, w.rules)
	}
}

func (w *world) is(phase v1alpha1.DrainPhase, stages ...drain.Stage) {
	w.t.Helper()
	if w.state.Drain.Phase != phase {
		w.t.Errorf("phase %s, want %s", w.state.Drain.Phase, phase)
	}
	for i, s := range stages {
		if o := w.state.Operations[i]; o.Stage != s {
			w.t.Errorf("%s is %s (%s), want %s", o.Name, o.Stage, o.Message, s)
		}
	}
}

func (w *world) later(d time.Duration) { w.facts.Now = w.facts.Now.Add(d) }

func TestStep(t *testing.T) {
	good, bad := drain.Result{}, drain.Result{Err: errors.New("500")}
	cut := drain.Result{Err: errors.New("503"), Interrupted: true}
	policy := func(p v1alpha1.DrainPolicy) func(*v1alpha1.NodeOperationSpec) {
		return func(s *v1alpha1.NodeOperationSpec) { s.Drain = p }
	}
	proceed := func(s *v1alpha1.NodeOperationSpec) { s.WhenUnreachable = v1alpha1.UnreachableProceed }
	fails := func(w *world, attempts int) {
		w.does(drain.Check, good)
		w.does(drain.Cordon, good)
		for n := range attempts {
			if n > 0 {
				w.does(drain.Wait)
				w.later(w.rules.Interval)
			}
			w.does(drain.Attempt, bad)
		}
	}
	tests := map[string]func(w *world){
		"nothing to do": func(w *world) {
			w.does(drain.Wait)
			w.is(v1alpha1.DrainNotRequested)
		},
		"a reboot": func(w *world) {
			w.ask("a", v1alpha1.OperationReboot)
			w.does(drain.Check, good)
			w.does(drain.Cordon, good)
			w.does(drain.Attempt, good)
			w.is(v1alpha1.DrainComplete, drain.Waiting)
			w.does(drain.Operate, good)
			w.does(drain.Wait)
			w.is(v1alpha1.DrainComplete, drain.Running)
			w.facts.Boot, w.facts.Ready, w.facts.Reachable = "2", false, false
			w.does(drain.Wait)
			w.is(v1alpha1.DrainNotRequested, drain.Done)
			w.facts.Reachable = true
			w.does(drain.Wait)
			w.facts.Ready = true
			w.does(drain.Uncordon, good)
			w.does(drain.Wait)
		},
		"alone": func(w *world) {
			w.ask("a", v1alpha1.OperationReboot)
			w.does(drain.Check, drain.Result{Alone: true})
			w.is(v1alpha1.DrainNotSupported, drain.Waiting)
			w.does(drain.Operate)
		},
		"switched off, without a link": func(w *world) {
			w.rules.Off, w.facts.Reachable = true, false
			w.ask("a", v1alpha1.OperationReboot)
			w.does(drain.Operate)
			w.is(v1alpha1.DrainNotSupported, drain.Running)
		},
		"no drain wanted": func(w *world) {
			w.facts.Reachable = false
			w.ask("a", v1alpha1.OperationReboot, policy(v1alpha1.DrainSkip))
			w.does(drain.Operate)
			w.is(v1alpha1.DrainNotRequested, drain.Running)
		},
		"five attempts and no more": func(w *world) {
			w.ask("a", v1alpha1.OperationReboot)
			fails(w, 5)
			w.is(v1alpha1.DrainFailed, drain.Waiting)
			w.does(drain.Uncordon, bad)
			w.is(v1alpha1.DrainFailed, drain.Failed)
			w.does(drain.Wait)
			w.later(w.rules.RetryInterval)
			w.does(drain.Uncordon, good)
			w.does(drain.Wait)
			w.ask("b", v1alpha1.OperationReboot) // a new request starts a new drain
			w.does(drain.Check)
			w.is(v1alpha1.DrainRequested, drain.Failed, drain.Waiting)
		},
		"best effort goes ahead after five": func(w *world) {
			w.ask("a", v1alpha1.OperationReboot, policy(v1alpha1.DrainBestEffort))
			fails(w, 5)
			w.does(drain.Operate)
			w.is(v1alpha1.DrainFailed, drain.Running)
		},
		"no answer uses up no attempt": func(w *world) {
			w.ask("a", v1alpha1.OperationReboot)
			w.does(drain.Check, cut)
			w.later(w.rules.RetryInterval)
			w.does(drain.Check, good)
			w.does(drain.Cordon, cut)
			w.later(w.rules.RetryInterval)
			w.does(drain.Cordon, good)
			for range 20 {
				w.does(drain.Attempt, cut)
				w.does(drain.Wait)
				w.later(w.rules.RetryInterval)
			}
			w.does(drain.Attempt, bad)
			if w.state.Drain.Attempts != 1 {
				w.t.Errorf("%d attempts, want 1", w.state.Drain.Attempts)
			}
		},
		"a refusal of rights is believed after 30 s": func(w *world) {
			refused := drain.Result{Err: errors.New("403"), Unauthorized: true}
			w.ask("a", v1alpha1.OperationReboot)
			w.does(drain.Check, good)
			w.does(drain.Cordon, good)
			w.does(drain.Attempt, refused)
			for range 5 {
				w.later(w.rules.RetryInterval)
				w.does(drain.Attempt, refused)
			}
			w.is(v1alpha1.DrainCordoned, drain.Waiting)
			w.later(w.rules.RetryInterval)
			w.does(drain.Attempt, refused)
			w.is(v1alpha1.DrainRetrying, drain.Waiting)
		},
		"without a link it waits for ever": func(w *world) {
			w.facts.Reachable = false
			w.ask("a", v1alpha1.OperationReboot)
			w.does(drain.Wait)
			w.later(1000 * time.Hour)
			w.does(drain.Wait)
			w.is(v1alpha1.DrainRequested, drain.Waiting)
		},
		"or goes ahead after 300 s, if it may": func(w *world) {
			w.facts.Reachable = false
			w.ask("a", v1alpha1.OperationReboot, proceed)
			w.does(drain.Wait)
			w.later(299 * time.Second)
			w.does(drain.Wait)
			w.later(time.Second)
			w.does(drain.Operate)
		},
		"300 s in one piece": func(w *world) {
			w.facts.Reachable = false
			w.ask("a", v1alpha1.OperationReboot, proceed)
			w.does(drain.Wait)
			w.later(299 * time.Second)
			w.facts.Reachable = true
			w.does(drain.Check)
			w.facts.Reachable = false
			w.does(drain.Wait)
			w.later(299 * time.Second)
			w.does(drain.Wait)
		},
		"a link without an API behind it is no API": func(w *world) {
			w.ask("a", v1alpha1.OperationReboot, proceed)
			w.does(drain.Check, cut)
			w.does(drain.Wait)
			for range 59 {
				w.later(w.rules.RetryInterval)
				w.does(drain.Check, cut)
			}
			w.does(drain.Wait)
			w.later(w.rules.RetryInterval)
			w.does(drain.Operate)
		},
		"numbers that change in mid-drain count for the next": func(w *world) {
			w.ask("a", v1alpha1.OperationReboot)
			w.does(drain.Check, good)
			w.does(drain.Cordon, good)
			w.rules.Attempts, w.rules.Interval = 1, time.Hour
			w.does(drain.Attempt, bad)
			w.does(drain.Wait)
			w.later(drain.DefaultRules().Interval)
			w.does(drain.Attempt, bad)
			w.is(v1alpha1.DrainRetrying, drain.Waiting)
		},
		"a clock that was put back holds nothing up": func(w *world) {
			w.ask("a", v1alpha1.OperationReboot)
			w.does(drain.Check, good)
			w.does(drain.Cordon, good)
			w.does(drain.Attempt, bad)
			w.does(drain.Wait)
			w.later(-20000 * time.Hour)
			w.does(drain.Attempt)
		},
		"the cordon is removed, and then a reboot is requested": func(w *world) {
			w.ask("a", v1alpha1.OperationDrain)
			w.does(drain.Check, good)
			w.does(drain.Cordon, good)
			w.does(drain.Attempt, good)
			w.does(drain.Wait)
			w.facts.Open = true
			w.ask("b", v1alpha1.OperationReboot)
			w.does(drain.Check, good)
			w.does(drain.Cordon, good)
			w.does(drain.Attempt, good)
			w.facts.Open = false
			w.does(drain.Operate)
		},
		"what was alone then need not be now": func(w *world) {
			w.ask("a", v1alpha1.OperationDrain)
			w.does(drain.Check, drain.Result{Alone: true})
			w.does(drain.Wait)
			w.is(v1alpha1.DrainNotRequested, drain.Done)
			if o := w.state.Operations[0]; o.Reason != "NotDrained" || o.Phase != v1alpha1.DrainNotSupported {
				w.t.Errorf("%s, %s", o.Reason, o.Phase)
			}
			w.ask("b", v1alpha1.OperationReboot)
			w.does(drain.Check)
		},
		"a reboot that never comes can be cancelled": func(w *world) {
			w.ask("a", v1alpha1.OperationReboot)
			w.does(drain.Check, good)
			w.does(drain.Cordon, good)
			w.does(drain.Attempt, good)
			w.does(drain.Operate, good)
			w.state.Operations[0].Spec.Cancel = true
			w.does(drain.Uncordon, good)
			w.is(v1alpha1.DrainNotRequested, drain.Cancelled)
		},
		"a hook that hangs is ended when its operation is cancelled": func(w *world) {
			w.ask("a", v1alpha1.OperationReboot)
			w.ask("b", v1alpha1.OperationReboot)
			w.does(drain.Check, good)
			w.does(drain.Cordon, good)
			w.does(drain.Attempt, good)
			w.does(drain.Operate)
			if m := w.state.Operations[1].Message; m != "waits for the end of the hook of a" {
				w.t.Errorf("the other one says %q", m)
			}
			w.state.Operations[0].Spec.Cancel = true
			w.does(drain.Abort, bad) // it can't be ended, or not yet
			w.does(drain.Wait)
			w.later(w.rules.RetryInterval)
			w.does(drain.Abort, good)
			w.does(drain.Operate)
			w.is(v1alpha1.DrainComplete, drain.Cancelled, drain.Running)
		},
		"an image is fetched before anything is cordoned": func(w *world) {
			w.rules.Prefetch = true
			w.ask("a", v1alpha1.OperationImageUpdate)
			w.does(drain.Fetch)
			w.is(v1alpha1.DrainNotRequested, drain.Waiting)
			w.does(drain.Fetch, good)
			w.does(drain.Check, good)
			w.does(drain.Cordon, good)
			w.does(drain.Attempt, good)
			w.does(drain.Operate, good)
		},
		"an image that can't be had ends the operation": func(w *world) {
			w.rules.Prefetch = true
			w.ask("a", v1alpha1.OperationImageUpdate)
			w.does(drain.Fetch, bad)
			w.does(drain.Wait)
			w.is(v1alpha1.DrainNotRequested, drain.Failed)
			if r := w.state.Operations[0].Reason; r != "PrefetchFailed" {
				w.t.Errorf("reason %s", r)
			}
		},
		"a fetch is cancelled": func(w *world) {
			w.rules.Prefetch = true
			w.ask("a", v1alpha1.OperationImageUpdate)
			w.does(drain.Fetch)
			w.state.Operations[0].Spec.Cancel = true
			w.does(drain.Abort, good)
			w.does(drain.Wait)
			w.is(v1alpha1.DrainNotRequested, drain.Cancelled)
		},
		"a fetch waits for the drain that is under way": func(w *world) {
			w.rules.Prefetch = true
			w.ask("a", v1alpha1.OperationReboot)
			w.does(drain.Check, good)
			w.ask("b", v1alpha1.OperationImageUpdate)
			w.does(drain.Cordon, good)
			w.does(drain.Attempt, good)
			w.does(drain.Operate, good)
			w.does(drain.Fetch)
			w.facts.Boot = "2" // it is begun again
			w.does(drain.Fetch)
			w.is(v1alpha1.DrainNotRequested, drain.Done, drain.Waiting)
		},
		"forced without a link": func(w *world) {
			w.facts.Reachable = false
			w.ask("a", v1alpha1.OperationReboot)
			w.does(drain.Wait)
			w.state.Force(false, w.facts.Now)
			w.does(drain.Operate, good)
			w.facts.Reachable = true
			w.does(drain.Wait)
			w.is(v1alpha1.DrainComplete, drain.Running)
		},
		"a drain alone holds until it is cancelled": func(w *world) {
			w.ask("a", v1alpha1.OperationDrain)
			w.does(drain.Check, good)
			w.does(drain.Cordon, good)
			w.does(drain.Attempt, good)
			w.does(drain.Wait)
			w.is(v1alpha1.DrainComplete, drain.Done)
			w.state.Operations[0].Spec.Cancel = true
			w.does(drain.Uncordon, good)
			w.is(v1alpha1.DrainNotRequested, drain.Done)
		},
		"a hook that fails gives the node back": func(w *world) {
			w.ask("a", v1alpha1.OperationReboot)
			w.does(drain.Check, good)
			w.does(drain.Cordon, good)
			w.does(drain.Attempt, good)
			w.does(drain.Operate, drain.Result{Err: errors.New("exit status 1"), ExitCode: 1})
			w.does(drain.Uncordon, good)
			w.is(v1alpha1.DrainNotRequested, drain.Failed)
		},
		"a boot in mid-drain is the reboot that was asked for": func(w *world) {
			w.ask("a", v1alpha1.OperationReboot)
			w.does(drain.Check, good)
			w.does(drain.Cordon, good)
			w.does(drain.Attempt)
			w.facts.Boot, w.facts.Ready = "2", true
			w.does(drain.Uncordon, good)
			w.does(drain.Wait)
			w.is(v1alpha1.DrainNotRequested, drain.Done)
			if o := w.state.Operations[0]; o.Reason != "Booted" || o.BootBefore != "1" || o.BootAfter != "2" {
				w.t.Errorf("%s, boots %s and %s", o.Reason, o.BootBefore, o.BootAfter)
			}
		},
		"a boot in mid-drain is not the update that was asked for beside a reboot": func(w *world) {
			w.ask("a", v1alpha1.OperationReboot)
			w.ask("b", v1alpha1.OperationImageUpdate)
			w.does(drain.Check, good)
			w.does(drain.Cordon, good)
			w.does(drain.Attempt)
			w.facts.Boot = "2"
			w.does(drain.Attempt, good)
			w.is(v1alpha1.DrainComplete, drain.Done, drain.Waiting)
			w.does(drain.Operate)
		},
		"a power cut in mid-drain": func(w *world) {
			w.ask("a", v1alpha1.OperationImageUpdate)
			w.does(drain.Check, good)
			w.does(drain.Cordon, good)
			w.does(drain.Attempt)
			w.facts.Boot = "2"
			w.does(drain.Attempt, good)
			w.does(drain.Operate)
			if n := w.state.Operations[0].Attempts; n != 1 {
				w.t.Errorf("%d attempts, want 1", n)
			}
		},
		"one boot is enough for two reboots": func(w *world) {
			w.ask("a", v1alpha1.OperationReboot)
			w.ask("b", v1alpha1.OperationReboot)
			w.does(drain.Check, good)
			w.does(drain.Cordon, good)
			w.does(drain.Attempt, good)
			w.does(drain.Operate, good)
			w.does(drain.Wait)
			w.facts.Boot = "2"
			w.does(drain.Uncordon)
			w.is(v1alpha1.DrainNotRequested, drain.Done, drain.Done)
		},
	}
	for name, run := range tests {
		t.Run(name, func(t *testing.T) { run(newWorld(t)) })
	}
}
