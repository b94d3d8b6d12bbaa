package apps_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/tests/cluster/suite"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

// TestCluster_18: applications of both kinds of fencing, on three nodes that die at random:
// switched off, declared dead by a person, and started again. At rest each application is active on
// exactly one node, with its one pod and its one container there, and no others.
// SKERRY_APPS_MINUTES=10 kills nodes for ten minutes, with 50 applications; without it one node
// dies, and there are 16.
func TestCluster_18_OneActiveNodeAfterRandomDeaths(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	count, end := 16, time.Now()
	if text := os.Getenv("SKERRY_APPS_MINUTES"); text != "" {
		minutes, err := strconv.Atoi(text)
		s.Check(err)
		count, end = 50, end.Add(time.Duration(minutes)*time.Minute)
	}
	nodes := options().Nodes()
	for i := range count {
		var more []string
		if i%2 == 0 {
			more = append(more, "  singleton: true")
		}
		s.create(ns, appYAML(fmt.Sprintf("app-%d", i), nodes[i%len(nodes)].Name, more...))
	}
	s.atRest(ns, count)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for deaths := 1; deaths == 1 || time.Now().Before(end); deaths++ {
		node := nodes[random.IntN(len(nodes))].Name
		t.Logf("death %d: %s", deaths, node)
		s.Check(s.Trial.PowerOff(t.Context(), node))
		s.WaitReady(node, false)
		s.outOfService(node)
		s.WaitFor("no application to be on "+node, func(ctx context.Context) error {
			apps, err := s.list(ctx, ns)
			for _, a := range apps {
				if a.Status.ActiveNode == node {
					err = errors.Join(err, fmt.Errorf("%s is there: %s", a.Name, a.Status.Phase))
				}
			}
			return err
		})
		s.Mend(t.Context())
		s.inService(node)
		s.WaitReady(node, true)
		s.atRest(ns, count)
	}
}

func (s *system) list(ctx context.Context, namespace string) ([]*v1alpha1.EdgeApp, error) {
	list, err := s.apps(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var all []*v1alpha1.EdgeApp
	for i := range list.Items {
		a, err := convert(&list.Items[i])
		if err != nil {
			return nil, err
		}
		all = append(all, a)
	}
	return all, nil
}

// atRest waits until each application is active on one node, with exactly one pod and one
// container.
func (s *system) atRest(namespace string, count int) {
	s.T.Helper()
	s.WaitFor("the applications to be at rest", func(ctx context.Context) error {
		apps, err := s.list(ctx, namespace)
		if err != nil {
			return err
		}
		pods, err := s.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		sets, err := s.Client.AppsV1().ReplicaSets(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(apps) != count || len(pods.Items) != count || len(sets.Items) != count {
			return fmt.Errorf("%d applications, %d pods, %d ReplicaSets, of %d each", len(apps), len(pods.Items), len(sets.Items), count)
		}
		active, here := map[string]string{}, map[string]string{} // nodes by application; by container
		var errs []error
		for _, a := range apps {
			active[a.Name] = a.Status.ActiveNode
			if a.Status.Phase != v1alpha1.PhaseRunning {
				errs = append(errs, fmt.Errorf("%s is %s", a.Name, a.Status.Phase))
			}
		}
		for _, p := range pods.Items {
			app := p.Labels[v1alpha1.EdgeAppLabel]
			if !suite.PodReady(p) || p.Spec.NodeName != active[app] {
				errs = append(errs, fmt.Errorf("%s is on %s, ready: %v; it is active on %s", p.Name, p.Spec.NodeName, suite.PodReady(p), active[app]))
			}
			here[containerOf(p)] = p.Spec.NodeName
		}
		for _, n := range options().Nodes() {
			for _, id := range s.containersOf(ctx, n.Name, namespace) {
				if here[id] != n.Name {
					errs = append(errs, fmt.Errorf("container %s on %s is of no pod", id, n.Name))
				}
				delete(here, id)
			}
		}
		for id, node := range here {
			errs = append(errs, fmt.Errorf("container %q does not run on %s", id, node))
		}
		return errors.Join(errs...)
	})
}

// containersOf are the containers of a namespace that run on a node, without the pods' sandboxes.
func (s *system) containersOf(ctx context.Context, node, namespace string) (ids []string) {
	s.T.Helper()
	var out, errs strings.Builder
	code, err := s.Trial.Exec(ctx, node, trial.Streams{Out: &out, Err: &errs}, nil, "ctr", "--namespace=k8s.io", "containers", "list", "-q",
		`labels."io.kubernetes.pod.namespace"==`+namespace+`,labels."io.cri-containerd.kind"==container`)
	if err != nil || code != 0 {
		s.T.Fatalf("listing containers on %s: %v %s", node, err, errs.String())
	}
	all := strings.Fields(out.String())
	for _, id := range s.Containers(node) {
		for _, ours := range all {
			if id == ours {
				ids = append(ids, id)
			}
		}
	}
	return ids
}
