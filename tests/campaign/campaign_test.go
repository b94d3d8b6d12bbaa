package campaign_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/skerry-io/skerry/tests/campaign"
	"github.com/skerry-io/skerry/tests/campaign/history"
	"github.com/skerry-io/skerry/tests/cluster/binary"
	"github.com/skerry-io/skerry/tests/cluster/suite"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

var (
	minutes = flag.Int("minutes", 0, "TestCampaign: how many minutes of schedule; 0 skips it")
	seed    = flag.Uint64("seed", 0, "the seed; 0: TestCampaign draws one, TestOrder_14 plays the kept ones")
	faults  = flag.String("faults", "", "faults with commas between them; all where there are none")
	edges   = flag.Int("edges", 20, "TestCampaign: how many edges")
	judge   = flag.String("judge", "", "TestJudge: a history.jsonl that a campaign has kept, to judge it again")
	onTrial = flag.Bool("trial", false, "TestCampaign: against a trial of two edges, which have kubelet and containers; as root")
)

// play runs a campaign and reports its violations. reads: its clients read the devices' APIs.
func play(t *testing.T, o campaign.Options, reads bool, run func(context.Context, campaign.Options) (campaign.Result, error)) {
	t.Helper()
	var err error
	// Sockets have short names, hence not t.TempDir.
	if o.Dir, err = os.MkdirTemp("", "campaign-"); err != nil {
		t.Fatal(err)
	}
	o.Out = t.Output()
	t.Logf("again: go test ./tests/campaign -run %s -seed %d", strings.Split(t.Name(), "/")[0], o.Seed)
	result, err := run(t.Context(), o)
	if err != nil {
		t.Errorf("seed %d: %v", o.Seed, err)
	}
	for i, v := range result.Violations {
		if i == 20 {
			t.Errorf("seed %d: and %d more", o.Seed, len(result.Violations)-i)
			break
		}
		t.Errorf("seed %d: %v", o.Seed, v)
	}
	kinds := map[string]int{}
	for _, r := range result.History {
		kinds[string(r.Kind)]++
	}
	t.Logf("%v", kinds)
	// Too quiet a campaign can't find violations.
	if least := 20 * o.Edges; err == nil && (kinds["put"] < least || kinds["seen"] < least || kinds["get"] < least && reads) {
		t.Errorf("seed %d: too little has happened", o.Seed)
	}
	t.Logf("%d records; in step %v after the last fault", len(result.History), result.Settled.Round(time.Millisecond))
	if !t.Failed() {
		if err := os.RemoveAll(o.Dir); err != nil {
			t.Error(err)
		}
		return
	}
	keep(t, o.Dir, fmt.Sprintf("campaign-%d", o.Seed))
}

// keep moves a campaign's directory to where it is looked for.
func keep(t *testing.T, dir, name string) {
	t.Helper()
	for _, e := range must(filepath.Glob(filepath.Join(dir, "*", "sock"))) {
		_ = os.Remove(e) // no file can be made of it
	}
	kept := filepath.Join(must(binary.Root()), "build", "out", name)
	_ = os.RemoveAll(kept)
	if err := os.CopyFS(kept, os.DirFS(dir)); err != nil {
		t.Logf("its records and logs stay in %s: %v", dir, err)
		return
	}
	_ = os.RemoveAll(dir)
	t.Logf("its records and logs are in %s", kept)
}

func must[T any](x T, err error) T {
	if err != nil {
		panic(err)
	}
	return x
}

func TestCampaign(t *testing.T) {
	if *minutes == 0 {
		t.Skip("make campaign MINUTES=60 runs it")
	}
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano()) % 1_000_000
	}
	o := campaign.Long(*seed, *minutes)
	o.Edges = *edges
	if *onTrial {
		o = campaign.Real(*seed, *minutes)
	}
	if *faults != "" {
		var err error
		if o.Faults, err = campaign.ParseFaults(*faults); err != nil {
			t.Fatal(err)
		}
	}
	if *onTrial {
		play(t, o, false, againstTrial(t, o))
		return
	}
	play(t, o, true, campaign.Run)
}

// A history has the same violations when the rules are applied to it again, and others when they
// have changed.
func TestJudge(t *testing.T) {
	if *judge == "" {
		t.Skip("-judge names a history")
	}
	f := must(os.Open(*judge))
	defer f.Close()
	h, err := history.Read(f)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range h.Check() {
		t.Error(v)
	}
	t.Logf("%d records", len(h))
}

// againstTrial brings a trial up for the test, and runs campaigns against it.
func againstTrial(t *testing.T, o campaign.Options) func(context.Context, campaign.Options) (campaign.Result, error) {
	t.Helper()
	options := trial.DefaultOptions()
	options.Edges, options.Clouds, options.Sample = o.Edges, o.Clouds, false
	options.Paths = o.Changed
	options.Set = []string{
		"modules.edged.kubelet.evictionPressureTransitionPeriod=1s",
		"modules.edged.reportEvent=true", "modules.edged.kubelet.syncFrequency=5s", "modules.edgeHub.keepalive=3s", "modules.edgeHub.idleTimeout=9s",
	}
	if _, err := binary.Build(t.Context(), must(binary.Root()), append(options.Programs(), "trial")...); err != nil {
		t.Fatal(err)
	}
	s := suite.Make(t, "campaign", options)
	return func(ctx context.Context, o campaign.Options) (campaign.Result, error) {
		result, err := campaign.OnTrial(ctx, o, s.Trial)
		for _, log := range must(filepath.Glob(filepath.Join(s.Dir, "hosts", "*", "log", "*.log"))) {
			raw, copied := os.ReadFile(log)
			// containerd's has the panics of its shims: those of 1.6 panic in a shutdown now and
			// then ("send on closed channel"). What becomes of the pods is judged.
			ours := filepath.Base(log) != "containerd.log"
			for _, end := range []string{"\npanic: ", "\nfatal error: "} {
				if ours && bytes.Contains(raw, []byte(end)) {
					t.Errorf("%s has %q", log, strings.TrimSpace(end))
				}
			}
			if copied == nil {
				copied = os.WriteFile(filepath.Join(o.Dir, filepath.Base(filepath.Dir(filepath.Dir(log)))+"-"+filepath.Base(log)), raw, 0o644)
			}
			err = errors.Join(err, copied)
		}
		return result, err
	}
}

// kept are seeds that found something, with the faults that they drew from: a fault that is added
// to all gives a seed another schedule. The last one has each fault by which a rule that is
// switched off is found within seconds.
var kept = []struct {
	seed   uint64
	faults string
}{
	{2, "kill-cloud,pause-cloud,kill-edge,pause-edge,bad-page,cut,silent,thin,refuse,isolate,lag,kill-plane,older-copy"},
	{14, "kill-cloud,pause-cloud,kill-edge,pause-edge,bad-page,cut,silent,thin,refuse,isolate,lag,kill-plane,older-copy"},
	{68, "late,bad-record,deny,down,refuse,isolate,flap,delete-node,lag,kill-cloud"},
}

// TestOrder_14_ShortCampaigns plays short campaigns with kept seeds, side by side, since most of
// their time is waiting. With -seed it plays that one instead.
func TestOrder_14_ShortCampaigns(t *testing.T) {
	if testing.Short() {
		t.Skip("real control planes are started only without -short")
	}
	for _, c := range kept {
		if *seed != 0 {
			c.seed, c.faults = *seed, *faults
		}
		t.Run(fmt.Sprint("seed ", c.seed), func(t *testing.T) {
			t.Parallel()
			o := campaign.Short(c.seed)
			var err error
			if o.Faults, err = campaign.ParseFaults(c.faults); err != nil {
				t.Fatal(err)
			}
			play(t, o, true, campaign.Run)
		})
		if *seed != 0 {
			return
		}
	}
}

// Scenario 6 of the order campaign: pages of the store of a running edgecore break while its link
// is lost; the link comes back. The device continues from memory, and the only losses are records
// of those pages that can't be fetched again.
func TestOrder_06_DamageWhileInUseLosesNothingElse(t *testing.T) {
	if testing.Short() {
		t.Skip("real control planes are started only without -short")
	}
	t.Parallel()
	o := campaign.Short(6)
	o.Clouds, o.Edges = 1, 2
	play(t, o, true, campaign.DamageInUse)
}

// Scenario 10 of the order campaign, with cloudcore, edgecore and kube-controller-manager's node
// lifecycle as they are: nodes stay Ready whatever their link's keepalive. The grace of the node
// lifecycle is 25 s instead of 50 s, and they are watched for a minute: a Lease that followed the
// heartbeats of the two slower links would be found stale within that. A fourth kubelet is silent,
// and is noticed.
func TestOrder_10_ReadyAtAnyKeepalive(t *testing.T) {
	if testing.Short() {
		t.Skip("real control planes are started only without -short")
	}
	t.Parallel()
	o := campaign.Short(1)
	o.Clouds, o.Edges, o.Length = 1, 4, time.Minute
	o.Keepalive = []time.Duration{5 * time.Second, time.Minute, 5 * time.Minute, 5 * time.Second}
	o.Plane = []string{"--controller-arg=--node-monitor-grace-period=25s", "--controller-arg=--node-monitor-period=2s"}
	var err error
	if o.Dir, err = os.MkdirTemp("", "campaign-"); err != nil { // sockets have short names, hence not t.TempDir
		t.Fatal(err)
	}
	defer os.RemoveAll(o.Dir)
	ready, err := campaign.Ready(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	for i, keepalive := range o.Keepalive[:3] {
		node := fmt.Sprintf("edge%d", i+1)
		if want := []corev1.ConditionStatus{corev1.ConditionTrue}; !slices.Equal(ready[node], want) {
			t.Errorf("Ready of %s, with a keepalive of %v, was %v, want %v throughout", node, keepalive, ready[node], want)
		}
	}
}

func TestPlan(t *testing.T) {
	o := campaign.Long(7, 10)
	steps := campaign.Plan(o)
	if diff := cmp.Diff(steps, campaign.Plan(o)); diff != "" {
		t.Errorf("a seed gives two schedules (-first +second):\n%s", diff)
	}
	seen := map[campaign.Fault]bool{}
	for _, s := range steps {
		seen[s.Fault] = true
		if s.For <= 0 || s.At < 0 || s.At+s.For > o.Length || s.Target < 0 || s.Target >= o.Edges {
			t.Errorf("%v is beyond the campaign", s)
		}
	}
	for _, f := range campaign.AllFaults() {
		if !seen[f] {
			t.Errorf("ten minutes have no %s", f)
		}
	}
	o.Seed++
	if cmp.Equal(steps, campaign.Plan(o)) {
		t.Error("another seed gives the same schedule")
	}
}

// TestEveryday_21: a campaign with full disks and orderly shutdowns of devices without a link,
// against a trial. A minute after the reason has passed all pods run again, and the cloud never
// sees the end of one.
func TestEveryday_21_NoPodIsMissingAfterPressureAndShutdowns(t *testing.T) {
	if testing.Short() || os.Getuid() != 0 {
		t.Skip("needs a trial: run as root, without -short")
	}
	for name, set := range map[string]func(*campaign.Options){
		"short": func(o *campaign.Options) {
			o.Length = time.Minute
			o.Steps = []campaign.Step{
				{At: time.Second, For: 2 * time.Second, Fault: campaign.Pressure, Target: 0},
				{At: time.Second + 1, For: 2 * time.Second, Fault: campaign.Shutdown, Target: 1}, // with a link
				{At: 10 * time.Second, For: 2 * time.Second, Fault: campaign.Shutdown, Target: 1},
			}
		},
		"long": func(o *campaign.Options) {
			o.Length = 10 * time.Minute
			o.Faults = []campaign.Fault{campaign.Pressure, campaign.Shutdown, campaign.Reboot, campaign.KillEdge, campaign.KillRuntime, campaign.Cut, campaign.KillCloud, campaign.Lag}
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := campaign.Real(21, 0)
			o.Pods = 3
			set(&o)
			play(t, o, false, againstTrial(t, o))
		})
	}
}
