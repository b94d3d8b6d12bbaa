package launch

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var (
	noon  = time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	older = Program{Slot: A, Version: "v1.3.0", Digest: "sha256:1"}
	newer = Program{Slot: B, Version: "v1.4.0", Digest: "sha256:2"}
	disk1 = Installed{Version: "v1.2.0", ID: "1"}
)

// starts are the programs that so many starts within one boot choose.
func starts(s State, f Facts, n int) (State, []string) {
	var chosen []string
	for range n {
		var p Program
		s, p = s.Start(f)
		chosen = append(chosen, string(p.Slot))
	}
	return s, chosen
}

func TestStart(t *testing.T) {
	base := State{Installed: disk1, Confirmed: older}
	confirmed := base.Arm(newer, "one", "1", noon)
	confirmed, _ = confirmed.Start(Facts{Boot: "1", Now: noon, Installed: disk1})
	confirmed = confirmed.Confirm(noon.Add(24 * time.Hour))
	for name, c := range map[string]struct {
		state State
		facts Facts
		want  []string
		cause Cause
	}{
		"nothing was ever upgraded":                 {State{}, Facts{Installed: disk1}, []string{"", ""}, ""},
		"the confirmed one":                         {base, Facts{Installed: disk1}, []string{"a", "a"}, ""},
		"a trial has three starts":                  {base.Arm(newer, "one", "1", noon), Facts{Boot: "1", Now: noon, Installed: disk1}, []string{"b", "b", "b", "a", "a"}, EndedEarly},
		"a newer package wins over the confirmed":   {base, Facts{Installed: Installed{"v1.5.0", "2"}}, []string{"", ""}, ""},
		"an older package does not":                 {base, Facts{Installed: Installed{"v1.2.9", "2"}}, []string{"a", "a"}, ""},
		"one without a version does":                {base, Facts{Installed: Installed{"", "2"}}, []string{"", ""}, ""},
		"a newer package wins over the trial":       {base.Arm(newer, "one", "1", noon), Facts{Installed: Installed{"v1.5.0", "2"}}, []string{"", ""}, Superseded},
		"a package between wins over the confirmed": {base.Arm(newer, "one", "1", noon), Facts{Boot: "1", Now: noon, Installed: Installed{"v1.3.5", "2"}}, []string{"b", "b", "b", ""}, EndedEarly},
		"three crashes in the probation":            {confirmed, Facts{Boot: "1", Now: noon, Installed: disk1}, []string{"b", "b", "a", "a"}, Crashed},
		"three crashes after it":                    {confirmed, Facts{Boot: "1", Now: noon.Add(25 * time.Hour), Installed: disk1}, []string{"b", "b", "b", "b"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s, got := starts(c.state, c.facts, len(c.want))
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("chosen (-want +got):\n%s", diff)
			}
			var cause Cause
			if s.Returned != nil {
				cause = s.Returned.Cause
			}
			if cause != c.cause {
				t.Errorf("returned by %q, want %q", cause, c.cause)
			}
			if rejected := s.Rejects(newer); rejected != (c.cause == EndedEarly || c.cause == Crashed) {
				t.Errorf("the new program is rejected: %v", rejected)
			}
		})
	}
}

// Starts after a reboot, or after a deliberate stop, do not count as crashes in the probation.
func TestFleet_24_ProbationCountsCrashesAlone(t *testing.T) {
	s := State{Installed: disk1, Confirmed: older}.Arm(newer, "one", "1", noon)
	f := Facts{Boot: "1", Now: noon, Installed: disk1}
	s, _ = s.Start(f)
	s = s.Confirm(noon.Add(24 * time.Hour))
	for _, boot := range []string{"2", "3", "4", "5"} { // power cuts
		f.Boot = boot
		var p Program
		if s, p = s.Start(f); p != newer {
			t.Fatalf("boot %s starts %+v", boot, p)
		}
	}
	for range 5 { // systemctl restart
		var p Program
		if s, p = s.Stop().Start(f); p != newer {
			t.Fatalf("a restart starts %+v", p)
		}
	}
	if s.Former.Crashes != 0 {
		t.Fatalf("%d crashes were counted", s.Former.Crashes)
	}
	s, chosen := starts(s, f, 3)
	if diff := cmp.Diff([]string{"b", "b", "a"}, chosen); diff != "" {
		t.Errorf("three crashes (-want +got):\n%s", diff)
	}
	if s.Returned == nil || s.Returned.Operation != "one" {
		t.Errorf("its operation does not learn of it: %+v", s.Returned)
	}
}

// A configuration that is tried within the probation of a version, and goes back, leaves the former
// version armed, and its end is not counted as a crash. A version that is written to the slot of
// the former one disarms it.
func TestTrialInTheProbation(t *testing.T) {
	f := Facts{Boot: "1", Now: noon, Installed: disk1}
	config, third := newer, Program{Slot: A, Version: "v1.5.0", Digest: "sha256:3"}
	config.Overlay = "x"
	for name, c := range map[string]struct {
		trial Program
		end   func(State) State // of the trial's first start
		want  []string          // the starts after it
	}{
		"a configuration is unhealthy":      {config, func(s State) State { return s.Back(Unhealthy, "") }, []string{"b", "b", "b", "a"}},
		"a configuration has no link":       {config, func(s State) State { return s.Back(NoLink, "") }, []string{"b", "b", "b", "a"}},
		"a configuration exits":             {config, func(s State) State { s, _ = starts(s, f, 2); return s }, []string{"b", "b", "b", "a"}},
		"a configuration can't be executed": {config, func(s State) State { s, _ = s.Unusable(config, ""); return s }, []string{"b", "b", "a"}}, // one start was before
		"a version in the former's slot":    {third, func(s State) State { return s.Back(Unhealthy, "") }, []string{"b", "b", "b", "b", "b"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := State{Installed: disk1, Confirmed: older}.Arm(newer, "one", "1", noon)
			s, _ = s.Start(f)
			s = s.Confirm(noon.Add(24*time.Hour)).Arm(c.trial, "two", "1", noon)
			s, p := s.Start(f)
			if p != c.trial {
				t.Fatalf("%+v is started", p)
			}
			s, got := starts(c.end(s), f, len(c.want))
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("chosen after the trial (-want +got):\n%s", diff)
			}
			if r := s.Returned; c.want[len(c.want)-1] == "a" && (r == nil || r.Operation != "one" || r.Cause != Crashed) {
				t.Errorf("returned: %+v", r)
			}
		})
	}
}

// A third crash long after the probation, in which two were, does not roll back.
func TestCrashAfterTheProbation(t *testing.T) {
	s := State{Installed: disk1, Confirmed: older}.Arm(newer, "one", "1", noon)
	f := Facts{Boot: "1", Now: noon, Installed: disk1}
	s, _ = s.Start(f)
	s = s.Confirm(noon.Add(24 * time.Hour))
	s, _ = starts(s, f, 2)
	if s.Former == nil || s.Former.Crashes != 2 {
		t.Fatalf("after two crashes: %+v", s.Former)
	}
	f.Now = noon.Add(365 * 24 * time.Hour)
	if s, p := s.Start(f); p != newer || s.Former != nil || s.Returned != nil {
		t.Errorf("a year later it starts %+v: %+v", p, s)
	}
}

func TestRejected(t *testing.T) {
	s := State{Confirmed: older}.Arm(newer, "one", "1", noon).Back(NoLink, "no link")
	if s.Rejects(newer) || s.Trial != nil || s.Returned.Cause != NoLink {
		t.Errorf("a lost link is no verdict: %+v", s)
	}
	if s = s.Judge(); !s.Rejects(newer) {
		t.Error("with a link of the former program it is one")
	}
	if s = s.Forgive(newer); s.Rejects(newer) {
		t.Error("a retry forgives")
	}
	for i := range 2 * maxRejected {
		s = s.Arm(Program{Slot: B, Digest: string(rune('a' + i))}, "x", "1", noon).Back(Unhealthy, "")
	}
	if len(s.Rejected) != maxRejected {
		t.Errorf("%d digests are remembered", len(s.Rejected))
	}
}

func TestUnusable(t *testing.T) {
	s, p := State{Confirmed: older}.Arm(newer, "one", "1", noon).Unusable(newer, "exec format error")
	if p != older || s.Returned.Cause != Unexecutable || !s.Rejects(newer) {
		t.Errorf("after a trial that can't be executed: %+v, %+v", p, s)
	}
	if s, p = s.Unusable(older, "input/output error"); p.Slot != Package || s.Confirmed != p {
		t.Errorf("after a slot that can't be read: %+v, %+v", p, s)
	}
}

func TestOlder(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"v1.2.3", "v1.2.4", true}, {"v1.9.0", "v1.10.0", true}, {"v1.10.0", "v1.9.0", false}, {"v1.2.3", "v1.2.3", false},
		{"v1.2.3-rc.1", "v1.2.3", false}, {"v0.0.0-abc", "v1.0.0", true}, {"", "v1.0.0", false}, {"v1.0.0", "dev", false}, {"v1.0", "v2.0.0", false},
	} {
		if got := Older(c.a, c.b); got != c.want {
			t.Errorf("Older(%q, %q) = %v", c.a, c.b, got)
		}
	}
}

func FuzzDecode(f *testing.F) {
	s := State{Installed: disk1, Confirmed: older, Rejected: []string{"x"}}.Arm(newer, "one", "1", noon)
	raw, err := Encode(s)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw, false)
	f.Add([]byte(magic+"\n\n{}\n"), false)
	// Behind the checksum: a body with a valid one.
	body := func(s State) []byte {
		b, err := json.Marshal(s)
		if err != nil {
			f.Fatal(err)
		}
		return b
	}
	f.Add(body(s), true)
	f.Add(body(s.Confirm(noon)), true)
	f.Add(body(s.Back(Unhealthy, "x")), true)
	f.Add([]byte(`{"confirmed":{"slot":"../c"}}`), true)
	f.Add([]byte(`{"trial":{"starts":-9223372036854775808},"former":{"until":"9999-12-31T23:59:59Z","crashes":9223372036854775807}}`), true)
	f.Fuzz(func(t *testing.T, raw []byte, sealed bool) {
		if sealed {
			raw = fmt.Appendf(nil, "%s\n%x\n%s\n", magic, sha256.Sum256(raw), raw)
		}
		s, err := Decode(raw)
		if err != nil {
			return
		}
		again, err := Encode(s)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := Decode(again); err != nil || cmp.Diff(s, back, cmpopts.EquateEmpty()) != "" {
			t.Errorf("%+v became %+v, %v", s, back, err)
		}
		next := s
		for range 2 * (MaxStarts + MaxCrashes) { // until a trial, and a probation, are over
			var p Program
			if next, p = next.Start(Facts{Boot: "1", Now: noon}); p.Slot != Package && p.Slot != A && p.Slot != B {
				t.Errorf("slot %q is started", p.Slot)
			}
		}
		if len(next.Rejected) > max(maxRejected, len(s.Rejected)) {
			t.Errorf("%d programs are rejected", len(next.Rejected))
		}
	})
}
