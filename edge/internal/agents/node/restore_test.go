package node_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/skerry-io/skerry/edge/internal/agents/node"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
	"github.com/skerry-io/skerry/edge/internal/core/object"
)

// reporting is a Restorer's Backend.
type reporting struct {
	t     *testing.T
	nodes chan metamanager.Event
	pods  chan metamanager.Event

	mu      sync.Mutex
	held    bool
	dead    bool
	refused bool
	written []string
}

func (d *reporting) Watch(_ context.Context, s object.Selection, o metamanager.WatchOptions) (metamanager.Watch, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.held {
		return nil, errors.New("not held")
	}
	switch what := s.Resource.Resource + " " + s.Fields.String(); {
	case what == "nodes metadata.name=edge1" && o.Held:
		return events(d.nodes), nil
	case what == "pods spec.nodeName=edge1" && o.Held:
		return events(d.pods), nil
	default:
		d.t.Errorf("a watch of %s", what)
	}
	return nil, errors.New("what is that?")
}

type events chan metamanager.Event

func (e events) Events() <-chan metamanager.Event { return e }
func (events) Stop()                              {}

func (d *reporting) alive() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.dead
}

func (d *reporting) Write(_ context.Context, w metamanager.Write) (metamanager.Result, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refused {
		return metamanager.Result{}, errors.New("the disk is full")
	}
	var patch struct {
		Status struct{ Conditions []corev1.NodeCondition }
	}
	if err := json.Unmarshal(w.Body, &patch); err != nil {
		d.t.Error(err)
	}
	var said []string
	for _, c := range patch.Status.Conditions {
		at := ""
		if c.LastTransitionTime.Time.Equal(time.Unix(0, 0)) {
			at = ", as it was"
		} else if now := time.Now(); !c.LastHeartbeatTime.Time.Equal(now) || !c.LastTransitionTime.Time.Equal(now) {
			at = ", of another time"
		}
		said = append(said, fmt.Sprintf("%s=%s %s%s", c.Type, c.Status, c.Reason, at))
	}
	d.written = append(d.written, fmt.Sprintf("%s %s %s/%s %s: %s", w.Verb, w.UID, w.Ref, w.Subresource, w.PatchType, strings.Join(said, ", ")))
	return metamanager.Result{Code: 200}, nil
}

func (d *reporting) set(do func()) {
	d.mu.Lock()
	do()
	d.mu.Unlock()
}

// show has the Node come with these conditions: "Ready=True KubeletReady".
func (d *reporting) show(kind watch.EventType, conditions ...string) {
	d.t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "edge1", UID: "uid-1"}}
	for _, c := range conditions {
		what, reason, _ := strings.Cut(c, " ")
		name, status, _ := strings.Cut(what, "=")
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{
			Type: corev1.NodeConditionType(name), Status: corev1.ConditionStatus(status), Reason: reason, LastTransitionTime: metav1.NewTime(time.Unix(0, 0)),
		})
	}
	send(d.t, d.nodes, kind, "nodes", n)
}

// showPod has a pod come, likewise.
func (d *reporting) showPod(kind watch.EventType, name string, conditions ...string) {
	d.t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("uid-" + name)}}
	for _, c := range conditions {
		what, reason, _ := strings.Cut(c, " ")
		kind, status, _ := strings.Cut(what, "=")
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{
			Type: corev1.PodConditionType(kind), Status: corev1.ConditionStatus(status), Reason: reason, LastTransitionTime: metav1.NewTime(time.Unix(0, 0)),
		})
	}
	send(d.t, d.pods, kind, "pods", p)
}

func send(t *testing.T, to chan metamanager.Event, kind watch.EventType, resource string, obj runtime.Object) {
	t.Helper()
	o, err := object.FromObject(schema.GroupVersionResource{Version: "v1", Resource: resource}, obj)
	if err != nil {
		t.Fatal(err)
	}
	to <- metamanager.Event{Type: kind, Object: o}
	synctest.Wait()
}

func (d *reporting) take() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := d.written
	d.written = nil
	return w
}

// started runs a Restorer until the test ends, on a reporting whose kubelet starts late.
func started(t *testing.T) (d *reporting, expect func(what string, want ...string)) {
	d = &reporting{t: t, nodes: make(chan metamanager.Event), pods: make(chan metamanager.Event)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- node.NewRestorer(d, "edge1", d.alive).Restore(ctx) }()
	t.Cleanup(func() {
		cancel()
		close(d.nodes)
		close(d.pods)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	time.Sleep(time.Minute)
	d.set(func() { d.held = true })
	time.Sleep(time.Minute)
	return d, func(what string, want ...string) {
		t.Helper()
		if got := d.take(); !slices.Equal(got, want) {
			t.Errorf("%s: wrote %q, want %q", what, got, want)
		}
	}
}

// Conditions that kube-controller-manager has set to Unknown are restored to the kubelet's last
// values at once; no other write happens.
func TestNodeConditions(t *testing.T) {
	const (
		ready, pressure         = "Ready=True KubeletReady", "DiskPressure=False KubeletHasNoDiskPressure"
		readyLost, pressureLost = "Ready=Unknown NodeStatusUnknown", "DiskPressure=Unknown NodeStatusUnknown"
		patch                   = "patch uid-1 nodes edge1/status application/strategic-merge-patch+json: "
	)
	synctest.Test(t, func(t *testing.T) {
		d, expect := started(t)
		d.show(watch.Added, readyLost)
		expect("what the kubelet said is not known")
		d.show(watch.Modified, ready, pressure, "Other=Unknown Whatever")
		d.show(watch.Modified, ready, pressure)
		expect("all is well")
		d.show(watch.Modified, readyLost, pressureLost)
		expect("lost", patch+"Ready=True KubeletReady, DiskPressure=False KubeletHasNoDiskPressure")

		time.Sleep(5 * time.Second)
		d.show(watch.Modified, readyLost, pressureLost)
		expect("lost again so soon")
		time.Sleep(10 * time.Second)
		d.show(watch.Modified, "Ready=False KubeletNotReady", pressure)
		d.show(watch.Modified, readyLost, pressure, "Other=Unknown Whatever")
		expect("what the kubelet said changed", patch+"Ready=False KubeletNotReady")

		time.Sleep(time.Minute)
		d.set(func() { d.dead = true })
		d.show(watch.Modified, readyLost)
		expect("the kubelet does not live")
		d.set(func() { d.dead, d.refused = false, true })
		d.show(watch.Modified, readyLost)
		expect("refused")
		time.Sleep(time.Minute)
		d.set(func() { d.refused = false })
		d.show(watch.Modified, readyLost)
		expect("taken again", patch+"Ready=False KubeletNotReady")
		time.Sleep(time.Minute)
		d.show(watch.Deleted, ready)
		d.show(watch.Added, readyLost)
		expect("another Node")
	})
}

// A pod's Ready that kube-controller-manager has set to False is restored with its time; a
// kubelet's own value stays.
func TestPodReadiness(t *testing.T) {
	const (
		ready, containers = "Ready=True", "ContainersReady=True"
		lost              = "Ready=False"
		patch             = "patch uid-till pods shop/till/status application/strategic-merge-patch+json: Ready=True , as it was"
	)
	synctest.Test(t, func(t *testing.T) {
		d, expect := started(t)
		d.showPod(watch.Added, "till", lost, containers)
		expect("what the kubelet said is not known")
		d.showPod(watch.Added, "scale", "Ready=False ContainersNotReady", "ContainersReady=False ContainersNotReady")
		d.showPod(watch.Modified, "till", ready, containers)
		expect("all is well")
		d.showPod(watch.Modified, "till", lost, containers)
		expect("lost", patch)
		time.Sleep(time.Second)
		d.showPod(watch.Modified, "till", lost, containers)
		expect("lost again so soon")
		time.Sleep(10 * time.Second)
		d.showPod(watch.Modified, "till", ready, containers)

		for _, said := range [][]string{
			{"Ready=False ContainersNotReady", "ContainersReady=False ContainersNotReady"},
			{"Ready=False ReadinessGatesNotReady", containers},
			{"Ready=False", "ContainersReady=False"},
			{},
		} {
			d.showPod(watch.Modified, "till", ready, containers)
			d.showPod(watch.Modified, "till", said...)
			d.showPod(watch.Modified, "till", lost, containers)
			expect(fmt.Sprintf("said %q before", said))
		}
		d.showPod(watch.Modified, "till", ready, containers)
		d.showPod(watch.Deleted, "till", ready, containers)
		d.showPod(watch.Added, "till", lost, containers)
		expect("another pod of that name and uid")
		d.showPod(watch.Modified, "till", ready, containers)
		d.set(func() { d.dead = true })
		d.showPod(watch.Modified, "till", lost, containers)
		expect("the kubelet does not live")
		d.set(func() { d.dead = false })
		d.showPod(watch.Modified, "till", lost, containers)
		expect("it does", patch)
	})
}
