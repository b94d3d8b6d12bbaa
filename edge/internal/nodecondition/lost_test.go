package nodecondition_test

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
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/skerry-io/skerry/edge/internal/meta"
	"github.com/skerry-io/skerry/edge/internal/nodecondition"
	"github.com/skerry-io/skerry/edge/internal/object"
)

// device is what a LostModule sees of one.
type device struct {
	t      *testing.T
	events chan meta.Event

	mu      sync.Mutex
	held    bool
	dead    bool
	refused bool
	written []string
}

func (d *device) Watch(context.Context, object.Selection, meta.WatchOptions) (meta.Watch, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.held {
		return nil, errors.New("not held")
	}
	return d, nil
}
func (d *device) Events() <-chan meta.Event { return d.events }
func (d *device) Stop()                     {}

func (d *device) alive() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.dead
}

func (d *device) Write(_ context.Context, w meta.Write) (meta.Result, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refused {
		return meta.Result{}, errors.New("the disk is full")
	}
	var patch corev1.Node
	if err := json.Unmarshal(w.Body, &patch); err != nil {
		d.t.Error(err)
	}
	var said []string
	for _, c := range patch.Status.Conditions {
		fresh := ""
		if now := time.Now(); !c.LastHeartbeatTime.Time.Equal(now.Truncate(time.Second)) || !c.LastTransitionTime.Time.Equal(now.Truncate(time.Second)) {
			fresh = " as of another time"
		}
		said = append(said, fmt.Sprintf("%s=%s %s%s", c.Type, c.Status, c.Reason, fresh))
	}
	d.written = append(d.written, fmt.Sprintf("%s %s %s/%s %s: %s", w.Verb, w.UID, w.Ref, w.Subresource, w.PatchType, strings.Join(said, ", ")))
	return meta.Result{Code: 200}, nil
}

func (d *device) set(do func()) {
	d.mu.Lock()
	do()
	d.mu.Unlock()
}

// show has the Node come with these conditions: "Ready=True KubeletReady".
func (d *device) show(kind watch.EventType, conditions ...string) {
	d.t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "edge1", UID: types.UID("uid-1")}}
	for _, c := range conditions {
		what, reason, _ := strings.Cut(c, " ")
		name, status, _ := strings.Cut(what, "=")
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{
			Type: corev1.NodeConditionType(name), Status: corev1.ConditionStatus(status), Reason: reason, LastTransitionTime: metav1.NewTime(time.Unix(0, 0)),
		})
	}
	o, err := object.FromObject(schema.GroupVersionResource{Version: "v1", Resource: "nodes"}, n)
	if err != nil {
		d.t.Fatal(err)
	}
	d.events <- meta.Event{Type: kind, Object: o}
	synctest.Wait()
}

func (d *device) take() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := d.written
	d.written = nil
	return w
}

// What kube-controller-manager has set to Unknown becomes again what the kubelet said last, at
// once; nothing else is written.
func TestLostConditions(t *testing.T) {
	const (
		ready, pressure         = "Ready=True KubeletReady", "DiskPressure=False KubeletHasNoDiskPressure"
		readyLost, pressureLost = "Ready=Unknown NodeStatusUnknown", "DiskPressure=Unknown NodeStatusUnknown"
		patch                   = "patch uid-1 nodes edge1/status application/strategic-merge-patch+json: "
	)
	synctest.Test(t, func(t *testing.T) {
		d := &device{t: t, events: make(chan meta.Event)}
		m := nodecondition.NewLostModule(d, "edge1", d.alive)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- m.Restore(ctx) }()
		expect := func(what string, want ...string) {
			t.Helper()
			if got := d.take(); !slices.Equal(got, want) {
				t.Errorf("%s: wrote %q, want %q", what, got, want)
			}
		}
		time.Sleep(time.Minute) // the kubelet starts late
		d.set(func() { d.held = true })
		time.Sleep(time.Minute)
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
		d.show(watch.Deleted, readyLost)
		expect("the Node is gone")
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
		cancel()
		close(d.events)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
