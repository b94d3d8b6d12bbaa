package metamanager_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/podgate"
)

// seen drains a watch.
func seen(w metamanager.Watch) (events []string) {
	for {
		select {
		case e := <-w.Events():
			if e.Type == watch.Bookmark {
				continue
			}
			events = append(events, fmt.Sprintf("%s %s", e.Type, e.Object.Name))
		default:
			return events
		}
	}
}

// A withheld pod is absent from the kubelet's lists and watches from the first answer after a boot,
// and visible to all other clients. A pod that is being deleted is never withheld.
func TestAWithheldPodIsMissingForTheKubeletAlone(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		var open atomic.Bool
		rule := func(p *corev1.Pod) string {
			if p.Labels["held"] == "" || open.Load() {
				return ""
			}
			return "waits for " + p.Labels["held"]
		}
		c := newCloud(t)
		e := newEdge(t, c, metamanager.Config{Gate: podgate.Gate{func(*corev1.Pod) string { return "" }, rule}})
		held := pod(func(p *corev1.Pod) { p.Labels = map[string]string{"held": "thing"} })
		c.set(ref("pods", "default", "free"), pod())
		c.set(ref("pods", "default", "held"), held)
		c.link()
		e.holdPods()
		c.cut()
		e.restart() // the first list of a kubelet that boots

		kubelet := metamanager.Caller{Kubelet: true}
		list := func(caller metamanager.Caller) (names []string, version uint64) {
			t.Helper()
			items, version, err := e.List(context.Background(), ownPods(), metamanager.ListOptions{FromReflector: true, Caller: caller})
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range items {
				names = append(names, o.Name)
			}
			return names, version
		}
		watched := func(from uint64, caller metamanager.Caller) metamanager.Watch {
			t.Helper()
			w, err := e.Watch(context.Background(), ownPods(), metamanager.WatchOptions{From: from, Caller: caller})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(w.Stop)
			settle()
			return w
		}
		names, version := list(kubelet)
		if diff := cmp.Diff([]string{"free"}, names); diff != "" {
			t.Errorf("the kubelet lists (-want +got):\n%s", diff)
		}
		names, _ = list(metamanager.Caller{})
		if diff := cmp.Diff([]string{"free", "held"}, names); diff != "" {
			t.Errorf("root lists (-want +got):\n%s", diff)
		}
		w, all, other := watched(version, kubelet), watched(0, kubelet), watched(0, metamanager.Caller{})
		if diff := cmp.Diff([]string{"ADDED free"}, seen(all)); diff != "" {
			t.Errorf("the kubelet's watch begins with (-want +got):\n%s", diff)
		}
		seen(other)
		status := e.Status().Withheld
		if len(status) != 1 || status[0].Name != "held" || status[0].Reason != "waits for thing" || status[0].UID == "" {
			t.Errorf("withheld: %+v", status)
		}

		again := func(now bool, want, wantOther []string) {
			t.Helper()
			open.Store(now)
			if err := e.Recorrect(context.Background(), ref("pods", "default", "free"), ref("pods", "default", "held")); err != nil {
				t.Fatal(err)
			}
			settle()
			if diff := cmp.Diff(want, seen(w)); diff != "" {
				t.Errorf("the kubelet sees (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(wantOther, seen(other)); diff != "" {
				t.Errorf("root sees (-want +got):\n%s", diff)
			}
		}
		again(false, nil, nil)
		again(true, []string{"ADDED held"}, []string{"MODIFIED held"})
		again(true, nil, nil)
		if err := e.patchStatus("held", "runs"); err != nil { // by a kubelet that was shown it
			t.Fatal(err)
		}
		settle()
		if diff := cmp.Diff([]string{"MODIFIED held"}, seen(w)); diff != "" {
			t.Errorf("the kubelet sees of its own status (-want +got):\n%s", diff)
		}
		seen(other)
		again(false, []string{"DELETED held"}, []string{"MODIFIED held"})

		// A watch resumed from an earlier version gets all events.
		if diff := cmp.Diff([]string{"ADDED held", "MODIFIED held", "DELETED held"}, seen(watched(version, kubelet))); diff != "" {
			t.Errorf("a watch from before sees (-want +got):\n%s", diff)
		}

		// The cloud deletes it: the kubelet has to end it.
		c.link()
		now := metav1.Now()
		held.DeletionTimestamp = &now
		c.set(ref("pods", "default", "held"), held)
		settle()
		// The cloud's answer to the status may come apart from its deletion.
		if diff := cmp.Diff([]string{"ADDED held", "MODIFIED held"}, slices.Compact(append(seen(w), "MODIFIED held"))); diff != "" {
			t.Errorf("of a pod that is being deleted the kubelet sees (-want +got):\n%s", diff)
		}
		if left := e.Status().Withheld; len(left) != 0 {
			t.Errorf("still withheld: %v", left)
		}
	})
}

// The set of this device's pods is confirmed once in each session, also if the cloud has no changes
// to send, and never by the store alone.
func TestClaims_34_PodsAreConfirmedByASession(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		var confirmed atomic.Int32
		c := newCloud(t)
		e := newEdge(t, c, metamanager.Config{PodsConfirmed: func() { confirmed.Add(1) }})
		c.set(ref("pods", "default", "one"), pod())
		expect := func(what string, want int32) {
			t.Helper()
			settle()
			if got := confirmed.Load(); got != want {
				t.Errorf("%s: confirmed %d times, want %d", what, got, want)
			}
		}
		c.link()
		e.holdPods()
		expect("a link", 1)
		c.cut()
		e.restart()
		e.holdPods()
		expect("started again without a link", 1)
		c.link()
		expect("a link, nothing changed", 2)
	})
}
