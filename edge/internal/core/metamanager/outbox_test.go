package metamanager_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
	"github.com/skerry-io/skerry/edge/internal/core/object"
)

// Whatever the order of events: in the end the cloud has the last write to each object, has never
// applied an older write after a newer one, and both ends have the same objects.
func TestEverythingArrivesInOrder(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inBubble(t, func(t *testing.T) { runDisorder(t, rand.New(rand.NewPCG(seed, 1))) })
		})
	}
}

func runDisorder(t *testing.T, r *rand.Rand) {
	c := newCloud(t)
	e := newEdge(t, c, metamanager.Config{ReportEvents: true, Limits: metamanager.Limits{Window: 1 + r.IntN(8), EventWindow: 1 + r.IntN(4)}})
	const pods = 4
	podRef := func(i int) object.Ref { return ref("pods", "default", fmt.Sprint(i)) }
	for i := range pods {
		c.set(podRef(i), pod())
	}
	c.link()
	e.holdPods()

	last := map[types.UID]int{}     // last write to each pod
	events := map[string]int{}      // the count of each event
	reports := map[object.Ref]int{} // last reports
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

func TestEvents_01_SwitchedOffTheyStayOnTheDevice(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCloud(t)
		e := newEdge(t, c, metamanager.Config{})
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
			items, _, err := e.List(t.Context(), selection("events", "involvedObject.kind=Pod"), metamanager.ListOptions{})
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
		e := newEdge(t, c, metamanager.Config{ReportEvents: true})
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
		e := newEdge(t, c, metamanager.Config{ReportEvents: true, Limits: metamanager.Limits{OutboxEvents: 10, RingEvents: 5}})
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
		if items, _, err := e.List(t.Context(), selection("events"), metamanager.ListOptions{}); err != nil || len(items) != 5 {
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
		if s := e.Status().Outbox; s.Dropped != 0 || s.Reported != 15 {
			t.Errorf("%d dropped events are not reported, %d are", s.Dropped, s.Reported)
		}
	})
}

func TestOneSlowWriteBlocksNobodyElse(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCloud(t)
		e := newEdge(t, c, metamanager.Config{ReportEvents: true})
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

func TestWhoWritesFindsWhatItWrote(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCloud(t)
		e := newEdge(t, c, metamanager.Config{})
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
		if _, err := e.Write(t.Context(), metamanager.Write{
			Verb: "create", Ref: object.Ref{Resource: resource("pods"), Namespace: "default"}, Body: []byte(`{}`), Path: "/api/v1/namespaces/default/pods",
			Caller: metamanager.Caller{Kubelet: true},
		}); err != nil {
			t.Fatal(err)
		}
		if _, err := e.Get(t.Context(), mirror, metamanager.Caller{Kubelet: true}); err != nil {
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
		e := newEdge(t, c, metamanager.Config{})
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
		e := newEdge(t, c, metamanager.Config{ReportEvents: true})
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
