package app_test

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/beehivetest"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/core/agent/agenttest"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
	"github.com/skerry-io/skerry/edge/internal/optional/app"
)

// memory keeps values as the store does, over restarts of the agent.
type memory struct {
	mu     sync.Mutex
	values map[string][]byte
	writes int
}

func (m *memory) Load() (map[string][]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.values), nil
}

func (m *memory) Save(_ context.Context, changes map[string][]byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.writes++
	for k, v := range changes {
		if v == nil {
			delete(m.values, k)
		} else {
			m.values[k] = v
		}
	}
	return nil
}

// system is an agent with everything around it.
type system struct {
	t      *testing.T
	api    *agenttest.API
	outbox *agenttest.Outbox
	memory *memory
	alive  atomic.Bool
	bench  *beehivetest.Bench
	agent  *app.Agent
	fetch  app.Fetcher
}

func newSystem(t *testing.T) *system {
	d := &system{t: t, api: agenttest.NewAPI(), outbox: &agenttest.Outbox{}, memory: &memory{values: map[string][]byte{}}}
	d.alive.Store(true)
	return d
}

// start runs the agent of node edge1, until the test's end.
func (d *system) start() {
	d.agent = app.New(app.Config{
		NodeName: "edge1", API: d.api.Config(), Reporter: d.outbox, Memory: d.memory, Alive: d.alive.Load, Fetcher: d.fetch,
		Rules: app.Rules{HaltingAfter: 5 * time.Minute, SilentAfter: 2 * time.Minute},
	})
	d.bench = beehivetest.Run(d.t, []beehivetest.Peer{{Name: "edgehub"}}, beehive.Entry{
		Module: d.agent, Groups: []message.Group{linkstate.Agents}, Restart: beehive.OnFailure(beehive.Backoff{}),
	})
	synctest.Wait()
}

func (d *system) link(up bool) {
	d.t.Helper()
	m := linkstate.Current.New(message.Resource{}, linkstate.State{Up: up, Link: linkstate.Link{Epoch: 1}})
	if err := d.bench.Port("edgehub").SendToGroup(d.t.Context(), linkstate.Agents, m); err != nil {
		d.t.Fatal(err)
	}
	synctest.Wait()
}

func (d *system) app(name, designated string, change ...func(*v1alpha1.EdgeApp)) {
	d.t.Helper()
	a := &v1alpha1.EdgeApp{
		TypeMeta:   metav1.TypeMeta{APIVersion: "skerry.io/v1alpha1", Kind: "EdgeApp"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: "uid-1"}, Spec: v1alpha1.EdgeAppSpec{DesignatedNode: designated},
	}
	for _, c := range change {
		c(a)
	}
	d.api.Put(d.t, "edgeapps", a)
}

func (d *system) pod(app string, restarts int32, change ...func(*corev1.Pod)) {
	d.t.Helper()
	p := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: app + "-1", Labels: map[string]string{v1alpha1.EdgeAppLabel: app}},
		Spec:       corev1.PodSpec{NodeName: "edge1"},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{
			{Name: "c", RestartCount: restarts, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}},
		}},
	}
	for _, c := range change {
		c(p)
	}
	d.api.Put(d.t, "pods", p)
}

// last is the last entry that was reported of an application, and how many reports there were.
func (d *system) last(name string) (e v1alpha1.EdgeAppNode, reports int) {
	d.t.Helper()
	all := d.outbox.Reports(name)
	if len(all) > 0 {
		if err := json.Unmarshal([]byte(all[len(all)-1].Body), &e); err != nil {
			d.t.Fatal(err)
		}
	}
	return e, len(all)
}

func (d *system) settle(t time.Duration) {
	time.Sleep(t)
	synctest.Wait()
}

// TestCluster_08, by the clock of the test: 1:59 without the API a change is reported still, after
// 2:00 there are no more. No decision is made: not one object is written. Once there is a link
// again the present state is reported.
func TestCluster_08_SilentAfterTwoMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newSystem(t)
		d.app("a", "edge1")
		d.pod("a", 0)
		d.start()
		d.link(true)
		d.settle(time.Minute)
		if e, _ := d.last("a"); !e.Running || !e.ReportsStats || e.State != v1alpha1.AppRunning {
			t.Fatalf("%+v", e)
		}
		d.link(false)
		d.settle(119 * time.Second)
		d.pod("a", 1)
		d.settle(100 * time.Millisecond)
		if e, _ := d.last("a"); e.Restarts != 1 {
			t.Errorf("after 1:59 the last report is %+v", e)
		}
		_, before := d.last("a")
		d.settle(2 * time.Second)
		if !d.agent.Status().Silent {
			t.Error("it is not said that nothing is reported")
		}
		d.pod("a", 2)
		d.settle(time.Hour)
		if e, n := d.last("a"); n != before {
			t.Errorf("%d reports after 2:00; the last is %+v", n-before, e)
		}
		if s := d.agent.Status(); len(s.Apps) != 1 || s.Apps[0].Restarts != 2 || s.Apps[0].State != v1alpha1.AppRunning {
			t.Errorf("the device itself shows %+v", s)
		}
		d.link(true)
		d.settle(time.Second)
		if e, _ := d.last("a"); e.Restarts != 2 || d.agent.Status().Silent {
			t.Errorf("linked again, the last report is %+v", e)
		}
	})
}

// TestCluster_09, by the clock of the test: an application whose state cannot be determined is
// Unknown for 4:59, and Halting from 5:00 on; a good reading in between starts again; the time
// counts over a restart of edgecore. A lost link is no Unknown workload.
func TestCluster_09_UnknownBecomesHalting(t *testing.T) {
	state := func(d *system) v1alpha1.AppState {
		if all := d.agent.Status().Apps; len(all) == 1 {
			return all[0].State
		}
		return ""
	}
	expect := func(t *testing.T, d *system, when string, want v1alpha1.AppState) {
		t.Helper()
		synctest.Wait()
		if got := state(d); got != want {
			t.Errorf("%s: %s, want %s", when, got, want)
		}
	}
	unknown := func(p *corev1.Pod) { p.Status.Phase = corev1.PodUnknown }
	synctest.Test(t, func(t *testing.T) {
		d := newSystem(t)
		d.app("a", "edge1")
		d.pod("a", 0)
		d.start()
		d.link(true)
		d.settle(time.Second)
		d.link(false)
		d.settle(10 * time.Minute)
		expect(t, d, "without a link", v1alpha1.AppRunning)
		d.link(true)

		d.pod("a", 0, unknown)
		d.settle(4*time.Minute + 59*time.Second)
		expect(t, d, "after 4:59", v1alpha1.AppUnknown)
		d.settle(1100 * time.Millisecond)
		expect(t, d, "after 5:00", v1alpha1.AppHalting)

		d.pod("a", 0)
		d.settle(time.Second)
		expect(t, d, "a good reading", v1alpha1.AppRunning)
		d.pod("a", 0, unknown)
		d.settle(4 * time.Minute)
		d.pod("a", 0)
		d.settle(time.Second)
		d.pod("a", 0, unknown)
		d.settle(4*time.Minute + 59*time.Second)
		expect(t, d, "4:59 after a good reading", v1alpha1.AppUnknown)
		// edgecore ends and starts again: only its saved state is left of the agent.
		if err := d.bench.Stop(); err != nil {
			t.Fatal(err)
		}
		d.start()
		d.link(true)
		expect(t, d, "after the restart", v1alpha1.AppUnknown)
		d.settle(1100 * time.Millisecond)
		expect(t, d, "5:00, most of it before the restart", v1alpha1.AppHalting)
	})
}

// A node corrects its reports, also after a restart; it does not report an application that never
// concerned it. It does not write to the disk without a change.
func TestAgent_CorrectsWhatItReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newSystem(t)
		d.app("guest", "edge2")
		d.app("foreign", "edge3")
		d.pod("guest", 0)
		d.start()
		d.link(true)
		d.settle(time.Second)
		if e, _ := d.last("guest"); !e.ScheduledOnThisNode || e.IsDesignated {
			t.Errorf("%+v", e)
		}
		writes := d.memory.writes
		d.settle(time.Hour)
		if d.memory.writes != writes {
			t.Errorf("%d writes while nothing changed", d.memory.writes-writes)
		}
		if _, n := d.last("foreign"); n != 0 {
			t.Errorf("%d reports of an application that is elsewhere", n)
		}
		d.api.Remove(t, "pods", "ns", "guest-1")
		d.settle(time.Second)
		if e, _ := d.last("guest"); e.ScheduledOnThisNode || e.Running || e.State != v1alpha1.AppHalted {
			t.Errorf("after the pod went: %+v", e)
		}
	})
	synctest.Test(t, func(t *testing.T) { // restarted after the pod's deletion, before the report
		d := newSystem(t)
		d.memory.values["ns/guest"] = []byte(`{"uid":"uid-1"}`)
		d.memory.values["ns/older"] = []byte(`{"uid":"another"}`)
		d.app("guest", "edge2")
		d.app("older", "edge2") // of the same name, and another one by now
		d.start()
		d.link(true)
		d.settle(time.Second)
		if e, n := d.last("guest"); n != 1 || e.State != v1alpha1.AppHalted {
			t.Errorf("%d reports, %+v", n, e)
		}
		if _, n := d.last("older"); n != 0 {
			t.Error("a report of an application that this node never had")
		}
	})
}

// catalogue is a Fetcher that has some content at once, fails twice for others, and counts.
type catalogue struct {
	mu    sync.Mutex
	asked map[string]int
	fails int
}

func (c *catalogue) Prune(map[string]bool) ([]string, error) { return nil, nil }

func (c *catalogue) Fetch(_ context.Context, content v1alpha1.AppContent) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked[content.Name]++
	if c.asked[content.Name] <= c.fails {
		return errors.New("the server does not answer")
	}
	return nil
}

// A container image is every node's to fetch, a disk image the designated node's alone; a failure
// is reported and retried.
func TestAgent_Content(t *testing.T) {
	content := func(a *v1alpha1.EdgeApp) {
		a.Spec.Content = []v1alpha1.AppContent{
			{Name: "image", Type: v1alpha1.ContentContainerImage, Source: "skerry.local/sample:1"},
			{Name: "disk", Type: v1alpha1.ContentDiskImage, Source: "http://x/disk", SHA256: "00"},
		}
	}
	synctest.Test(t, func(t *testing.T) {
		d := newSystem(t)
		c := &catalogue{asked: map[string]int{}, fails: 2}
		d.fetch = c
		d.app("home", "edge1", content)
		d.start()
		d.link(true)
		d.settle(time.Second)
		e, _ := d.last("home")
		if len(e.Content) != 2 || !e.Content[0].IsLocal || !e.Content[1].IsLocal || e.Content[0].Ready || e.Content[0].Message == "" {
			t.Errorf("%+v", e.Content)
		}
		d.settle(time.Minute)
		if e, _ := d.last("home"); !e.Content[0].Ready || !e.Content[1].Ready || e.Content[1].Message != "" {
			t.Errorf("%+v", e.Content)
		}
		d.settle(time.Hour)
		if c.asked["image"] != 3 || c.asked["disk"] != 3 {
			t.Errorf("fetched %v", c.asked)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		d := newSystem(t)
		c := &catalogue{asked: map[string]int{}}
		d.fetch = c
		d.app("away", "edge2", content)
		d.start()
		d.link(true)
		d.settle(time.Minute)
		e, _ := d.last("away")
		if len(e.Content) != 2 || !e.Content[0].IsLocal || !e.Content[0].Ready || e.Content[1].IsLocal || e.Content[1].Ready || c.asked["disk"] != 0 {
			t.Errorf("%+v, fetched %v", e.Content, c.asked)
		}
	})
}
