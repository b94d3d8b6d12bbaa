// Package bench_test measures every figure that the specification names, each with its floor, in
// one run on one machine: an edge with edgecore, a node with the plain upstream kubelet that
// connects to kube-apiserver directly, and many edges without kubelets. Where it can a figure is a
// ratio of medians; absolute times belong to the machine. No test passes or fails by a figure.
//
// All rows take more than an hour: `make bench`. One row alone: `go test ./tests/bench -run '^$'
// -bench 'Row/Cut$' -benchtime 1x -timeout 2h`. With -write FILE the table of a file is brought up
// to date: the rows that were measured now replace theirs, the others stay. The benchmark brings up
// a trial of its own (one edge, one plain node) and takes it down.
package bench_test

import (
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/kubernetes"

	"github.com/skerry-io/skerry/tests/cluster/binary"
	"github.com/skerry-io/skerry/tests/cluster/trial"
	"github.com/skerry-io/skerry/tests/hollow"
)

var (
	write  = flag.String("write", "", "file whose table is brought up to date")
	rounds = flag.Int("rounds", 5, "how often each figure is measured; the median counts")
	cut    = flag.Duration("cut", time.Minute, "how long the uplinks are cut in row Cut")
	idle   = flag.Duration("idle", 10*time.Minute, "how long an idle node is watched in rows Idle and Steady")
	nodes  = flag.Int("nodes", 1000, "hollow nodes in row Hollow")
	fleet  = flag.Int("fleet", 3000, "hollow nodes in row Fleet")
	dir    = flag.String("trial", ".trial-bench", "directory of the trial, in the repository: two that differ can run side by side")
)

const upTimeout = 5 * time.Minute

// A bench is the trial and the results so far.
type bench struct {
	*trial.Trial
	client    kubernetes.Interface
	rows      []row
	fleet     *hollow.Fleet  // nil without hollow nodes
	operate   hollow.Operate // of the fleet that link makes
	stopFleet func() error
}

// BenchmarkRow has a sub-benchmark for each row, or for rows that are measured together.
func BenchmarkRow(b *testing.B) {
	if os.Getuid() != 0 {
		b.Skip("needs root: namespaces, containers")
	}
	s := new(bench)
	b.Cleanup(func() { s.down(b) })
	for _, part := range []struct {
		name    string
		measure func(*bench, *testing.B)
	}{
		{"Reboot", (*bench).reboot},
		{"Boot", (*bench).boots},
		{"Pod", (*bench).podRunning},
		{"TenPods", (*bench).tenPods},
		{"Memory", (*bench).memory},
		{"MemoryRise", (*bench).memoryRise},
		{"PodChange", (*bench).podChange},
		{"Events", (*bench).events},
		{"SlowLink", (*bench).slowLink},
		{"Resync", (*bench).resync},
		{"ConfigMaps", (*bench).configMaps},
		{"ConfigMapUpdates", (*bench).mapUpdates},
		{"Cut", (*bench).cuts},
		{"Idle", (*bench).idle},
		{"Queue", (*bench).queue},
		{"Size", (*bench).sizes},
		{"Upgrade", (*bench).upgrades},
		{"Marks", (*bench).marks},
		{"Services", (*bench).services},
		{"Failover", (*bench).failovers},
		{"Hollow", (*bench).hollow},
		{"Steady", (*bench).steady},
		{"Storm", (*bench).storm},
		{"HollowQUIC", (*bench).hollowQUIC},
		{"Rollout", (*bench).rollout},
		{"Hostile", (*bench).hostile},
		{"Fleet", (*bench).manyNodes},
	} {
		b.Run(part.name, func(b *testing.B) {
			for range b.N { // 1, with -benchtime 1x
				before := len(s.rows)
				part.measure(s, b)
				s.report(b, s.rows[before:])
			}
			b.ReportMetric(0, "ns/op") // of no use
		})
	}
}

// up brings the trial up where it is not.
func (s *bench) up(b *testing.B) {
	b.Helper()
	if s.Trial == nil {
		s.upWith(b, 1)
	}
}

// upWith brings the trial up with so many replicas of cloudcore.
func (s *bench) upWith(b *testing.B, clouds int) {
	b.Helper()
	root, err := binary.Root()
	check(b, err)
	_, err = binary.Build(b.Context(), root, "kubeplane", "cloudcore", "edgecore", "skerry-launch", "trial", "plainkubelet")
	check(b, err)
	for _, program := range []string{"edgecore", "plainkubelet"} {
		check(b, uncache(filepath.Join(root, "bin", program)))
	}
	t, err := trial.Open(root, filepath.Join(root, *dir), os.Stderr)
	check(b, err)
	check(b, t.Down(b.Context()))
	s.Trial = t
	options := trial.DefaultOptions()
	options.Clouds, options.Edges, options.Plain, options.Audit, options.Sample = clouds, 1, 1, true, false
	options.Set = []string{"modules.services.enable=false", "modules.names.enable=false"} // edgecore's modules that the plain node has as programs of its own
	ctx, cancel := context.WithTimeout(b.Context(), upTimeout)
	defer cancel()
	check(b, t.Up(ctx, options))
	cfg, err := t.Admin()
	check(b, err)
	s.client, err = kubernetes.NewForConfig(cfg)
	check(b, err)
	s.shared(b)
}

// uncache has a program come from the disk when it starts, as on a device that boots. How much of
// it becomes resident depends on how its pages came into the page cache: those that a linker wrote
// come in larger pieces, some 8 MB more of them.
func uncache(program string) error {
	f, err := os.Open(program)
	if err != nil {
		return err
	}
	defer f.Close()
	return errors.Join(f.Sync(), unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED))
}

func (s *bench) down(b *testing.B) {
	if s.Trial == nil {
		return
	}
	s.unlink(b)
	if err := s.Down(context.Background()); err != nil {
		b.Error(err)
	}
}

func check(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// eventually repeats try, every pause, until it returns nil.
func eventually(b *testing.B, what string, pause time.Duration, try func(context.Context) error) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), upTimeout)
	defer cancel()
	for {
		err := try(ctx)
		if err == nil {
			return
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			b.Fatalf("waited %v for %s: %v", upTimeout, what, err)
		}
	}
}
