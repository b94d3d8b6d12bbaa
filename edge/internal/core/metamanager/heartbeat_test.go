package metamanager_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
	"github.com/skerry-io/skerry/edge/internal/core/object"
)

// An idle kubelet writes an unchanged node status every five minutes. It reaches the cloud without
// a write to flash.
func TestHeartbeatsOfTheNodeAreNotWritten(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCloud(t)
		e := newEdge(t, c, metamanager.Config{})
		node := ref("nodes", "", "edge1")
		c.set(node, &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}})
		c.link()
		options := metamanager.ListOptions{FromReflector: true, Caller: metamanager.Caller{Kubelet: true}}
		if _, _, err := e.List(t.Context(), selection("nodes", "metadata.name=edge1"), options); err != nil {
			t.Fatal(err)
		}
		beat := func(ready string) {
			t.Helper()
			time.Sleep(5 * time.Minute)
			body := fmt.Appendf(nil, `{"status":{"conditions":[{"type":"Ready","status":%q,"lastHeartbeatTime":%q}]}}`,
				ready, time.Now().UTC().Format(time.RFC3339))
			if _, err := e.Write(t.Context(), metamanager.Write{
				Verb: "patch", Ref: node, Subresource: "status", PatchType: types.StrategicMergePatchType, Body: body, Caller: metamanager.Caller{Kubelet: true},
			}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		condition := func(obj any) corev1.NodeCondition { return obj.(*corev1.Node).Status.Conditions[0] }
		beat("True")
		before := e.store.Stats().Commits
		for range 12 {
			beat("True")
		}
		if n := e.store.Stats().Commits - before; n != 0 {
			t.Errorf("%d commits in an hour of nothing", n)
		}
		if age := time.Since(condition(c.state(node)).LastHeartbeatTime.Time); age > time.Minute {
			t.Errorf("the cloud heard %v ago", age)
		}
		c.cut()
		synctest.Wait()
		beat("True")
		beat("False") // merged with the unwritten entry, and written with it
		beat("False")
		e.restart()
		o, err := e.Get(t.Context(), node, metamanager.Caller{Kubelet: true})
		if err != nil {
			t.Fatal(err)
		}
		obj, err := object.Decode(o)
		if err != nil {
			t.Fatal(err)
		}
		if got := condition(obj).Status; got != "False" {
			t.Errorf("after a restart: Ready is %s", got)
		}
		c.link()
		synctest.Wait()
		if got := condition(c.state(node)).Status; got != "False" {
			t.Errorf("in the cloud: Ready is %s", got)
		}
		if st := e.Status().Outbox; len(st.Waiting) != 0 {
			t.Errorf("outbox: %+v", st)
		}
	})
}

// Heartbeats between a node's changes during a long time without a link leave one entry: otherwise
// the outbox's bound is reached some day, and the kubelet's heartbeats are refused from then on.
// Entries in flight are not changed, and no change overtakes one of another kind.
func TestHeartbeatsBetweenChangesLeaveOneEntry(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCloud(t)
		e := newEdge(t, c, metamanager.Config{})
		node := ref("nodes", "", "edge1")
		c.set(node, &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}})
		c.link()
		if _, _, err := e.List(t.Context(), selection("nodes", "metadata.name=edge1"), metamanager.ListOptions{FromReflector: true, Caller: metamanager.Caller{Kubelet: true}}); err != nil {
			t.Fatal(err)
		}
		write := func(subresource, body string) {
			t.Helper()
			time.Sleep(time.Minute)
			if _, err := e.Write(t.Context(), metamanager.Write{
				Verb: "patch", Ref: node, Subresource: subresource, PatchType: types.StrategicMergePatchType, Body: []byte(body), Caller: metamanager.Caller{Kubelet: true},
			}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		status := func(reason string) {
			t.Helper()
			write("status", fmt.Sprintf(`{"status":{"conditions":[{"type":"Ready","status":"True","reason":%q,"lastHeartbeatTime":%q}]}}`,
				reason, time.Now().UTC().Format(time.RFC3339)))
		}
		last := ""
		change := func(n int) { // a heartbeat, and then a change
			t.Helper()
			status(last)
			last = fmt.Sprint("change ", n)
			status(last)
		}
		waiting := func(when string, want int) {
			t.Helper()
			if n := e.Status().Outbox.Waiting["NODE_STATUS"]; n != want {
				t.Errorf("%s: %d entries wait, want %d", when, n, want)
			}
		}
		is := func(when string, obj any, labels ...string) {
			t.Helper()
			n, ok := obj.(*corev1.Node)
			if !ok || len(n.Status.Conditions) != 1 || n.Status.Conditions[0].Reason != last {
				t.Errorf("%s: %+v, want one condition with the reason %q", when, obj, last)
				return
			}
			if got := fmt.Sprint(slices.Sorted(maps.Keys(n.Labels))); got != fmt.Sprint(labels) {
				t.Errorf("%s: labels %s, want %s", when, got, labels)
			}
		}
		shown := func() any {
			t.Helper()
			o, err := e.Get(t.Context(), node, metamanager.Caller{Kubelet: true})
			if err != nil {
				t.Fatal(err)
			}
			obj, err := object.Decode(o)
			if err != nil {
				t.Fatal(err)
			}
			return obj
		}
		status(last)
		c.cut()
		synctest.Wait()
		for n := range 40 {
			change(n)
		}
		waiting("without a link", 1)
		status(last)
		waiting("after one more heartbeat", 2)
		e.restart()
		is("after a restart", shown())
		waiting("after a restart", 1)

		c.mu.Lock()
		c.stuck = true
		c.mu.Unlock()
		c.link()
		synctest.Wait()
		for n := range 10 {
			change(100 + n)
		}
		waiting("with one under way", 2)
		c.cut()
		synctest.Wait()
		for n := range 10 {
			change(200 + n)
		}
		waiting("after a cut", 2)
		write("", `{"metadata":{"labels":{"shelf":"4"}}}`)
		for n := range 10 {
			change(300 + n)
		}
		waiting("after a change of another kind", 4)
		is("in the end", shown(), "shelf")
		c.mu.Lock()
		c.stuck, c.writes = false, nil
		c.mu.Unlock()
		c.link()
		synctest.Wait()
		is("in the cloud", c.state(node), "shelf")
		waiting("with a link", 0)
		var order []string
		c.mu.Lock()
		for _, w := range c.writes {
			order = append(order, w.Subresource)
		}
		c.mu.Unlock()
		if diff := cmp.Diff([]string{"status", "status", "", "status"}, order); diff != "" {
			t.Errorf("what went up (-want +got):\n%s", diff)
		}
	})
}
