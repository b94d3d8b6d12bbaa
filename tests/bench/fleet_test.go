package bench_test

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/tests/cluster"
	"github.com/skerry-io/skerry/tests/cluster/trial"
	"github.com/skerry-io/skerry/tests/hollow"
)

const (
	whatFleetKilled = "many hollow nodes, two replicas: in step again after both were killed, from the kill to the last"
	whatFleetLost   = "many hollow nodes, two replicas: in step again after one was lost, from its kill to the last"
	whatFleetReady  = "many hollow nodes, two replicas: nodes that were NotReady meanwhile"

	// fleetSettles is how long after each loss nodes are watched: as long as a Lease may go without
	// a renewal (kube-controller-manager's --node-monitor-grace-period is 50 s), and some.
	fleetSettles = 75 * time.Second
)

// manyNodes kills both replicas of cloudcore under a large fleet, and then one of them. It has a
// trial of its own, with the control plane's usual 50 s until a node without a Lease is NotReady.
func (s *bench) manyNodes(b *testing.B) {
	s.down(b)
	s.upWith(b, 2)
	s.link(b, link.WebSocket, *fleet)
	killed := row{what: whatFleetKilled, unit: "s", goal: "at most 60 s", judge: atMost(60, "s")}
	lost := row{what: whatFleetLost, unit: "s", goal: "at most 60 s", judge: atMost(60, "s")}
	ready := row{what: whatFleetReady, unit: "nodes", goal: "0", judge: atMost(0, "nodes")}
	pause(b, linkSteady) // as in storm
	s.awaitControllers(b)
	ctx, cancel := context.WithTimeout(b.Context(), time.Duration(*rounds)*10*upTimeout)
	defer cancel()
	watch := s.watchReady(ctx, b)
	replicas := trial.Options{Clouds: 2}.Replicas()
	inStep := func(hosts []string, back bool) (took float64, used map[string]float64) {
		connects, began := s.fleet.Count().Connects, time.Now()
		for _, host := range hosts {
			check(b, s.Kill(ctx, host, "cloudcore"))
		}
		before := s.spent(b)
		if back {
			for _, host := range hosts {
				check(b, s.Start(ctx, host, "cloudcore"))
			}
		}
		// A node that has not noticed yet counts as in step: those whose replica is gone link again
		// first.
		check(b, s.fleet.Await(ctx, func(n hollow.Count) bool { return n.Connects > connects }))
		check(b, s.fleet.AwaitWhole(ctx))
		took, used = time.Since(began).Seconds(), s.spent(b)
		for program := range used {
			used[program] -= before[program]
		}
		pause(b, fleetSettles)
		return took, used
	}
	cpu := map[string][]float64{}
	for range *rounds {
		took, used := inStep(replicas, true)
		killed.ours = append(killed.ours, took)
		for program, v := range used {
			cpu[program] = append(cpu[program], v/float64(*fleet))
		}
		took, _ = inStep(replicas[1:], false)
		lost.ours = append(lost.ours, took)
		check(b, s.Start(ctx, replicas[1], "cloudcore"))
	}
	names := watch()
	ready.ours = []float64{float64(len(names))}
	killed.note = fmt.Sprintf("%d nodes, on the machine that also runs the control plane, both replicas and the nodes. CPU bounds it, of which there are %d cores: %.3g ms a node (%s).",
		*fleet, runtime.NumCPU(), total(cpu), shares(cpu))
	lost.note = fmt.Sprintf("%d nodes; the other replica goes on, and takes those of the lost one, while the trial's balancer goes on sending half of the dials to that.", *fleet)
	ready.note = fmt.Sprintf("as a watch at kube-apiserver saw them, from the first kill until %v after the last. The first of them: %v.", fleetSettles, names[:min(len(names), 3)])
	s.unlink(b)
	s.down(b)
	s.Trial = nil
	s.rows = append(s.rows, killed, lost, ready)
}

// awaitControllers waits until kube-controller-manager has done with so many new nodes: it labels
// and annotates each several times, at the rate of its clients, which takes minutes. Some it may
// have taken for NotReady when their first Leases were late.
func (s *bench) awaitControllers(b *testing.B) {
	b.Helper()
	const calm = 10 * time.Second
	for deadline := time.Now().Add(3 * upTimeout); ; {
		place := s.audit(b)
		pause(b, calm)
		writes := place.find(b, func(r cluster.Request) bool {
			return r.Write() && r.ObjectRef.Resource == "nodes" && strings.HasPrefix(by(r), "system:serviceaccount:kube-system:")
		})
		if len(writes) == 0 {
			return
		}
		if time.Now().After(deadline) {
			b.Fatalf("controllers still write nodes: %d times in %v", len(writes), calm)
		}
	}
}

// watchReady notes each node whose condition Ready becomes anything but True, until the function
// that it returns is called, which names them.
func (s *bench) watchReady(ctx context.Context, b *testing.B) (stop func() []string) {
	b.Helper()
	ctx, cancel := context.WithCancel(ctx)
	var mu sync.Mutex
	notReady := map[string]bool{}
	look := func(o any) {
		n, ok := o.(*corev1.Node)
		if !ok {
			return
		}
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
				mu.Lock()
				notReady[n.Name] = true
				mu.Unlock()
			}
		}
	}
	factory := informers.NewSharedInformerFactoryWithOptions(s.client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermNotEqualSelector("metadata.name", plain).String()
	}))
	nodes := factory.Core().V1().Nodes().Informer()
	_, err := nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: look, UpdateFunc: func(_, o any) { look(o) }})
	check(b, err)
	factory.Start(ctx.Done())
	for kind, ok := range factory.WaitForCacheSync(ctx.Done()) {
		if !ok {
			b.Fatalf("the watch of %v did not begin", kind)
		}
	}
	return func() []string {
		cancel()
		factory.Shutdown()
		mu.Lock()
		defer mu.Unlock()
		return slices.Sorted(maps.Keys(notReady))
	}
}
