package drain_test

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/tools/record"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/agents/drain"
)

// keptState is an agent's, which outlives the agent.
type keptState map[string][]byte

func (m keptState) Load() (map[string][]byte, error) { return maps.Clone(m), nil }

func (m keptState) Save(_ context.Context, changes map[string][]byte) error {
	maps.Copy(m, changes)
	return nil
}

// works carries out operations with do.
type works struct {
	do         func(ctx context.Context, o drain.Operation, report func(drain.Work)) drain.Work
	overturned string
	events     record.EventRecorder // nil: none are recorded
}

func (w *works) Check(o *drain.Operation) error {
	if o.Spec.Upgrade == nil {
		return errors.New("upgrade is needed")
	}
	return nil
}

func (w *works) Do(ctx context.Context, o drain.Operation, report func(drain.Work)) drain.Work {
	return w.do(ctx, o, report)
}

func (w *works) Overturned() (is func(drain.Operation) bool, message, output string) {
	if w.overturned == "" {
		return nil, "", ""
	}
	return func(o drain.Operation) bool { return o.Name == w.overturned }, "it crashed", "its log"
}

func (w *works) NoteOverturned() error {
	w.overturned = ""
	return nil
}

// process runs an agent until its end, as a process of edgecore does.
func process(t *testing.T, kept keptState, w *works, during func(a *drain.Agent)) {
	t.Helper()
	a := drain.New(drain.Config{NodeName: "edge1", Boot: "1", Works: w, Store: kept, Rules: drain.DefaultRules(), Events: w.events})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	synctest.Wait()
	during(a)
	synctest.Wait()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func request(name string) drain.Operation {
	return drain.Operation{Name: name, UID: "1", Spec: v1alpha1.NodeOperationSpec{Operation: v1alpha1.OperationUpgrade, Upgrade: &v1alpha1.UpgradeSpec{Version: "v1.4.0"}}}
}

// An upgrade's report is on the disk before it continues, so the next process finds it; an ended
// upgrade is later found to be rolled back.
func TestWorkIsKeptBeforeItGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kept := keptState{}
		w := &works{do: func(ctx context.Context, o drain.Operation, report func(drain.Work)) drain.Work {
			report(drain.Work{Tried: true, Message: "the trial begins"})
			if !strings.Contains(string(kept["state"]), "the trial begins") {
				t.Error("the report is not on the disk")
			}
			<-ctx.Done() // the process ends here
			return drain.Work{Ended: drain.Failed}
		}}
		process(t, kept, w, func(a *drain.Agent) {
			if err := a.Request(t.Context(), request("up")); err != nil {
				t.Fatal(err)
			}
		})
		w.do = func(_ context.Context, o drain.Operation, _ func(drain.Work)) drain.Work {
			if o.Work == nil || !o.Work.Tried {
				t.Errorf("the next process knows nothing of the trial: %+v", o.Work)
			}
			return drain.Work{Ended: drain.Done, Reason: v1alpha1.OperationConfirmed}
		}
		process(t, kept, w, func(a *drain.Agent) {
			synctest.Wait()
			if o := a.Status().Operations[0]; o.Stage != drain.Done || o.Reason != v1alpha1.OperationConfirmed {
				t.Errorf("%+v", o)
			}
		})
		w.overturned = "up"
		process(t, kept, w, func(a *drain.Agent) {
			if o := a.Status().Operations[0]; o.Stage != drain.Failed || o.Reason != v1alpha1.OperationRolledBack || o.Output != "its log" {
				t.Errorf("%+v", o)
			}
		})
	})
}

// The event of an upgrade's end has the digest of its program and who requested it.
func TestEventOfAnUpgrade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := record.NewFakeRecorder(10)
		w := &works{events: events, do: func(context.Context, drain.Operation, func(drain.Work)) drain.Work {
			return drain.Work{Ended: drain.Failed, Reason: v1alpha1.OperationRolledBack, Message: "NoLink", Upgrade: &v1alpha1.UpgradeStatus{Digest: "sha256:2"}}
		}}
		process(t, keptState{}, w, func(a *drain.Agent) {
			o := request("up")
			o.RequestedBy = "alice"
			if err := a.Request(t.Context(), o); err != nil {
				t.Fatal(err)
			}
		})
		close(events.Events)
		last := ""
		for e := range events.Events {
			last = e
		}
		if want := "Warning OperationFailed Upgrade up sha256:2, requested by alice: NoLink"; last != want {
			t.Errorf("the last event is %q, want %q", last, want)
		}
	})
}

// A failed operation begins anew when its retry is raised, and not before; a cancelled download
// ends.
func TestWorkIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		w := &works{do: func(ctx context.Context, o drain.Operation, _ func(drain.Work)) drain.Work {
			tries++
			if o.Name == "download" {
				<-ctx.Done()
			}
			return drain.Work{Ended: drain.Failed, Reason: v1alpha1.OperationRolledBack}
		}}
		process(t, keptState{}, w, func(a *drain.Agent) {
			o := request("up")
			for _, retry := range []int32{0, 0, 1, 1} {
				o.Spec.Retry = retry
				if err := a.Request(t.Context(), o); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
			}
			if tries != 2 {
				t.Errorf("%d tries", tries)
			}
			if err := a.Request(t.Context(), request("download")); !errors.Is(err, nil) {
				t.Fatal(err)
			}
			synctest.Wait()
			if err := a.Cancel(t.Context(), "download"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			if o := a.Status().Operations[1]; o.Stage != drain.Cancelled {
				t.Errorf("%+v", o)
			}
		})
	})
}

// An operation that waits, and is asked each time whether it can go on, writes nothing to the disk.
func TestWaitingWritesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		w := &works{do: func(context.Context, drain.Operation, func(drain.Work)) drain.Work {
			tries++
			return drain.Work{Message: "waits for the link", Next: time.Now().Add(30 * time.Second)}
		}}
		kept := &countedState{keptState: keptState{}}
		a := drain.New(drain.Config{NodeName: "edge1", Boot: "1", Works: w, Store: kept, Rules: drain.DefaultRules()})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- a.Run(ctx) }()
		synctest.Wait()
		if err := a.Request(t.Context(), request("up")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		writes := kept.writes
		time.Sleep(time.Hour)
		if tries < 100 || kept.writes != writes {
			t.Errorf("%d tries, %d writes", tries, kept.writes-writes)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// countedState counts writes.
type countedState struct {
	keptState
	writes int
}

func (c *countedState) Save(ctx context.Context, changes map[string][]byte) error {
	c.writes++
	return c.keptState.Save(ctx, changes)
}

// An unknown operation is refused by its name, and so is one without its field.
func TestFleet_03_UnknownOperationIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		process(t, keptState{}, &works{}, func(a *drain.Agent) {
			o := request("levitate")
			o.Spec.Operation = "Levitate"
			if err := a.Request(t.Context(), o); !errors.Is(err, drain.ErrInvalid) || !strings.Contains(err.Error(), "Levitate") {
				t.Errorf("an unknown operation: %v", err)
			}
			o = request("empty")
			o.Spec.Upgrade = nil
			if err := a.Request(t.Context(), o); !errors.Is(err, drain.ErrInvalid) {
				t.Errorf("without its field: %v", err)
			}
		})
	})
}
