package metamanager_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
)

func running(p *corev1.Pod) {
	p.Spec.RestartPolicy, p.Status.Phase = corev1.RestartPolicyAlways, corev1.PodRunning
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
}

// evicted is the status that a kubelet writes of a pod that it has evicted.
const evicted = `{"phase":"Failed","reason":"Evicted","message":"The node was low on resource: ephemeral-storage.","conditions":[
	{"type":"DisruptionTarget","status":"True","reason":"TerminationByKubelet","message":"low"},{"type":"Ready","status":"False"}]}`

// succeeded is the same of a pod whose containers exit with 0.
const succeeded = `{"phase":"Succeeded","conditions":[
	{"type":"DisruptionTarget","status":"True","reason":"TerminationByKubelet","message":"low"},{"type":"Ready","status":"False"}]}`

// A kubelet acts as one towards metamanager: a watch of its pods, and writes.
type kubelet struct {
	*edge
	watch metamanager.Watch
}

// newIsland returns an edge that holds its Node and running pods, and its kubelet.
func newIsland(t *testing.T, c *cloud, config metamanager.Config, pods ...string) *kubelet {
	t.Helper()
	k := &kubelet{edge: newEdge(t, c, config)}
	for _, name := range pods {
		c.set(ref("pods", "default", name), pod(running))
	}
	c.set(ref("nodes", "", "edge1"), &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}})
	c.link()
	k.holdPods()
	if _, _, err := k.List(context.Background(), selection("nodes", "metadata.name=edge1"), metamanager.ListOptions{FromReflector: true}); err != nil {
		t.Fatal(err)
	}
	k.watchPods()
	return k
}

// watchPods begins to watch, as after a start of the kubelet.
func (k *kubelet) watchPods() {
	k.t.Helper()
	w, err := k.Watch(context.Background(), ownPods(), metamanager.WatchOptions{Caller: metamanager.Caller{Kubelet: true}})
	if err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(w.Stop)
	k.watch = w
}

// status writes a part of a pod's status.
func (k *kubelet) status(name, status string) {
	k.t.Helper()
	body := fmt.Sprintf(`{"metadata":{"uid":%q},"status":%s}`, k.pod(name).UID, status)
	if _, err := k.Write(context.Background(), metamanager.Write{
		Verb: "patch", Ref: ref("pods", "default", name), Subresource: "status", PatchType: types.StrategicMergePatchType, Body: []byte(body),
		Caller: metamanager.Caller{Kubelet: true},
	}); err != nil {
		k.t.Fatal(err)
	}
}

// pressure writes whether the node is short of disk.
func (k *kubelet) pressure(status corev1.ConditionStatus) {
	k.t.Helper()
	if _, err := k.Write(context.Background(), metamanager.Write{
		Verb: "patch", Ref: ref("nodes", "", "edge1"), Subresource: "status", PatchType: types.StrategicMergePatchType,
		Body: fmt.Appendf(nil, `{"status":{"conditions":[{"type":"DiskPressure","status":%q}]}}`, status), Caller: metamanager.Caller{Kubelet: true},
	}); err != nil {
		k.t.Fatal(err)
	}
}

// sees compares the events of the kubelet's watch.
func (k *kubelet) sees(when string, want ...string) {
	k.t.Helper()
	settle()
	if diff := cmp.Diff(want, seen(k.watch)); diff != "" {
		k.t.Errorf("%s the kubelet sees (-want +got):\n%s", when, diff)
	}
}

// ended lists the writes to the cloud that end a pod.
func (c *cloud) ended() (bodies []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range c.writes {
		if w.Resource.Resource == "pods" && (strings.Contains(string(w.Body), "Failed") || strings.Contains(string(w.Body), "Succeeded")) {
			bodies = append(bodies, w.Name+" "+string(w.Body))
		}
	}
	return bodies
}

// Pods that the kubelet evicts and rejects without a link are hidden from it until the reason has
// passed and run again with their UIDs, also if edgecore restarts in between; the cloud never gets
// their end.
func TestPodsEndedOnAnIslandRunAgain(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCloud(t)
		k := newIsland(t, c, metamanager.Config{ReportEvents: true}, "a", "b", "other")
		k.sees("at first", "ADDED a", "ADDED b", "ADDED other")
		c.cut()
		settle()
		uids := []types.UID{k.pod("a").UID, k.pod("b").UID}
		k.status("a", `{"message":"waits for the cloud"}`)
		k.pressure(corev1.ConditionTrue)
		k.status("a", evicted)
		k.status("b", succeeded)
		k.status("a", `{"message":"the volumes are gone"}`) // later reports of it stay with its end
		k.sees("of what it has ended", "MODIFIED a", "DELETED a", "DELETED b")
		if got := k.pod("a").Status; got.Phase != corev1.PodFailed || got.Message != "the volumes are gone" {
			t.Errorf("others see %s, %q", got.Phase, got.Message)
		}
		time.Sleep(time.Hour)
		k.sees("under pressure")
		want := []string{"a Evicted: The node was low on resource: ephemeral-storage. 1 [DiskPressure]", "b TerminationByKubelet: low 1 [DiskPressure]"}
		var got []string
		for _, w := range k.Status().Restarts {
			got = append(got, fmt.Sprint(w.Name, " ", w.Reason, " ", w.Ends, " ", w.For))
		}
		if len(got) > 0 {
			got[0] = strings.Replace(got[0], "the volumes are gone", "The node was low on resource: ephemeral-storage.", 1)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("status (-want +got):\n%s", diff)
		}

		k.restart()
		k.watchPods()
		k.sees("after a restart", "ADDED other")
		time.Sleep(time.Hour)
		k.sees("after a restart under pressure")
		if w := k.Status().Outbox.Waiting["POD_STATUS"]; w != 1 {
			t.Errorf("%d statuses wait for the cloud, want a's earlier one", w)
		}
		k.pressure(corev1.ConditionFalse)
		time.Sleep(3 * time.Second)
		k.sees("when the pressure is over", "ADDED a", "MODIFIED a", "ADDED b", "MODIFIED b")
		for i, name := range []string{"a", "b"} {
			p := k.pod(name)
			if p.UID != uids[i] || p.Status.Phase != corev1.PodRunning || p.Status.Reason != "" {
				t.Errorf("%s is shown again with uid %s, %s, reason %q", name, p.UID, p.Status.Phase, p.Status.Reason)
			}
			for _, cond := range p.Status.Conditions {
				if cond.Status != corev1.ConditionFalse {
					t.Errorf("%s is shown again with %s %s", name, cond.Type, cond.Status)
				}
			}
		}
		k.status("a", `{"message":"runs"}`)
		c.link()
		settle()
		if ended := c.ended(); len(ended) > 0 {
			t.Errorf("the cloud was told %q", ended)
		}
		if p := c.state(ref("pods", "default", "a")).(*corev1.Pod); p.Status.Message != "runs" || p.Status.Phase != corev1.PodRunning {
			t.Errorf("the cloud has %s, %q", p.Status.Phase, p.Status.Message)
		}
		events := c.effects[ref("events", "default", "a.restarted."+string(uids[0])).String()]
		if diff := cmp.Diff([]string{"1"}, events); diff != "" {
			t.Errorf("events of a's restart (-want +got):\n%s", diff)
		}
	})
}

// One that is evicted again and again waits longer each time.
func TestAPodEndedAgainAndAgainBacksOff(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCloud(t)
		k := newIsland(t, c, metamanager.Config{}, "a")
		c.cut()
		settle()
		var hidden []time.Duration
		for range 7 {
			k.status("a", evicted)
			start := time.Now()
			for len(k.Status().Withheld) > 0 {
				time.Sleep(time.Second)
				settle()
			}
			hidden = append(hidden, time.Since(start).Round(10*time.Second))
			time.Sleep(time.Minute)
		}
		if diff := cmp.Diff([]time.Duration{10e9, 20e9, 40e9, 80e9, 160e9, 300e9, 300e9}, hidden); diff != "" {
			t.Errorf("hidden for (-want +got):\n%s", diff)
		}
	})
}

// With a link Kubernetes' rules hold: an end that was written with a link is final, and so is one
// whose pod still waits when the link is back, from the moment on at which it may be sent.
func TestAnEndThatTheCloudMayKnowIsFinal(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		for name, back := range map[string]bool{"ended with a link": false, "link comes back": true} {
			c := newCloud(t)
			k := newIsland(t, c, metamanager.Config{}, "a", "b")
			k.sees(name, "ADDED a", "ADDED b")
			c.mu.Lock()
			c.stuck = true // it takes writes without answering: they may have taken effect
			c.mu.Unlock()
			if back {
				c.cut()
				settle()
			}
			k.status("a", evicted)
			if back {
				k.sees(name, "DELETED a")
				c.link()
				settle()
				k.sees(name, "ADDED a")
			} else {
				k.sees(name, "MODIFIED a")
			}
			if ended := c.ended(); len(ended) != 1 {
				t.Errorf("%s: the cloud was told %q", name, ended)
			}
			c.cut()
			time.Sleep(time.Hour)
			k.sees(name)
			k.restart()
			time.Sleep(time.Hour)
			if got := k.pod("a").Status.Phase; got != corev1.PodFailed || len(k.Status().Withheld) > 0 {
				t.Errorf("%s: %s, withheld %v", name, got, k.Status().Withheld)
			}
			c.mu.Lock()
			c.stuck = false
			c.mu.Unlock()
			c.link()
			settle()
			if p := c.state(ref("pods", "default", "a")).(*corev1.Pod); p.Status.Phase != corev1.PodFailed {
				t.Errorf("%s: the cloud has %s", name, p.Status.Phase)
			}
			if w := k.Status().Outbox.Waiting; len(w) > 0 {
				t.Errorf("%s: %v wait for the cloud", name, w)
			}
			k.stop()
		}
	})
}

// While a pod waits the cloud deletes it, or replaces it: the record of its end is removed.
func TestThePodThatWaitsIsDeletedInTheCloud(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCloud(t)
		k := newIsland(t, c, metamanager.Config{}, "gone", "replaced", "ending")
		k.sees("at first", "ADDED ending", "ADDED gone", "ADDED replaced")
		c.cut()
		settle()
		k.status("ending", evicted)
		k.status("gone", evicted)
		k.status("replaced", evicted)
		k.sees("of their ends", "DELETED ending", "DELETED gone", "DELETED replaced")
		c.delete(ref("pods", "default", "gone"))
		c.delete(ref("pods", "default", "replaced"))
		c.set(ref("pods", "default", "replaced"), pod(running))
		ending := c.state(ref("pods", "default", "ending")).(*corev1.Pod).DeepCopy()
		now := metav1.Now()
		ending.DeletionTimestamp = &now
		c.set(ref("pods", "default", "ending"), ending)
		c.link()
		time.Sleep(time.Minute)
		settle()
		items, _, err := k.List(context.Background(), ownPods(), metamanager.ListOptions{Caller: metamanager.Caller{Kubelet: true}})
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, o := range items {
			names = append(names, o.Name)
		}
		if diff := cmp.Diff([]string{"ending", "replaced"}, names); diff != "" {
			t.Errorf("the kubelet lists (-want +got):\n%s", diff)
		}
		if got := k.pod("replaced").Status.Phase; got != corev1.PodRunning {
			t.Errorf("the pod that took its place is %s", got)
		}
		if st := k.Status(); len(st.Withheld) > 0 || len(st.Outbox.Waiting) > 0 {
			t.Errorf("withheld %v, waiting %v", st.Withheld, st.Outbox.Waiting)
		}
	})
}
