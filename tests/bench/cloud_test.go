package bench_test

import (
	"context"
	"fmt"
	"math"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/tests/cluster/binary"
	"github.com/skerry-io/skerry/tests/cluster/lab"
	"github.com/skerry-io/skerry/tests/cluster/trial"
	"github.com/skerry-io/skerry/tests/hollow"
)

const (
	whatHollowMemory = "cloudcore's memory for each connected idle node, websocket: resident"
	whatHollowHeap   = "cloudcore's memory for each connected idle node, websocket: live heap and stacks"
	whatHollowQUIC   = "cloudcore's memory for each connected idle node, QUIC: resident"
	whatHollowLinked = "hollow nodes linked again after cloudcore was killed: from its start to the last"
	whatHollowStep   = "hollow nodes in step again after cloudcore was killed: from its start to the last"
	whatHollowWrites = "writes of a hollow node at kube-apiserver in an hour"
	whatHollowCPU    = "CPU of all for a hollow node to be in step again after cloudcore was killed"
	whatSteady       = "reviews of rights at kube-apiserver, of all hollow nodes together, linked and idle"

	nodeBytes     = 48  // kB, the goal by websocket
	nodeBytesQUIC = 72  // kB, the goal by QUIC
	leaseWrites   = 190 // in an hour, the goal: a Lease every 20 s
)

// hollow links many nodes to the trial's cloudcore. They stay for storm.
func (s *bench) hollow(b *testing.B) {
	s.up(b)
	bytes := row{what: whatHollowMemory, unit: "kB", goal: "at most 48 kB", judge: atMost(nodeBytes, "kB")}
	heap := row{what: whatHollowHeap, unit: "kB", goal: "at most 48 kB", judge: atMost(nodeBytes, "kB")}
	writes := row{what: whatHollowWrites, unit: "writes", goal: fmt.Sprintf("at most %d", leaseWrites), judge: atMost(leaseWrites, "writes")}
	empty := s.restarted(b)
	s.link(b, link.WebSocket, *nodes)
	place := s.audit(b)
	began := time.Now()
	full := s.settled(b)
	window := time.Since(began)
	bytes.ours, heap.ours = each(full.resident, empty.resident), each(full.live, empty.live)
	count := 0.0
	for _, w := range place.since(b) {
		if strings.HasPrefix(by(w), "system:node:"+hollowPrefix) {
			count++
		}
	}
	writes.ours = []float64{count / float64(*nodes) * float64(time.Hour) / float64(window)}
	writes.note = fmt.Sprintf("%d nodes, counted in the audit log for %v: a Lease each 20 s, half as often as a kubelet (docs/dev/decisions/0081-leases-by-heartbeats.md).", *nodes, window.Round(time.Second))
	perNode := func(of func(use) []float64) float64 { return (median(of(full)) - median(of(empty))) / float64(*nodes) }
	bytes.note = fmt.Sprintf("%d nodes without pods; the difference to cloudcore without them, %v after the last was in step. Alive are %.3g kB a node, of which %.3g kB are stacks, of %.2g goroutines: "+
		"the one that waits beneath TLS for the link, in 4 KiB, and what was torn between stacks when all came at once. The heap's pages in use are %.3g kB a node: between what lives stands the garbage of "+
		"the handshakes, in pages that Go can't give back as long as anything lives in them. What lives is TLS above all (some 10 kB with the certificate and the buffers that the handshake has made grow), "+
		"then the interests, the Node object and the Lease.", *nodes, settleFor, median(heap.ours),
		perNode(func(u use) []float64 { return u.stacks }), perNode(func(u use) []float64 { return u.goroutines }), perNode(func(u use) []float64 { return u.pages }))
	s.rows = append(s.rows, bytes, heap, writes)
}

// storm kills cloudcore again and again under the nodes that are linked to it.
func (s *bench) storm(b *testing.B) {
	s.up(b)
	linked := row{what: whatHollowLinked, unit: "s", goal: "-", judge: noGoal("s")}
	inStep := row{what: whatHollowStep, unit: "s", goal: "-", judge: noGoal("s")}
	if s.fleet == nil {
		s.link(b, link.WebSocket, *nodes)
	}
	spent := row{what: whatHollowCPU, unit: "ms", goal: "at most 10 ms", judge: atMost(10, "ms")}
	var spread, reviews []float64
	cpu := map[string][]float64{} // of each program, in ms a node
	for range *rounds {
		pause(b, linkSteady)
		place := s.audit(b)
		first, last, step, used := s.restart(b)
		all := 0.0
		for program, v := range used {
			cpu[program] = append(cpu[program], v/float64(*nodes))
			all += v / float64(*nodes)
		}
		spent.ours, reviews = append(spent.ours, all), append(reviews, place.reviews(b)/float64(*nodes))
		linked.ours, inStep.ours = append(linked.ours, last), append(inStep.ours, step)
		spread = append(spread, last-first)
	}
	linked.note = fmt.Sprintf("%d nodes, on the machine that also runs the control plane and cloudcore. The first and the last came %.3g s apart (median): cloudcore bounds the handshakes that run at once, "+
		"and the edges' back-off is drawn at random.", *nodes, median(spread))
	inStep.note = fmt.Sprintf("CPU bounds it, of which this machine has %d cores for everything: %.3g ms a node, see the next row.", runtime.NumCPU(), total(cpu))
	spent.note = fmt.Sprintf("%s; the hollow nodes are in the benchmark's process, and kubeplane is the control plane. kube-apiserver answers %.3g SubjectAccessReviews a node (docs/dev/decisions/0066), and takes "+
		"the Lease's new epoch.", shares(cpu), median(reviews))
	s.unlink(b)
	s.rows = append(s.rows, linked, inStep, spent)
}

// steady counts the requests of many idle nodes at kube-apiserver, for so long that each of their
// rights is reviewed again.
func (s *bench) steady(b *testing.B) {
	s.up(b)
	if s.fleet == nil {
		s.link(b, link.WebSocket, *nodes)
	}
	r := row{what: whatSteady, unit: "a second", goal: "at most 1 a second", judge: atMost(1, "a second")}
	place, before, began := s.audit(b), s.spent(b), time.Now()
	pause(b, *idle)
	window := time.Since(began)
	r.ours = []float64{place.reviews(b) / window.Seconds()}
	cpu := map[string][]float64{}
	for program, after := range s.spent(b) {
		cpu[program] = []float64{(after - before[program]) / float64(*nodes) * float64(time.Minute) / float64(window)}
	}
	r.note = fmt.Sprintf("%d nodes, counted in the audit log for %v: each interest's rights are looked at again every 5 to 6.5 minutes. A node and minute takes %.3g ms of CPU (%s), of which kube-apiserver's is the Lease's.",
		*nodes, window.Round(time.Second), total(cpu), shares(cpu))
	s.rows = append(s.rows, r)
}

// hollowQUIC is hollow by the other transport.
func (s *bench) hollowQUIC(b *testing.B) {
	s.up(b)
	s.unlink(b)
	r := row{what: whatHollowQUIC, unit: "kB", goal: "at most 72 kB", judge: atMost(nodeBytesQUIC, "kB")}
	empty := s.restarted(b)
	s.link(b, link.QUIC, *nodes)
	full := s.settled(b)
	r.ours = each(full.resident, empty.resident)
	r.note = fmt.Sprintf("%d nodes, %v after the last was in step. The library has two goroutines for each connection: %.2g a node, whose stacks are %.3g kB of it. What else there is: docs/dev/decisions/0016.", *nodes, settleFor,
		(median(full.goroutines)-median(empty.goroutines))/float64(*nodes), (median(full.stacks)-median(empty.stacks))/float64(*nodes))
	s.unlink(b)
	s.rows = append(s.rows, r)
}

// noGoal is the judgement of a figure that has no goal.
func noGoal(unit string) judgement {
	return func(ours, _ float64) (string, bool) { return fmt.Sprintf("%.4g %s", ours, unit), true }
}

const (
	hollowPrefix = "hollow-"
	// linkSteady is longer than a link must have lasted for edgecore to dial at once when it ends;
	// after one that did not it waits for up to half a minute.
	linkSteady = 65 * time.Second
	settleFor  = 3 * time.Minute // the Go runtime collects garbage every two minutes at least (runtime.forcegcperiod)
)

// use is cloudcore's memory, in kB, a few times over.
type use struct{ resident, live, stacks, pages, goroutines []float64 }

func (s *bench) use(b *testing.B) (u use) {
	b.Helper()
	for range *rounds {
		least := math.Inf(1) // just after a collection the heap has the least garbage
		var m map[string]float64
		for range 8 {
			pause(b, time.Second)
			m = s.metrics(b)
			least = min(least, m["go_memstats_heap_alloc_bytes"]+m["go_memstats_stack_inuse_bytes"])
		}
		u.live = append(u.live, least/1000)
		u.resident = append(u.resident, m["process_resident_memory_bytes"]/1000)
		u.stacks = append(u.stacks, m["go_memstats_stack_inuse_bytes"]/1000)
		u.pages = append(u.pages, m["go_memstats_heap_inuse_bytes"]/1000)
		u.goroutines = append(u.goroutines, m["go_goroutines"])
	}
	return u
}

func each(full, empty []float64) (all []float64) {
	for _, v := range full {
		all = append(all, (v-median(empty))/float64(*nodes))
	}
	return all
}

func (s *bench) settled(b *testing.B) use {
	b.Helper()
	pause(b, settleFor)
	return s.use(b)
}

// restarted restarts cloudcore and returns its memory for one edge.
func (s *bench) restarted(b *testing.B) use {
	b.Helper()
	check(b, s.Stop(b.Context(), trial.Cloud, "cloudcore"))
	check(b, s.Start(b.Context(), trial.Cloud, "cloudcore"))
	s.awaitLinked(b)
	pause(b, 10*time.Second)
	return s.use(b)
}

// link starts so many nodes and waits until all are in step.
func (s *bench) link(b *testing.B, transport link.Transport, nodes int) {
	b.Helper()
	roots, err := hollow.Roots(b.Context(), s.client)
	check(b, err)
	dir := filepath.Join(s.host(b, trial.Cloud).Root(), "var/lib/kubeplane/pki")
	env, err := s.Env()
	check(b, err)
	server := ""
	for _, v := range env {
		if v.Name == "TRIAL_CLOUD" {
			server = v.Value
		}
	}
	s.fleet, err = hollow.New(hollow.Config{
		Nodes: nodes, Prefix: hollowPrefix, Server: server, ServerName: lab.Cloud().String(), Transport: transport, Roots: roots, Operate: s.operate,
		Identity: hollow.FromCA(filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key")),
	})
	check(b, err)
	check(b, s.fleet.Allow(b.Context(), s.client))
	// Not of this row: the nodes stay for the next. Each of them logs when its link ends.
	ctx, cancel := context.WithCancel(klog.NewContext(context.WithoutCancel(b.Context()), klog.New(nil)))
	done := make(chan error, 1)
	fleet := s.fleet
	go func() { done <- fleet.Run(ctx) }()
	s.stopFleet = func() error {
		cancel()
		if err := <-done; err != nil {
			return err
		}
		return fleet.Remove(context.WithoutCancel(ctx), s.client)
	}
	patient, end := context.WithTimeout(ctx, 6*upTimeout) // a busy kube-apiserver takes its time for the reviews
	defer end()
	check(b, s.fleet.AwaitWhole(patient))
}

// unlink ends the nodes, if there are any, and takes their Node objects away.
func (s *bench) unlink(b *testing.B) {
	b.Helper()
	if s.fleet != nil {
		s.fleet = nil
		check(b, s.stopFleet())
	}
}

// restart kills cloudcore, starts it, and returns when, in seconds after it was ready, the
// first and the last node was linked again, and when the last was in step, and the CPU time
// until then, in ms.
func (s *bench) restart(b *testing.B) (first, last, step float64, used map[string]float64) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), 6*upTimeout)
	defer cancel()
	check(b, s.Kill(ctx, trial.Cloud, "cloudcore"))
	check(b, s.fleet.Await(ctx, func(n hollow.Count) bool { return n.Linked == 0 }))
	before := s.fleet.Count().Connects
	check(b, s.Start(ctx, trial.Cloud, "cloudcore"))
	ready, spent := time.Now(), s.spent(b)
	check(b, s.fleet.Await(ctx, func(n hollow.Count) bool { return n.Connects > before }))
	first = time.Since(ready).Seconds()
	check(b, s.fleet.Await(ctx, func(n hollow.Count) bool { return n.Linked == *nodes }))
	last = time.Since(ready).Seconds()
	check(b, s.fleet.AwaitWhole(ctx))
	step, used = time.Since(ready).Seconds(), s.spent(b)
	for program := range used {
		used[program] -= spent[program]
	}
	return first, last, step, used
}

const (
	whatQueueOne   = "durable queue: commits with one writer"
	whatQueueEight = "durable queue: writes with 8 writers"
	whatQueueMany  = "durable queue: writes with 64 writers"
)

// queue runs the store's own benchmark, which measures the disk between its commits.
func (s *bench) queue(b *testing.B) {
	root, err := binary.Root()
	check(b, err)
	cmd := exec.CommandContext(b.Context(), "go", "test", "./edge/internal/core/store", "-vet", "off", "-run", "^$", "-bench", "^BenchmarkUpdate$", "-count", strconv.Itoa(*rounds))
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	if err != nil {
		b.Fatalf("%v\n%s", err, out)
	}
	for _, q := range []struct {
		what, writers, goal string
		least               float64
	}{
		{whatQueueOne, "writers=1", "at least 0.9 x", 0.9}, {whatQueueEight, "writers=8", "scales with the writers", 2}, {whatQueueMany, "writers=64", "scales with the writers", 8},
	} {
		r := row{what: q.what, unit: "x", floorName: "the same pages and two fdatasyncs a commit, without a database", goal: q.goal, judge: atLeast(q.least, "x")}
		have := measured(b, string(out), q.writers)
		r.ours = have["x-floor"]
		r.note = fmt.Sprintf("a commit writes some pages, syncs, writes the page that makes them valid, and syncs again: that alone took %.3g µs, and a commit some %.3g µs of CPU beside the waits for the "+
			"disk. Beside half of the fdatasyncs of a single page a second, %.3g µs each, it is %.3g x.",
			median(have["µs-floor/commit"]), median(have["µs-cpu/commit"]), median(have["µs/sync"]), median(have["x-sync"]))
		s.rows = append(s.rows, r)
	}
}

// measured reads a benchmark's results with so many writers ("": any), by unit.
func measured(b *testing.B, out, writers string) map[string][]float64 {
	b.Helper()
	found := map[string][]float64{}
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) < 4 || !strings.HasPrefix(f[0], "Benchmark") || writers != "" && !strings.HasSuffix(f[0], "/"+writers) && !strings.Contains(f[0], "/"+writers+"-") {
			continue
		}
		for i := 2; i+1 < len(f); i += 2 { // a number and its unit, after the name and how often
			v, err := strconv.ParseFloat(f[i], 64)
			check(b, err)
			found[f[i+1]] = append(found[f[i+1]], v)
		}
	}
	if len(found["x-floor"]) == 0 {
		b.Fatalf("no figure for %s in\n%s", writers, out)
	}
	return found
}
