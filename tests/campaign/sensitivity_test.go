package campaign_test

import (
	"flag"
	"os"
	"testing"
	"time"

	"github.com/skerry-io/skerry/tests/campaign"
	"github.com/skerry-io/skerry/tests/campaign/sensitivity"
)

var without = flag.Int("without", -1, "TestSensitivity: the rule of spec/order.md that a build switches off")

// within is how much schedule may pass until a campaign has found what is off, and each how it is cut up.
const within, each = 30 * time.Minute, 90 * time.Second

// TestSensitivity plays campaigns against builds in which a rule is off, one seed after the other, until one finds it. It fails where none does.
func TestSensitivity(t *testing.T) {
	if *without < 0 {
		t.Skip("make sensitivity WITHOUT=3 runs it")
	}
	s, err := sensitivity.Of(*without)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("rule %d: %s", s.Rule, s.Off)
	changed, err := campaign.BuildChanged(t.Context(), t.TempDir(), s)
	if err != nil {
		t.Fatal(err)
	}
	played := time.Duration(0)
	for next := max(*seed, 1); played < within; next++ {
		o := campaign.Short(next)
		o.Edges, o.Pods, o.Length, o.Changed = s.Plan.Edges, s.Plan.Pods, each, changed
		o.UntilFound = true
		if s.Plan.Calm > 0 {
			o.Calm, o.Keepalive, o.Plane = 1, []time.Duration{}, []string{"--controller-arg=--node-monitor-grace-period=25s", "--controller-arg=--node-monitor-period=2s"}
			for range o.Edges {
				o.Keepalive = append(o.Keepalive, time.Second)
			}
			o.Edges++
			o.Keepalive = append(o.Keepalive, time.Duration(s.Plan.Calm)*time.Second)
		}
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
		_ = os.RemoveAll(o.Dir)
		played += result.Played
		if len(result.Violations) == 0 {
			t.Logf("seed %d has found nothing", next)
			continue
		}
		said := map[string]int{}
		for _, v := range result.Violations {
			said[string(v.Rule)]++
		}
		t.Logf("found by seed %d within %v of schedule: %v, first %v", next, played.Round(time.Second), said, result.Violations[0])
		return
	}
	t.Errorf("rule %d is off, and %v of campaign have not found it", s.Rule, within)
}
