package meta_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/meta"
	"github.com/skerry-io/skerry/edge/internal/object"
)

// Whatever happens, in whatever order: in the end the cloud has what was written last of each
// object, has never seen an older write take effect after a newer one, and both ends hold the same.
func TestEverythingArrivesInOrder(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inBubble(t, func(t *testing.T) { runDisorder(t, rand.New(rand.NewPCG(seed, 1))) })
		})
	}
}

func runDisorder(t *testing.T, r *rand.Rand) {
	c := newCloud(t)
	e := newEdge(t, c, meta.Config{ReportEvents: true, Limits: meta.Limits{Window: 1 + r.IntN(8), EventWindow: 1 + r.IntN(4)}})
	const pods = 4
	podRef := func(i int) object.Ref { return ref("pods", "default", fmt.Sprint(i)) }
	for i := range pods {
		c.set(podRef(i), pod())
	}
	c.link()
	e.holdPods()

	last := map[types.UID]int{}     // what was written last to each pod
	events := map[string]int{}      // the count of each event
	reports := map[object.Ref]int{} // what was reported last
	n := 0
	for range 300 {
		n++
		i := r.IntN(pods)
		switch r.IntN(20) {
		case 0, 1, 2, 3, 4:
			err := e.patchStatus(fmt.Sprint(i), strconv.Itoa(n))
			if err != nil {
				t.Fatal(err)
			}
			last[e.pod(fmt.Sprint(i)).UID] = n
		case 5, 6, 7:
			name := fmt.Sprintf("event-%d", n)
			if err := e.event(name, 1); err != nil {
				t.Fatal(err)
			}
			events[name] = 1
		case 8, 9:
			for name := range events {
				events[name]++
				if err := e.repeatEvent(name, events[name]); err != nil {
					t.Fatal(err)
				}
				break
			}
		case 10, 11:
			if err := e.Report(context.Background(), podRef(i), "", []byte(strconv.Itoa(n))); err != nil {
				t.Fatal(err)
			}
			reports[podRef(i)] = n
		case 12:
			c.cut()
		case 13, 14:
			c.cut()
			c.link()
		case 15:
			c.mu.Lock()
			c.hold = true
			c.mu.Unlock()
		case 16:
			c.release()
		case 17:
			now, ok := c.state(podRef(i)).(*corev1.Pod)
			if !ok {
				continue
			}
			next := now.DeepCopy()
			next.Spec.Containers[0].Image = fmt.Sprint(n)
			c.set(podRef(i), next)
		case 18:
			e.restart()
		default:
			time.Sleep(time.Duration(r.IntN(100)) * time.Millisecond)
		}
		if r.IntN(3) == 0 {
			synctest.Wait()
		}
	}
	c.cut()
	c.release()
	c.link()
	synctest.Wait()

	if st := e.Status().Outbox; len(st.Waiting) != 0 || st.InFlight != 0 {
		t.Errorf("outbox: %+v", st)
	}
	for i := range pods {
		have := c.state(podRef(i)).(*corev1.Pod)
		if want, ok := last[have.UID]; ok && have.Status.Message != strconv.Itoa(want) {
			t.Errorf("pod %d: the cloud has %q, %d was written last", i, have.Status.Message, want)
		}
		shown := e.pod(fmt.Sprint(i))
		shown.ResourceVersion = have.ResourceVersion
		if diff := cmp.Diff(have, shown); diff != "" {
			t.Errorf("pod %d: cloud and edge differ: %s", i, diff)
		}
	}
	for name, count := range events {
		have, ok := c.state(ref("events", "default", name)).(*corev1.Event)
		if !ok || int(have.Count) != count {
			t.Errorf("event %s: the cloud has %v, want count %d", name, have, count)
		}
	}
	for about, said := range c.effects {
		before := 0
		for _, s := range said {
			now, _ := strconv.Atoi(s)
			if now < before {
				t.Errorf("%s: out of order: %v", about, said)
			}
			before = now
		}
	}
	for about, want := range reports {
		said := c.effects["report "+about.String()]
		if len(said) == 0 || !contains(said, strconv.Itoa(want)) {
			t.Errorf("%s: report %d did not arrive: %v", about, want, said)
		}
	}
}

func contains(list []string, s string) bool {
	for _, l := range list {
		if l == s {
			return true
		}
	}
	return false
}

func TestEvents_01_SwitchedOffTheyStayHere(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCloud(t)
		e := newEdge(t, c, meta.Config{})
		c.link()
		for i := range 10 {
			if err := e.event(fmt.Sprint(i), 1); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if len(c.writes) > 0 {
			t.Errorf("the cloud received: %v", c.writes)
		}
		for _, when := range []string{"now", "after a restart"} {
			items, _, err := e.List(t.Context(), selection("events", "involvedObject.kind=Pod"), meta.ListOptions{})
			if err != nil || len(items) != 10 {
				t.Errorf("%s: %d events, %v; want 10", when, len(items), err)
			}
			e.restart()
		}
	})
}

func TestAThousandEventsOfAnIslandArriveOnce(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCloud(t)
		e := newEdge(t, c, meta.Config{ReportEvents: true})
		c.link()
		c.cut()
		synctest.Wait()
		for i := range 1000 {
			if err := e.event(fmt.Sprint(i), 1); err != nil {
				t.Fatal(err)
			}
			if i%10 == 0 {
				if err := e.repeatEvent(fmt.Sprint(i), 3); err != nil {
					t.Fatal(err)
				}
			}
			if i == 500 {
				e.restart()
			}
		}
		c.link()
		synctest.Wait()
		if len(c.writes) != 1000 {
			t.Errorf("%d writes for 1,000 events: repeats that wait are merged", len(c.writes))
		}
		for i := range 1000 {
			ev, ok := c.state(ref("events", "default", fmt.Sprint(i))).(*corev1.Event)
			want := int32(1)
			if i%10 == 0 {
				want = 3
			}
			if !ok || ev.Count != want || ev.Message != fmt.Sprintf("message of %d", i) {
				t.Fatalf("event %d: %v", i, ev)
			}
		}
		if st := e.Status().Outbox; len(st.Waiting) != 0 || st.EventBytes != 0 {
			t.Errorf("outbox: %+v", st)
		}
	})
}

func TestEvents_08_AFullOutboxDropsTheOldestAndSaysSo(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCloud(t)
		e := newEdge(t, c, meta.Config{ReportEvents: true, Limits: meta.Limits{OutboxEvents: 10, RingEvents: 5}})
		c.link()
		c.cut()
		for i := range 25 {
			if err := e.event(fmt.Sprint(i), 1); err != nil {
				t.Fatal(err)
			}
			if i == 20 {
				e.restart()
			}
		}
		if items, _, err := e.List(t.Context(), selection("events"), meta.ListOptions{}); err != nil || len(items) != 5 {
			t.Errorf("ring: %d events, %v; want 5", len(items), err)
		}
		c.link()
		synctest.Wait()
		for i := range 25 {
			_, there := c.state(ref("events", "default", fmt.Sprint(i))).(*corev1.Event)
			if want := i >= 15; there != want {
				t.Errorf("event %d: in the cloud: %v, want %v", i, there, want)
			}
		}
		var reported []string
		c.mu.Lock()
		for r, th := range c.objects {
			if ev, ok := th.obj.(*corev1.Event); ok && ev.Reason == "EventsDropped" {
				reported = append(reported, r.Name+": "+ev.Message)
			}
		}
		c.mu.Unlock()
		if len(reported) != 1 || !strings.Contains(reported[0], " 15 oldest") {
			t.Errorf("reported: %q", reported)
		}
		if n := e.Status().Outbox.Dropped; n != 0 {
			t.Errorf("%d dropped events are not reported", n)
		}
	})
}

func TestOneSlowWriteBlocksNobodyElse(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCloud(t)
		e := newEdge(t, c, meta.Config{ReportEvents: true})
		for _, n := range []string{"a", "b"} {
			c.set(ref("pods", "default", n), pod())
		}
		c.link()
		e.holdPods()
		c.mu.Lock()
		c.hold = true
		c.mu.Unlock()
		if err := e.patchStatus("a", "1"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		c.mu.Lock()
		c.hold = false
		c.mu.Unlock()
		for i := 2; i < 5; i++ {
			for _, n := range []string{"a", "b"} {
				if err := e.patchStatus(n, fmt.Sprint(i)); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
			}
		}
		if got := c.state(ref("pods", "default", "b")).(*corev1.Pod).Status.Message; got != "4" {
			t.Errorf("b: %q", got)
		}
		if n := e.Status().Outbox.Waiting["POD_STATUS"]; n != 2 {
			t.Errorf("%d entries wait for a; want the one under way and one merged", n)
		}
		c.release()
		synctest.Wait()
		if diff := cmp.Diff([]string{"1", "4"}, c.effects[ref("pods", "default", "a").String()]); diff != "" {
			t.Errorf("a: %s", diff)
		}
	})
}

func TestWhatPassesThroughSpeaksTheCloudsVersions(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCloud(t)
		e := newEdge(t, c, meta.Config{})
		c.set(ref("configmaps", "default", "a"), configMap("x"))
		c.link()
		if _, _, err := e.List(t.Context(), selection("configmaps"), meta.ListOptions{FromReflector: true}); err != nil {
			t.Fatal(err)
		}
		o, err := e.Get(t.Context(), ref("configmaps", "default", "a"), meta.Caller{})
		if err != nil {
			t.Fatal(err)
		}
		if o.Version < 1e12 {
			t.Errorf("version %d could be kube-apiserver's", o.Version)
		}
		var sent []string
		c.answer = answerRecording(&sent)
		token := ""
		put := func(version string, body []byte) error {
			_, err := e.Write(t.Context(), meta.Write{
				Verb: "update", Ref: ref("configmaps", "default", "a"), Body: body, Path: "/api/v1/namespaces/default/configmaps/a",
				Caller: meta.Caller{BearerToken: token},
			})
			_ = version
			return err
		}
		obj, err := object.Decode(o)
		if err != nil {
			t.Fatal(err)
		}
		asJSON, err := object.JSON(obj)
		if err != nil {
			t.Fatal(err)
		}
		asProtobuf, err := object.Encode(obj)
		if err != nil {
			t.Fatal(err)
		}
		for name, body := range map[string][]byte{"JSON": asJSON, "protobuf": asProtobuf} {
			for _, token = range []string{"", "of a pod"} {
				sent = nil
				if err := put("", body); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				if diff := cmp.Diff([]string{o.CloudVersion}, sent); diff != "" {
					t.Errorf("%s: %s", name, diff)
				}
			}
		}
		c.set(ref("configmaps", "default", "a"), configMap("y"))
		synctest.Wait()
		token, sent = "of a pod", nil
		if err := put("", asJSON); err != nil || !slices.Equal(sent, []string{strconv.FormatUint(o.Version, 10)}) {
			t.Errorf("an old version named by a pod, whose token kube-apiserver judges: %v, sent %v", err, sent)
		}
		token = ""
		if err := put("", asJSON); !apierrors.IsConflict(err) {
			t.Errorf("an old version: %v, want a conflict", err)
		}
		c.cut()
		synctest.Wait()
		if err := put("", []byte(`{}`)); !apierrors.IsServiceUnavailable(err) || retryAfter(err) == 0 {
			t.Errorf("offline: %v, want 503 with Retry-After", err)
		}
	})
}

// Objects that come without their status have a digest for a version: it is compared like any
// other, and never goes to kube-apiserver.
func TestVersionsThatAreDigests(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCloud(t)
		e := newEdge(t, c, meta.Config{})
		name := ref("configmaps", "default", "a")
		c.prefix = "content-"
		c.set(name, configMap("x"))
		c.link()
		get := func() object.Object {
			t.Helper()
			if _, _, err := e.List(t.Context(), selection("configmaps"), meta.ListOptions{FromReflector: true}); err != nil {
				t.Fatal(err)
			}
			o, err := e.Get(t.Context(), name, meta.Caller{})
			if err != nil {
				t.Fatal(err)
			}
			return o
		}
		o := get()
		if !strings.HasPrefix(o.CloudVersion, "content-") {
			t.Errorf("its version is %q", o.CloudVersion)
		}
		sent := c.sentObjects
		c.cut()
		synctest.Wait()
		c.link()
		synctest.Wait()
		if get().Version != o.Version || c.sentObjects != sent {
			t.Errorf("sent again: %d objects", c.sentObjects-sent)
		}
		obj, err := object.Decode(o)
		if err != nil {
			t.Fatal(err)
		}
		body, err := object.JSON(obj)
		if err != nil {
			t.Fatal(err)
		}
		var passed []string
		c.answer = answerRecording(&passed)
		_, err = e.Write(t.Context(), meta.Write{Verb: "update", Ref: name, Body: body, Path: "/api/v1/namespaces/default/configmaps/a"})
		if !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), "metadata.resourceVersion") || len(passed) > 0 {
			t.Errorf("an update: %v; passed on: %q", err, passed)
		}
	})
}

// A kubelet at rest tells every five minutes that its node is as it was. That reaches the cloud,
// and nothing is written to flash for it.
func TestHeartbeatsOfTheNodeAreNotWritten(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCloud(t)
		e := newEdge(t, c, meta.Config{})
		node := ref("nodes", "", "edge1")
		c.set(node, &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}})
		c.link()
		options := meta.ListOptions{FromReflector: true, Caller: meta.Caller{Kubelet: true}}
		if _, _, err := e.List(t.Context(), selection("nodes", "metadata.name=edge1"), options); err != nil {
			t.Fatal(err)
		}
		beat := func(ready string) {
			t.Helper()
			time.Sleep(5 * time.Minute)
			body := fmt.Appendf(nil, `{"status":{"conditions":[{"type":"Ready","status":%q,"lastHeartbeatTime":%q}]}}`,
				ready, time.Now().UTC().Format(time.RFC3339))
			if _, err := e.Write(t.Context(), meta.Write{
				Verb: "patch", Ref: node, Subresource: "status", PatchType: types.StrategicMergePatchType, Body: body, Caller: meta.Caller{Kubelet: true},
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
		beat("False") // joins what is not on the disk, and is
		beat("False")
		e.restart()
		o, err := e.Get(t.Context(), node, meta.Caller{Kubelet: true})
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

// A node that stays without a link for long has heartbeats between its changes, which leave one
// entry: else its bound is reached some day, and the kubelet's heartbeats are refused from then on.
// What is under way is not touched, and no change passes one of another kind.
func TestHeartbeatsBetweenChangesLeaveOneEntry(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCloud(t)
		e := newEdge(t, c, meta.Config{})
		node := ref("nodes", "", "edge1")
		c.set(node, &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}})
		c.link()
		if _, _, err := e.List(t.Context(), selection("nodes", "metadata.name=edge1"), meta.ListOptions{FromReflector: true, Caller: meta.Caller{Kubelet: true}}); err != nil {
			t.Fatal(err)
		}
		write := func(subresource, body string) {
			t.Helper()
			time.Sleep(time.Minute)
			if _, err := e.Write(t.Context(), meta.Write{
				Verb: "patch", Ref: node, Subresource: subresource, PatchType: types.StrategicMergePatchType, Body: []byte(body), Caller: meta.Caller{Kubelet: true},
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
			o, err := e.Get(t.Context(), node, meta.Caller{Kubelet: true})
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

func TestWhoWritesFindsWhatItWrote(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCloud(t)
		e := newEdge(t, c, meta.Config{})
		c.link()
		e.holdPods()
		mirror := ref("pods", "default", "mirror")
		c.answer = func(*topicpb.APIRequest) *topicpb.APIResponse {
			made := pod()
			c.put(mirror, made)
			raw, err := object.Encode(made)
			if err != nil {
				t.Error(err)
			}
			go func() { // the watch in the cloud is some time behind
				time.Sleep(200 * time.Millisecond)
				c.mu.Lock()
				defer c.mu.Unlock()
				c.publish()
			}()
			return &topicpb.APIResponse{Code: 201, Body: raw}
		}
		start := time.Now()
		if _, err := e.Write(t.Context(), meta.Write{
			Verb: "create", Ref: object.Ref{Resource: resource("pods"), Namespace: "default"}, Body: []byte(`{}`), Path: "/api/v1/namespaces/default/pods",
			Caller: meta.Caller{Kubelet: true},
		}); err != nil {
			t.Fatal(err)
		}
		if _, err := e.Get(t.Context(), mirror, meta.Caller{Kubelet: true}); err != nil {
			t.Errorf("Get: %v", err)
		}
		if took := time.Since(start); took > 500*time.Millisecond {
			t.Errorf("it took %v", took)
		}
	})
}

func TestReportsAreReplaced(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCloud(t)
		e := newEdge(t, c, meta.Config{})
		about := ref("staticroutes", "", "r")
		for i := range 5 {
			if err := e.Report(t.Context(), about, "u", fmt.Appendf(nil, "%d", i)); err != nil {
				t.Fatal(err)
			}
		}
		e.restart()
		c.link()
		synctest.Wait()
		if diff := cmp.Diff(map[string][]string{"report " + about.String(): {"4"}}, c.effects); diff != "" {
			t.Error(diff)
		}
		if st := e.Status().Outbox; len(st.Waiting) != 0 {
			t.Errorf("outbox: %+v", st)
		}
	})
}

// Results of events that come one after another share commits: a commit is two syncs of flash, and
// no client waits for them. No other result waits with them.
func TestResultsOfEventsShareCommits(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCloud(t)
		c.set(ref("pods", "default", "a"), pod())
		e := newEdge(t, c, meta.Config{ReportEvents: true})
		c.link()
		e.holdPods()
		synctest.Wait()
		take := func() []func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			held := c.held
			c.held, c.hold = nil, true
			return held
		}
		answer := func(send func()) {
			c.mu.Lock()
			defer c.mu.Unlock()
			send()
		}
		take()
		const events = 40
		for i := range events {
			if err := e.event(fmt.Sprint(i), 1); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		held := take()
		if len(held) != events {
			t.Fatalf("%d results are held, want %d", len(held), events)
		}
		before := e.store.Stats().Commits
		for _, send := range held {
			answer(send)
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Second)
		if n := e.Status().Outbox.Waiting; len(n) != 0 {
			t.Errorf("there wait %v", n)
		}
		if n := e.store.Stats().Commits - before; n > events/4 {
			t.Errorf("%d commits for the results of %d events", n, events)
		}

		if err := e.event("one more", 1); err != nil {
			t.Fatal(err)
		}
		if err := e.patchStatus("a", "changed"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		held = take()
		if len(held) != 2 {
			t.Fatalf("%d results are held, want 2", len(held))
		}
		answer(held[0])
		synctest.Wait()
		if n := e.Status().Outbox.Waiting; len(n) != 2 {
			t.Errorf("there wait %v, want both classes: the result of an event is not written at once", n)
		}
		answer(held[1])
		synctest.Wait()
		if n := e.Status().Outbox.Waiting; len(n) != 0 {
			t.Errorf("there wait %v: what else has come did not press", n)
		}
	})
}
