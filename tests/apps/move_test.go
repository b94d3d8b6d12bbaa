package apps_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// recorder notes the reporter of the statistics in every version of an application that
// kube-apiserver had.
type recorder struct {
	mu     sync.Mutex
	lines  []string // "edge1", "edge1+edge2", ""
	failed error
}

// record follows an application from its first version to the test's end. A watch that ends is a
// failure: versions might be missing.
func (s *system) record(namespace, name string) *recorder {
	s.T.Helper()
	r := &recorder{}
	ctx, stop := context.WithCancel(context.Background())
	w, err := s.apps(namespace).Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name, ResourceVersion: "0"})
	s.Check(err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e := range w.ResultChan() {
			r.note(e)
		}
		if ctx.Err() == nil {
			r.mu.Lock()
			r.failed = errors.New("the watch ended before the test")
			r.mu.Unlock()
		}
	}()
	s.T.Cleanup(func() { stop(); <-done })
	return r
}

func (r *recorder) note(e watch.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	u, ok := e.Object.(*unstructured.Unstructured)
	if !ok {
		r.failed = fmt.Errorf("the watch said %v", e)
		return
	}
	app := &v1alpha1.EdgeApp{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, app); err != nil {
		r.failed = err
		return
	}
	var all []string
	for _, n := range app.Status.Nodes {
		if n.ReportsStats {
			all = append(all, n.Name)
		}
	}
	r.lines = append(r.lines, strings.Join(all, "+"))
}

// path lists the reporters, one after the other, from the first on; every version must have exactly
// one.
func (r *recorder) path() ([]string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed != nil {
		return nil, r.failed
	}
	first := slices.IndexFunc(r.lines, func(l string) bool { return l != "" })
	if first < 0 {
		return nil, errors.New("no node ever reported")
	}
	path := slices.Compact(slices.Clone(r.lines[first:]))
	for _, l := range path {
		if l == "" || strings.Contains(l, "+") {
			return path, fmt.Errorf("%q reported", l)
		}
	}
	return path, nil
}

// TestCluster_07: an application moves from its node to another one, because its node is cut off,
// and back. In every version of its status, from the first reporter on, exactly one node reports
// its statistics; the old copy ends once its node is linked again.
func TestCluster_07_OneNodeReportsWhileTheAppMoves(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	r := s.record(ns, "moves")
	s.create(ns, appYAML("moves", "edge1", "  failback: {enable: true, after: 3s}"))
	first := s.waitOn(ns, "moves", "edge1")
	s.reporter(ns, "moves", "edge1")
	s.Cut("edge1")
	s.WaitReady("edge1", false)
	app := s.waitApp(ns, "moves", "to run elsewhere", func(a *v1alpha1.EdgeApp) bool {
		return a.Status.Phase == v1alpha1.PhaseRunning && a.Status.ActiveNode != "edge1"
	})
	away := app.Status.ActiveNode
	s.reporter(ns, "moves", away)
	if got := s.copies(first); !slices.Equal(got, []string{"edge1"}) {
		t.Errorf("what ran on the island does not any more: %v", got)
	}
	s.Heal("edge1")
	s.WaitFor("the old copy to end", func(ctx context.Context) error {
		if _, err := s.Client.CoreV1().Pods(ns).Get(ctx, first.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return errNot
		}
		if got := s.copies(first); len(got) > 0 {
			return fmt.Errorf("it runs on %v", got)
		}
		return nil
	})
	s.waitOn(ns, "moves", "edge1")
	s.reporter(ns, "moves", "edge1")
	s.waitOne(ns, "moves")
	path, err := r.path()
	if want := []string{"edge1", away, "edge1"}; err != nil || !slices.Equal(path, want) {
		t.Errorf("%v: statistics were reported by %v, want %v", err, path, want)
	}
	app, err = s.read(t.Context(), ns, "moves")
	s.Check(err)
	if app.Status.Failovers != 1 {
		t.Errorf("%d fail-overs", app.Status.Failovers)
	}
	for _, n := range app.Status.Nodes {
		if n.IsDesignated != (n.Name == "edge1") || n.CollectTime.IsZero() {
			t.Errorf("%+v", n)
		}
	}
}

// reporter waits until a node reports that an application runs there, and reports its statistics.
func (s *system) reporter(namespace, name, node string) {
	s.T.Helper()
	s.waitApp(namespace, name, "to be reported by "+node, func(a *v1alpha1.EdgeApp) bool {
		i := slices.IndexFunc(a.Status.Nodes, func(n v1alpha1.EdgeAppNode) bool { return n.Name == node })
		return i >= 0 && a.Status.Nodes[i].Running && a.Status.Nodes[i].ScheduledOnThisNode && a.Status.Nodes[i].ReportsStats
	})
}

// TestCluster_14: an application returns to its node by itself where that was asked for, once a
// PodDisruptionBudget lets it, and once for each boot of the node; one that did not ask stays.
func TestCluster_14_FailbackOnceABoot(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	s.create(ns, appYAML("returns", "edge1", "  failback: {enable: true, after: 3s}"))
	s.create(ns, appYAML("settles", "edge1"))
	s.waitOn(ns, "returns", "edge1")
	s.waitOn(ns, "settles", "edge1")
	s.Check(s.Trial.PowerOff(t.Context(), "edge1"))
	s.WaitReady("edge1", false)
	elsewhere := func(a *v1alpha1.EdgeApp) bool {
		return a.Status.Phase == v1alpha1.PhaseRunning && a.Status.ActiveNode != "edge1"
	}
	s.waitApp(ns, "returns", "to run elsewhere", elsewhere)
	settled := s.waitApp(ns, "settles", "to run elsewhere", elsewhere)
	one := intstr.FromInt32(1)
	_, err := s.Client.PolicyV1().PodDisruptionBudgets(ns).Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "returns"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: &one, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{v1alpha1.EdgeAppLabel: "returns"}}},
	}, metav1.CreateOptions{})
	s.Check(err)
	s.Mend(t.Context())
	blocked := s.waitApp(ns, "returns", "to be held by its budget", func(a *v1alpha1.EdgeApp) bool { return is(a, v1alpha1.AppFailbackBlocked) != nil })
	away := blocked.Status.ActiveNode
	s.lasts("it stays while the budget says so", 3*time.Second, func() error {
		a, err := s.read(t.Context(), ns, "returns")
		if err == nil && a.Status.ActiveNode != away {
			err = fmt.Errorf("it is on %s", a.Status.ActiveNode)
		}
		return err
	})
	s.Check(s.Client.PolicyV1().PodDisruptionBudgets(ns).Delete(t.Context(), "returns", metav1.DeleteOptions{}))
	back := s.waitOn(ns, "returns", "edge1")
	if a, err := s.read(t.Context(), ns, "returns"); err != nil || a.Status.Failovers != 1 || is(a, v1alpha1.AppFailbackBlocked) != nil {
		t.Errorf("%v, %+v", err, a.Status)
	}
	// Once a boot: moved away again, it stays away.
	s.Kubectl("cordon", "edge1")
	t.Cleanup(func() {
		if out, err := s.Run(context.Background(), "kubectl", "uncordon", "edge1"); err != nil {
			t.Error(out, err)
		}
	})
	s.Check(s.Client.CoreV1().Pods(ns).Delete(t.Context(), back.Name, metav1.DeleteOptions{}))
	s.waitApp(ns, "returns", "to run elsewhere", elsewhere)
	s.Kubectl("uncordon", "edge1")
	s.lasts("it stays away, and the other one too", 8*time.Second, func() error {
		a, err := s.read(t.Context(), ns, "returns")
		if err == nil && a.Status.ActiveNode == "edge1" {
			err = errors.New("it returned a second time")
		}
		b, err2 := s.read(t.Context(), ns, "settles")
		if err2 == nil && b.Status.ActiveNode != settled.Status.ActiveNode {
			err2 = fmt.Errorf("settles is on %s", b.Status.ActiveNode)
		}
		return errors.Join(err, err2)
	})
}
