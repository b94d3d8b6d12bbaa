package campaign_test

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/skerry-io/skerry/tests/campaign"
	"github.com/skerry-io/skerry/tests/campaign/history"
	"github.com/skerry-io/skerry/tests/campaign/sensitivity"
)

var (
	without = flag.String("without", "", "TestSensitivity: which switches are off, one at a time, with commas between them; all is all of\n"+sensitivity.List())
	changed = flag.String("changed", "", "TestSensitivity: where the programs with the switches are built, so that they are found there the next time; a temporary directory where it is not set")
	within  = flag.Duration("within", 30*time.Minute, "TestSensitivity: how much schedule may pass until a campaign has found what is off")
)

// each is how long a schedule is where its switch does not set it.
const each = 90 * time.Second

// TestSensitivity plays campaigns against builds in which a rule is off, one seed after the other,
// until one finds it. It fails if the seeds run out.
func TestSensitivity(t *testing.T) {
	if *without == "" {
		t.Skip("make sensitivity WITHOUT=fence,salvage runs it")
	}
	switches, err := sensitivity.Select(*without)
	if err != nil {
		t.Fatal(err)
	}
	dir := *changed
	if dir == "" {
		dir = t.TempDir()
	}
	programs, err := campaign.BuildChanged(t.Context(), dir, needed(switches)...)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range switches {
		t.Run(s.Name, func(t *testing.T) {
			if len(s.Machine) > 0 { // there is one trial
				failOnMachine(t, s, programs["edgecore"])
				return
			}
			t.Parallel()
			find(t, s, programs)
		})
	}
}

// needed are the programs that the switches are tried in.
func needed(switches []sensitivity.Switch) (names []string) {
	for _, s := range switches {
		if len(s.Machine) > 0 {
			names = append(names, "edgecore")
		} else {
			names = append(names, "hollowedge", "cloudcore")
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// failOnMachine runs tests of tests/machine, each of which must fail.
func failOnMachine(t *testing.T, s sensitivity.Switch, edgecore string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "test", "-vet=off", "-count=1", "-timeout=1h", "-run=^("+strings.Join(s.Machine, "|")+")$", "-v",
		"github.com/skerry-io/skerry/tests/machine", "-edgecore="+edgecore, "-patience=3m")
	cmd.Env = append(os.Environ(), s.Env()...)
	out, err := cmd.CombinedOutput()
	for _, test := range s.Machine {
		if !strings.Contains(string(out), "\n--- FAIL: "+test) {
			t.Errorf("%s, and %s has not found it: %v", s.Off, test, err)
		}
	}
	if !strings.Contains(string(out), s.Symptom) {
		t.Errorf("%s, and the tests failed without %q in their output", s.Off, s.Symptom)
	}
	t.Logf("%s: %s:\n%s", s.Off, strings.Join(s.Machine, ", "), out)
}

// find plays campaigns until one finds the rule that is off.
func find(t *testing.T, s sensitivity.Switch, programs map[string]string) {
	played := time.Duration(0)
	for next := max(*seed, 1); played < *within; next++ {
		o := campaign.Short(next)
		o.Edges, o.Pods, o.Length, o.UntilFound, o.Changed, o.Env = s.Plan.Edges, s.Plan.Pods, each, true, programs, s.Env()
		if s.Plan.Seconds > 0 {
			o.Length = time.Duration(s.Plan.Seconds) * time.Second
		}
		if s.Plan.Calm > 0 {
			o.Calm, o.Keepalive, o.Plane = 1, []time.Duration{}, []string{"--controller-arg=--node-monitor-grace-period=25s", "--controller-arg=--node-monitor-period=2s"}
			for range o.Edges {
				o.Keepalive = append(o.Keepalive, time.Second)
			}
			o.Edges++
			o.Keepalive = append(o.Keepalive, time.Duration(s.Plan.Calm)*time.Second)
		}
		var err error
		if o.Faults, err = campaign.ParseFaults(s.Plan.Faults); err != nil {
			t.Fatal(err)
		}
		if o.Dir, err = os.MkdirTemp("", "campaign-"); err != nil {
			t.Fatal(err)
		}
		o.Out = t.Output()
		result, err := campaign.Run(t.Context(), o)
		if err != nil {
			t.Fatalf("seed %d: %v; its records and logs stay in %s", next, err, o.Dir)
		}
		played += result.Played
		if len(result.Violations) == 0 {
			t.Logf("seed %d has found nothing", next)
			keep(t, o.Dir, fmt.Sprintf("campaign-%d-without-%s", next, s.Name))
			continue
		}
		said := map[history.Rule]int{}
		for _, v := range result.Violations {
			said[v.Rule]++
		}
		first := slices.IndexFunc(result.Violations, func(v history.Violation) bool { return slices.Contains(s.Shows, v.Rule) })
		if first < 0 {
			t.Errorf("seed %d has found %v, and none of %v: %v", next, said, s.Shows, result.Violations[0])
			keep(t, o.Dir, fmt.Sprintf("campaign-%d-without-%s", next, s.Name))
			continue
		}
		_ = os.RemoveAll(o.Dir)
		t.Logf("%s: found by seed %d within %v of schedule: %v, first %v", s.Off, next, played.Round(time.Second), said, result.Violations[first])
		return
	}
	t.Errorf("%s, and %v of campaign have not found it", s.Off, *within)
}
