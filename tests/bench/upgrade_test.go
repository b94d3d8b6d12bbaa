package bench_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/artefactrepo"
	"github.com/skerry-io/skerry/tests/cluster/binary"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

var other = flag.String("other", "", "an edgecore of another commit, for row Upgrade; empty: the same with some bytes more")

const (
	whatWhole = "bytes on the link of an upgrade of edgecore, without a delta"
	whatDelta = "bytes on the link of an upgrade of edgecore, by a delta"
	whatSame  = whatDelta + " of the same program"
	whatAway  = "an upgrade of edgecore: seconds without a link"

	slotsDir = "/var/lib/skerry/bin"

	// supervised starts a program again when it ends, as systemd does.
	supervised = `trap 'kill $c 2>/dev/null; wait $c; exit' TERM; while :; do "$@" & c=$!; wait $c; sleep 0.2; done`
)

// upgrades brings a device with ten pods to another program and back, by whole files and by deltas.
func (s *bench) upgrades(b *testing.B) {
	s.up(b)
	root, err := binary.Root()
	check(b, err)
	built, err := binary.Build(b.Context(), root, "edgecore", "skerry-launch")
	check(b, err)
	one, err := os.ReadFile(built[0])
	check(b, err)
	two := append(slices.Clone(one), "two"...)
	what, note := whatSame, "between the same program with three bytes more and without them: -other names an edgecore of another commit."
	if *other != "" {
		two, err = os.ReadFile(*other)
		check(b, err)
		what, note = whatDelta, fmt.Sprintf("between edgecores of %.1f and %.1f MB of two commits, there and back.", float64(len(one))/1e6, float64(len(two))/1e6)
	}
	repo, err := artefactrepo.New(b.TempDir())
	check(b, err)
	trusted, err := os.ReadFile(repo.Root())
	check(b, err)
	keys := filepath.Join(s.host(b, edge).Root(), "etc/skerry/keys.d")
	check(b, os.MkdirAll(keys, 0o755))
	check(b, os.WriteFile(filepath.Join(keys, "root.json"), trusted, 0o644))
	defer func() { // the rows after this one measure the program as it was built
		check(b, s.Replace(b.Context(), edge, "edgecore", nil))
		check(b, s.Stop(b.Context(), edge, "edgecore"))
		check(b, os.RemoveAll(filepath.Join(s.host(b, edge).Root(), slotsDir)))
		check(b, s.Start(b.Context(), edge, "edgecore"))
		s.awaitLinked(b)
	}()
	check(b, s.Replace(b.Context(), edge, "edgecore", []string{"/bin/sh", "-c", supervised, "supervisor", built[1], "--dir", slotsDir, "--version-file", "", "--", built[0]}))
	check(b, s.Stop(b.Context(), edge, "edgecore"))
	check(b, s.Start(b.Context(), edge, "edgecore"))
	pods := podsOf("upgrade", edge, 10)
	s.start(b, pods...)
	defer s.remove(b, pods...)

	whole := row{what: whatWhole, unit: "MB", floorName: "the program, packed by zstd", goal: "at most 1.1 x", judge: ratio(1.1)}
	delta := row{what: what, unit: "MB", floorName: "without a delta", goal: "at most 0.5 x", judge: ratio(0.5), note: note}
	away := row{what: whatAway, unit: "s", goal: "at most 5 s", judge: atMost(5, "s")}
	programs := [2][]byte{two, one} // by turns: the device has the second one as its package
	var deltas [2][]byte
	for i := range deltas {
		deltas[i], err = artefactrepo.Delta(programs[1-i], programs[i])
		check(b, err)
	}
	for i := range 2 * *rounds {
		version, program := fmt.Sprintf("v9.0.%d", i), programs[i%2]
		target, err := repo.Add(version, runtime.GOARCH, program, nil)
		check(b, err)
		byDelta := i%4 == 1 || i%4 == 2 // both directions of both
		if byDelta {
			_, err := repo.AddDelta(version, runtime.GOARCH, programs[1-i%2], deltas[i%2], program, nil)
			check(b, err)
		}
		bytes, gap := s.upgrade(b, repo, version)
		away.ours = append(away.ours, gap)
		if byDelta {
			delta.ours = append(delta.ours, bytes)
		} else {
			whole.ours, whole.floor = append(whole.ours, bytes), append(whole.floor, float64(target.Length)/1e6)
			delta.floor = append(delta.floor, bytes)
		}
		check(b, repo.Remove(version))
	}
	whole.note = "all that crosses the device's uplink, both ways, from the NodeOperation until it is confirmed: the signed metadata, the reports, the new session, ten pods' statuses, and the headers of the packets."
	away.note = "as edgecore's own status shows it each 20 ms, with ten pods; the containers run on."
	s.rows = append(s.rows, whole, delta, away)
}

// upgrade has the device run a version, and returns the MB on its uplink and the longest time
// without a link in seconds.
func (s *bench) upgrade(b *testing.B, repo *artefactrepo.Repository, version string) (mb, gap float64) {
	b.Helper()
	check(b, trial.CopyArtefacts(s.host(b, trial.Cloud).Root(), repo.Dir))
	config, err := s.Admin()
	check(b, err)
	client, err := dynamic.NewForConfig(config)
	check(b, err)
	operations := client.Resource(v1alpha1.Resource(v1alpha1.NodeOperations))
	s.awaitLinked(b)
	ctx, cancel := context.WithCancel(b.Context())
	longest := make(chan float64, 1)
	go func() {
		last, most := time.Now(), time.Duration(0)
		for ctx.Err() == nil {
			if d, err := s.status(ctx, b); err == nil && d.Link.Linked {
				most, last = max(most, time.Since(last)), time.Now()
			}
			time.Sleep(20 * time.Millisecond)
		}
		longest <- most.Seconds()
	}()
	before := s.wire(b, edge, "wan0")
	_, err = operations.Create(b.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.SchemeGroupVersion.String(), "kind": "NodeOperation", "metadata": map[string]any{"name": version},
		"spec": map[string]any{"nodeName": edge, "operation": "Upgrade", "upgrade": map[string]any{"version": version, "allowDowngrade": true}},
	}}, metav1.CreateOptions{})
	check(b, err)
	eventually(b, version+" to be confirmed", 200*time.Millisecond, func(ctx context.Context) error {
		o, err := operations.Get(ctx, version, metav1.GetOptions{})
		if err != nil {
			return err
		}
		conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
		for _, c := range conditions {
			if c.(map[string]any)["reason"] == v1alpha1.OperationConfirmed {
				return nil
			}
		}
		return fmt.Errorf("it has %v", conditions)
	})
	cancel()
	gap = <-longest
	mb = (s.wire(b, edge, "wan0") - before) / 1e6
	check(b, operations.Delete(b.Context(), version, metav1.DeleteOptions{}))
	return mb, gap
}
