package upgrade_test

import (
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/protocol"
	"github.com/skerry-io/skerry/edge/internal/agents/drain"
	"github.com/skerry-io/skerry/edge/internal/core/launch"
)

// A trial is confirmed once it is healthy, whichever of its starts that is.
func TestTrialIsConfirmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, o := newTrial(t)
		s.checks = []v1alpha1.HealthCheck{{Name: "wanted", ExitCode: 3}}
		work, _ := s.do(o)
		if work.Ended != drain.Done || work.Reason != v1alpha1.OperationConfirmed || work.Upgrade.Starts != 1 || len(work.Checks) != 1 {
			t.Errorf("%+v", work)
		}
		state, err := s.directory.Load()
		s.check(err)
		if raw, err := os.ReadFile(s.directory.Program(state.Confirmed.Slot)); string(raw) != "program" {
			t.Errorf("slot %q has %q, %v", state.Confirmed.Slot, raw, err)
		}
		// Its end may have been lost in a crash.
		o.Work.Ended = ""
		if work, _ := s.do(o); work.Reason != v1alpha1.OperationConfirmed {
			t.Errorf("a second time: %+v", work)
		}
	})
}

// A power cut in a trial restarts all containers, which is no evidence against the version.
func TestFleet_05_PowerCutInATrialIsNoEvidence(t *testing.T) {
	for name, boot := range map[string]string{"the switch restarted them": "1", "the boot did": "2"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSystem(t)
				s.add("v1.4.0", "program", nil)
				o := operation(upgradeTo("v1.4.0"))
				s.do(o)
				s.restarted, s.boot, s.linked = true, boot, true
				work, restarts := s.do(o)
				if confirmed := work.Reason == v1alpha1.OperationConfirmed; confirmed != (boot == "2") || restarts == confirmed {
					t.Errorf("executed again: %t; %+v", restarts, work)
				}
			})
		})
	}
}

// Problems are a verdict: the version is rejected until retry is raised.
func TestTrialGoesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(t)
		s.add("v1.4.0", "program", nil)
		o := operation(upgradeTo("v1.4.0"))
		s.do(o)
		s.problems = []string{"the node is not Ready by this process"}
		if _, restarts := s.do(o); !restarts {
			t.Fatalf("an unhealthy trial: %+v", o.Work)
		}
		s.problems = nil
		work, _ := s.do(o)
		if work.Ended != drain.Failed || work.Reason != v1alpha1.OperationRolledBack || !strings.Contains(work.Message, "not Ready") || work.Output != "the end of the log" {
			t.Errorf("%+v", work)
		}
		again := operation(upgradeTo("v1.4.0"))
		again.Name = "two"
		if work, _ := s.do(again); work.Reason != v1alpha1.OperationRejected {
			t.Errorf("another operation: %+v", work)
		}
		again.Spec.Retry, again.Work = 1, nil
		if _, restarts := s.do(again); !restarts {
			t.Errorf("with a retry: %+v", again.Work)
		}
	})
}

// A program that can't be executed writes no log, and its operation has none of an earlier trial.
func TestTrialThatCannotBeExecutedHasNoLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(t)
		s.log = "the log of an earlier trial"
		s.add("v1.4.0", "program", nil)
		o := operation(upgradeTo("v1.4.0"))
		if _, restarts := s.do(o); !restarts {
			t.Fatalf("%+v", o.Work)
		}
		state, err := s.directory.Load()
		s.check(err)
		state, program := state.Start(launch.Facts{Boot: "1", Now: time.Now()})
		state, _ = state.Unusable(program, "exec format error")
		_, err = s.directory.Save(state)
		s.check(err)
		if work, _ := s.do(o); work.Reason != v1alpha1.OperationRolledBack || work.Output != "" {
			t.Errorf("%s: %s, with the log %q", work.Reason, work.Message, work.Output)
		}
	})
}

// Without a link the previous version decides: if it has a link, the new version is at fault;
// otherwise not.
func TestTrialWithoutALink(t *testing.T) {
	for name, network := range map[string]bool{"the version is at fault": true, "the network is at fault": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSystem(t)
				s.add("v1.4.0", "program", nil)
				o := operation(upgradeTo("v1.4.0"))
				s.do(o)
				s.linked = false
				if _, restarts := s.do(o); !restarts {
					t.Fatalf("a trial without a link: %+v", o.Work)
				}
				s.linked = network
				work, _ := s.do(o)
				if network {
					work = s.secondTrialWithoutALink(o)
				}
				if network != (work.Reason == v1alpha1.OperationRolledBack) {
					t.Fatalf("%+v", work)
				}
				if network {
					return
				}
				if work.Ended != "" || work.Tried || !strings.Contains(work.Message, "network was down") {
					t.Errorf("it waits: %+v", work)
				}
				s.linked = true
				if _, restarts := s.do(o); !restarts {
					t.Errorf("with a link again: %+v", o.Work)
				}
				if work, _ := s.do(o); work.Reason != v1alpha1.OperationConfirmed {
					t.Errorf("%+v", work)
				}
			})
		})
	}
}

// secondTrialWithoutALink repeats a trial that had no link, after which there was one, and returns
// how the operation continues.
func (s *system) secondTrialWithoutALink(o *drain.Operation) drain.Work {
	s.Helper()
	if w := o.Work; w.Ended != "" || w.Tried || !strings.Contains(w.Message, "trying once more") {
		s.Fatalf("the first trial without a link: %+v", w)
	}
	if state, err := s.directory.Load(); err != nil || len(state.Rejected) > 0 || state.Returned != nil {
		s.Fatalf("the first trial without a link: %+v, %v", state, err)
	}
	if _, restarts := s.do(o); !restarts {
		s.Fatalf("a second trial: %+v", o.Work)
	}
	linked, rescue := s.linked, s.rescue
	s.linked, s.rescue = false, protocol.Window{}
	if _, restarts := s.do(o); !restarts {
		s.Fatalf("a second trial without a link: %+v", o.Work)
	}
	s.linked, s.rescue = linked, rescue
	work, _ := s.do(o)
	return work
}

// An outage that is longer than a trial, but ends while the version before waits for a link,
// rejects nothing: the next trial is confirmed. One that lasts begins the count anew.
func TestFleet_07_OutageThatEndsAfterTheTrial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(t)
		s.add("v1.4.0", "program", nil)
		o := operation(upgradeTo("v1.4.0"))
		s.do(o)
		trial := func(ends bool, want string) {
			t.Helper()
			s.linked = false
			if _, restarts := s.do(o); !restarts {
				t.Fatalf("%+v", o.Work)
			}
			if ends {
				time.AfterFunc(50*time.Second, func() { s.linked = true }) // healthTimeout is 1m
			}
			if work, _ := s.do(o); work.Ended != "" || !strings.Contains(work.Message, want) {
				t.Fatalf("%+v", work)
			}
			s.linked = true
			if _, restarts := s.do(o); !restarts {
				t.Fatalf("it is not retried: %+v", o.Work)
			}
		}
		trial(true, "trying once more")
		trial(false, "network was down")
		trial(true, "trying once more")
		if work, _ := s.do(o); work.Reason != v1alpha1.OperationConfirmed {
			t.Errorf("with a link: %+v", work)
		}
	})
}

// A confirmed version that crashes three times in its probation has gone back, and its operation
// learns of it.
func TestCrashesOverturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(t)
		s.add("v1.4.0", "program", nil)
		o := operation(upgradeTo("v1.4.0"))
		s.do(o)
		s.do(o)
		for range 3 {
			state, err := s.directory.Load()
			s.check(err)
			state, _ = state.Start(launch.Facts{Boot: "1", Now: time.Now()})
			_, err = s.directory.Save(state)
			s.check(err)
		}
		w, _ := s.process()
		is, message, output := w.Overturned()
		other := operation(upgradeTo("v1.4.0"))
		other.Name = "another"
		if is == nil || !is(*o) || is(*other) || !strings.Contains(message, "crashed 3 times") || output == "" {
			t.Fatalf("%v, %q, %q", is != nil, message, output)
		}
		s.check(w.NoteOverturned())
		if is, _, _ := w.Overturned(); is != nil {
			t.Error("it is reported twice")
		}
	})
}

// A configuration, and a version whose file is on the device, are not tried without a link: such a
// trial would be healthy without one, and the device lost.
func TestNoTrialWithoutALink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(t)
		s.linked = false
		o := operation(v1alpha1.NodeOperationSpec{Operation: v1alpha1.OperationConfig, Config: &v1alpha1.ConfigSpec{Patch: "log: {verbosity: 3}"}})
		for _, rescue := range []protocol.Window{{}, {Min: 98, Max: 99}} {
			s.rescue = rescue
			if work, restarts := s.do(o); restarts || work.Tried || work.Message != "waits for the link" || work.Next.IsZero() {
				t.Errorf("a configuration: restarts %t, %+v", restarts, work)
			}
		}
		s.linked, s.rescue = true, protocol.Window{}
		s.add("v1.4.0", "program", nil)
		s.fetched = func() { s.linked = false }
		o = operation(upgradeTo("v1.4.0"))
		if work, restarts := s.do(o); restarts || work.Tried || work.Message != "waits for the link" {
			t.Errorf("an upgrade whose link is cut after the download: restarts %t, %+v", restarts, work)
		}
		s.linked = true
		if _, restarts := s.do(o); !restarts || o.Work.Offline {
			t.Errorf("with a link: %+v", o.Work)
		}
	})
}

// A trial that skerry-launch can't count, as on a full disk, is not begun again and again.
func TestFleet_13_FullDiskBeginsNoTrial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, o := newTrial(t)
		s.directory.Disk = &disk{full: true}
		if work, restarts := s.do(o); restarts || !work.Tried || !strings.Contains(work.Message, "no space left") || work.Next.IsZero() {
			t.Errorf("restarts %t, %+v", restarts, work)
		}
		s.directory.Disk = launch.System{}
		if work, _ := s.do(o); work.Reason != v1alpha1.OperationConfirmed {
			t.Errorf("with room: %+v", work)
		}
	})
}
