package campaign_test

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/skerry-io/skerry/tests/campaign"
	"github.com/skerry-io/skerry/tests/campaign/sensitivity"
)

var without = flag.String("without", "", "TestSensitivity: which rules of spec/order.md are switched off, one at a time, with commas between them; all is all")

// within is how much schedule may pass until a campaign has found what is off, and each how it is cut up.
const within, each = 30 * time.Minute, 90 * time.Second

// TestSensitivity plays campaigns against builds in which a rule is off, one seed after the other, until one finds it. It fails where none does.
func TestSensitivity(t *testing.T) {
	if *without == "" {
		t.Skip("make sensitivity WITHOUT=3,5 runs it")
	}
	changed, err := campaign.BuildChanged(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range sensitivity.All() {
		if *without != "all" && !slices.Contains(strings.Split(*without, ","), strconv.Itoa(s.Rule)) {
			continue
		}
		t.Run(fmt.Sprint("rule ", s.Rule), func(t *testing.T) {
			t.Parallel()
			find(t, s, changed)
		})
	}
}

// find plays campaigns until one finds what is off.
func find(t *testing.T, s sensitivity.Switch, changed map[string]string) {
	played := time.Duration(0)
	for next := max(*seed, 1); played < within; next++ {
		o := campaign.Short(next)
		o.Edges, o.Pods, o.Length, o.UntilFound, o.Changed, o.Env = s.Plan.Edges, s.Plan.Pods, each, true, changed, s.Env()
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
		t.Logf("%s: found by seed %d within %v of schedule: %v, first %v", s.Off, next, played.Round(time.Second), said, result.Violations[0])
		return
	}
	t.Errorf("%s, and %v of campaign have not found it", s.Off, within)
}
