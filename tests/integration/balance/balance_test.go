// Package balance_test shows that two cloudcores share their devices out: the real programs, but
// for some of their times, with the rights of their manifests, a real kube-apiserver, and links by
// one address for both, as behind a load balancer.
package balance_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/tests/cluster"
	"github.com/skerry-io/skerry/tests/cluster/binary"
	"github.com/skerry-io/skerry/tests/cluster/process"
	"github.com/skerry-io/skerry/tests/hollow"
)

// hurried are shorter intervals for balancing sessions in this cloudcore: seconds in place of
// minutes, in the same order.
var hurried = []struct{ file, own, here string }{
	{"cloud/internal/core/balance/replicas.go", "period = 10 * time.Second", "period = 2 * time.Second"},
	{"cloud/internal/core/balance/balance.go", "settle = 5 * time.Second", "settle = 2 * time.Second"},
	{"cloud/internal/core/balance/plan.go", "restMin, restMax = time.Minute, time.Hour", "restMin, restMax = 5 * time.Second, time.Minute"},
	{"cloud/internal/core/cloudhub/config.go", "cmp.Or(c.RetryAfter, 10*time.Second)", "cmp.Or(c.RetryAfter, time.Second)"},
	{"cloud/app/balance.go", "youngSession = 2 * time.Minute", "youngSession = 8 * time.Second"},
}

// build builds that cloudcore.
func build(t *testing.T) (program string) {
	t.Helper()
	root, err := binary.Root()
	if err != nil {
		t.Fatal(err)
	}
	dir, replace := t.TempDir(), map[string]string{}
	for n, h := range hurried {
		file := filepath.Join(root, filepath.FromSlash(h.file))
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(text), h.own); n != 1 {
			t.Fatalf("%s says %d times %q, want once", h.file, n, h.own)
		}
		replace[file] = filepath.Join(dir, fmt.Sprintf("%d.go", n))
		if err := os.WriteFile(replace[file], []byte(strings.Replace(string(text), h.own, h.here, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	overlay, program := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "cloudcore")
	if err := os.WriteFile(overlay, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := binary.BuildChanged(t.Context(), root, program, "./cloud/cmd/cloudcore", overlay); err != nil {
		t.Fatal(err)
	}
	return program
}

// replica is a cloudcore.
type replica struct{ links, health string }

func start(t *testing.T, program, name string, maxSessions int) *replica {
	t.Helper()
	plane := cluster.Shared(t)
	dir := t.TempDir()
	kubeconfig, file, log := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "cloudcore.yaml"), filepath.Join(dir, "log")
	plane.AccountKubeconfig(t, "cloudcore", kubeconfig)
	r := &replica{links: cluster.FreeAddress(t, "tcp"), health: cluster.FreeAddress(t, "tcp")}
	config := fmt.Sprintf("apiVersion: config.skerry.io/v1alpha1\nkind: CloudCore\nkubeconfig: %s\nhealth: {listen: %q}\ntunnel: {listen: \"\"}\ndevices: {listen: \"\"}\n"+
		"advertise: [127.0.0.1]\nhub:\n  websocket: {listen: %q}\n  maxSessions: %d\nrelay: {leaseRenewal: 5s}\n", kubeconfig, r.health, r.links, maxSessions)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cluster.StartProgram(t, name, process.Spec{Path: program, Args: []string{"--config", file}, Log: log}, 30*time.Second)
	cluster.WaitReady(t, name, r.health)
	return r
}

// metric is the sum of a metric's values with all of these labels.
func (r *replica) metric(ctx context.Context, name string, labels ...string) (sum float64, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.health+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		series, value, _ := strings.Cut(lines.Text(), " ")
		wanted := series == name || strings.HasPrefix(series, name+"{")
		for _, l := range labels {
			wanted = wanted && strings.Contains(series, l)
		}
		if wanted {
			n, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return 0, err
			}
			sum += n
		}
	}
	return sum, nil
}

// metrics is metric of each replica.
func metrics(ctx context.Context, t *testing.T, name string, of ...*replica) (all []int) {
	t.Helper()
	for _, r := range of {
		n, err := r.metric(ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, int(n))
	}
	return all
}

// balance listens at an address that leads connections to its targets in turn.
func balance(t *testing.T, targets *atomic.Pointer[[]string]) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var turn atomic.Uint64
	cluster.Forward(t, l, func() string {
		all := *targets.Load()
		return all[turn.Add(1)%uint64(len(all))]
	})
	return l.Addr().String()
}

const nodes = 40

// run links the hollow nodes by one address, and has them linked until stop is called.
func run(t *testing.T, address string) (fleet *hollow.Fleet, stop func()) {
	t.Helper()
	plane := cluster.Shared(t)
	roots, err := hollow.Roots(t.Context(), plane.Client())
	if err != nil {
		t.Fatal(err)
	}
	host, port, _ := net.SplitHostPort(address)
	number, _ := strconv.Atoi(port)
	pki := filepath.Join(plane.Dir, "pki")
	fleet, err = hollow.New(hollow.Config{
		Nodes: nodes, Server: host, Port: number, Roots: roots, Identity: hollow.FromCA(filepath.Join(pki, "ca.crt"), filepath.Join(pki, "ca.key")),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := fleet.Allow(t.Context(), plane.Client()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), klog.New(nil)))
	done := make(chan error, 1)
	go func() { done <- fleet.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return fleet, stop
}

// notReady watches the nodes, and collects which of them were ever not Ready after they had been.
func notReady(t *testing.T) func() []string {
	t.Helper()
	plane := cluster.Shared(t)
	w, err := plane.Client().CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	var over atomic.Bool // a watch that is stopped may report that its body was closed
	done := make(chan struct{})
	go func() {
		defer close(done)
		ready := map[string]bool{}
		for e := range w.ResultChan() {
			n, ok := e.Object.(*corev1.Node)
			if !ok {
				if !over.Load() {
					found = append(found, fmt.Sprintf("the watch has ended: %v", e.Object))
				}
				return
			}
			for _, c := range n.Status.Conditions {
				if c.Type != corev1.NodeReady {
					continue
				}
				if c.Status != corev1.ConditionTrue && ready[n.Name] {
					found = append(found, n.Name+": "+c.Message)
				}
				ready[n.Name] = c.Status == corev1.ConditionTrue
			}
		}
	}()
	return func() []string {
		over.Store(true)
		w.Stop()
		<-done
		return found
	}
}

// TestANewReplicaGetsItsShare: first one replica that is full, then a second one, which takes those
// that found no place at once and in the end half of all.
func TestANewReplicaGetsItsShare(t *testing.T) {
	plane := cluster.Shared(t)
	plane.Apply(t, "manifests/crds")
	plane.Apply(t, "manifests/cloudcore")
	program := build(t)
	const most = 36
	a := start(t, program, "the first", most)
	var between atomic.Pointer[[]string]
	between.Store(&[]string{a.links})
	fleet, stop := run(t, balance(t, &between))
	if err := fleet.Await(t.Context(), func(c hollow.Count) bool { return c.Linked == most && c.Registered == most }); err != nil {
		t.Fatal(err)
	}

	b := start(t, program, "the second", nodes)
	cluster.Eventually(t, "the full one sends devices to the other", func(ctx context.Context) error {
		if n, err := a.metric(ctx, "skerry_hub_refused_total", `code="4000"`); err != nil || n == 0 {
			return errors.Join(err, errors.New("it sends none"))
		}
		return nil
	})
	between.Store(&[]string{a.links, b.links})
	if err := fleet.AwaitWhole(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := metrics(t.Context(), t, "skerry_hub_sessions", a, b); got[0] > most || got[0]+got[1] != nodes {
		t.Errorf("sessions when all are linked: %v", got)
	}
	flaps := notReady(t)

	cluster.Eventually(t, "sessions end so that the second replica serves their nodes", func(ctx context.Context) error {
		if n, err := a.metric(ctx, "skerry_balance_ended_total"); err != nil || n == 0 {
			return errors.Join(err, errors.New("none has ended"))
		}
		return nil
	})
	// Behind this balancer half of them come back. A device that dials when both count is in
	// neither count: the result may differ from the half by as much.
	const half = nodes/2 + 2
	for _, goal := range []int{32, 28, 24, half} {
		cluster.Eventually(t, fmt.Sprintf("the first has %d", goal), func(ctx context.Context) error {
			if n := metrics(ctx, t, "skerry_hub_sessions", a, b); n[0] > goal || n[0]+n[1] != nodes || fleet.Count().Synced != nodes {
				return fmt.Errorf("sessions: %v, %+v", n, fleet.Count())
			}
			return nil
		})
	}
	// Soon the counts are stable: while both count a few times over.
	var before int64
	var ended []int
	still := func() bool {
		before, ended = fleet.Count().Connects, metrics(t.Context(), t, "skerry_balance_ended_total", a, b)
		for range 6 {
			awaitCounts(t)
		}
		awaitLeases(t)
		return fleet.Count().Connects == before && slices.Equal(metrics(t.Context(), t, "skerry_balance_ended_total", a, b), ended)
	}
	// On a busy machine the last one may move after a while.
	if !still() && !still() && !still() && !still() {
		t.Error("sessions go on moving")
	}
	if got := metrics(t.Context(), t, "skerry_hub_sessions", a, b); got[0] > half || got[0]+got[1] != nodes || ended[1] != 0 {
		t.Errorf("in the end: sessions %v, of which %v were ended", got, ended)
	}
	c := fleet.Count()
	if c.Linked != nodes {
		t.Errorf("%d links are open", c.Linked)
	}
	// Each session that opened is one that a device had first, or the next one of a device whose
	// session was ended.
	if moved := int(before) - nodes; moved != ended[0] {
		t.Errorf("%d sessions were ended for %d that opened again", ended[0], moved)
	}
	if found := flaps(); len(found) > 0 {
		t.Errorf("nodes that were not Ready: %v", found)
	}
	t.Logf("sessions: %v; %d were ended for it", metrics(t.Context(), t, "skerry_hub_sessions", a, b), ended[0])
	stop() // first: a replica that stops takes its time for the sessions that it has
}

// awaitLeases waits until the Lease of every node has been renewed: kube-controller-manager makes a
// node NotReady only 50 s after the last time.
func awaitLeases(t *testing.T) {
	t.Helper()
	plane := cluster.Shared(t)
	began := time.Now()
	cluster.Eventually(t, "the Lease of every node is renewed", func(ctx context.Context) error {
		all, err := plane.Client().CoordinationV1().Leases(corev1.NamespaceNodeLease).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		renewed := 0
		for _, l := range all.Items {
			if l.Spec.RenewTime != nil && l.Spec.RenewTime.After(began) {
				renewed++
			}
		}
		if renewed != nodes {
			return fmt.Errorf("those of %d nodes are", renewed)
		}
		return nil
	})
}

// awaitCounts waits until every replica has counted again.
func awaitCounts(t *testing.T) {
	t.Helper()
	plane := cluster.Shared(t)
	leases := plane.Client().CoordinationV1().Leases("skerry-system")
	first, err := leases.Get(t.Context(), "cloudcore-replicas", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cluster.Eventually(t, "every replica counts again", func(ctx context.Context) error {
		next, err := leases.Get(ctx, first.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for k, v := range first.Annotations {
			if strings.HasPrefix(k, "replicas.skerry.io/") && next.Annotations[k] == v { // there are other annotations
				return errors.New(k + " is " + v)
			}
		}
		return nil
	})
}
