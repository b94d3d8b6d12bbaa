package agent_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/beehivetest"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/core/agent"
	"github.com/skerry-io/skerry/edge/internal/core/agent/agenttest"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
	"github.com/skerry-io/skerry/edge/internal/core/object"
)

func run(t *testing.T, m *agent.Module) *beehivetest.Bench {
	t.Helper()
	return beehivetest.Run(t, []beehivetest.Peer{{Name: "edgehub"}}, beehive.Entry{
		Module: m, Groups: []message.Group{linkstate.Agents}, Restart: beehive.OnFailure(beehive.Backoff{}),
	})
}

func setLink(t *testing.T, b *beehivetest.Bench, up bool, epoch uint64) {
	t.Helper()
	m := linkstate.Current.New(message.Resource{}, linkstate.State{Up: up, Link: linkstate.Link{Epoch: epoch}})
	if err := b.Port("edgehub").SendToGroup(t.Context(), linkstate.Agents, m); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
}

// A module that is restarted within a session knows in its first Sync that the link is up, and one
// that is started without a link knows that too.
func TestModule_RestartedInMidSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fail atomic.Bool
		var seen []string
		m := agent.New(agent.Config{Name: "a", Start: func(_ context.Context, r *agent.Run) (agent.Sync, error) {
			seen = append(seen, fmt.Sprint("run ", r.Link().Up))
			r.Go(func(ctx context.Context) error {
				tick := time.NewTicker(time.Second)
				defer tick.Stop()
				for {
					select {
					case <-ctx.Done():
						return nil
					case <-tick.C:
						if fail.CompareAndSwap(true, false) {
							return errors.New("a part failed")
						}
					}
				}
			})
			return func(context.Context) (time.Duration, error) {
				seen = append(seen, fmt.Sprint("sync ", r.Link().Up))
				return 0, nil
			}, nil
		}})
		b := run(t, m)
		synctest.Wait()
		setLink(t, b, true, 1)
		fail.Store(true)
		time.Sleep(10 * time.Second)
		setLink(t, b, false, 1)
		fail.Store(true)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		want := []string{"run false", "sync false", "sync true", "run true", "sync true", "sync false", "run false", "sync false"}
		if diff := cmp.Diff(want, seen); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

func node(name, zone string) *corev1.Node {
	return &corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"zone": zone}},
	}
}

// Sync is not called before all watches are synced, however often the module is woken; then each
// change is one call.
func TestModule_WaitsForItsWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := agenttest.NewAPI()
		api.Put(t, "nodes", node("edge1", "north"))
		api.Put(t, "nodes", node("edge2", "north"))
		api.Unsync("staticroutes")
		var seen []string
		m := agent.New(agent.Config{Name: "a", API: api.Config(), Start: func(_ context.Context, r *agent.Run) (agent.Sync, error) {
			nodes, err := agent.Watch(r, corev1.SchemeGroupVersion.WithResource("nodes"), &corev1.Node{}, agent.Selection{Fields: "metadata.name=edge1"})
			if err != nil {
				return nil, err
			}
			routes, err := agent.Watch(r, v1alpha1.Resource(v1alpha1.StaticRoutes), &v1alpha1.StaticRoute{}, agent.Selection{})
			if err != nil {
				return nil, err
			}
			return func(context.Context) (time.Duration, error) {
				var text []string
				for _, n := range nodes.List() {
					text = append(text, n.Name+" in "+n.Labels["zone"])
				}
				changed := routes.Changed()
				for _, o := range routes.List() {
					_, is := changed[o.Name]
					text = append(text, fmt.Sprint(o.Name, " ", o.Spec.Subnet, " ", is))
				}
				slices.Sort(text)
				seen = append(seen, strings.Join(text, ", "))
				return 0, nil
			}, nil
		}})
		b := run(t, m)
		setLink(t, b, true, 1)
		time.Sleep(time.Minute)
		if s := m.State(); !strings.Contains(s.Waiting, "staticroutes") || len(seen) > 0 {
			t.Errorf("state %+v, calls %q before all was known", s, seen)
		}
		api.Sync("staticroutes")
		time.Sleep(5 * time.Minute) // the reflector's own back-off
		api.Put(t, "nodes", node("edge1", "south"))
		time.Sleep(time.Second)
		route := &v1alpha1.StaticRoute{
			TypeMeta: metav1.TypeMeta{APIVersion: "skerry.io/v1alpha1", Kind: "StaticRoute"}, ObjectMeta: metav1.ObjectMeta{Name: "r"},
			Spec: v1alpha1.StaticRouteSpec{Subnet: "10.0.0.0/8"},
		}
		api.Put(t, "staticroutes", route)
		time.Sleep(time.Second)
		setLink(t, b, false, 1)
		time.Sleep(time.Second)
		want := []string{"edge1 in north", "edge1 in south", "edge1 in south, r 10.0.0.0/8 true", "edge1 in south, r 10.0.0.0/8 false"}
		if diff := cmp.Diff(want, slices.Compact(seen)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if s := m.State(); s.Waiting != "" || s.Problem != "" {
			t.Errorf("state %+v", s)
		}
	})
}

// A failure is retried after 1 s, 2 s, 4 s, up to 30 s, for as long as it lasts; then the first
// delay counts again.
func TestModule_TriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []string
		const fails = 7
		start := time.Now()
		m := agent.New(agent.Config{Name: "a", Resync: time.Minute, Start: func(context.Context, *agent.Run) (agent.Sync, error) {
			return func(context.Context) (time.Duration, error) {
				at = append(at, time.Since(start).String())
				if len(at) <= fails {
					return 0, errors.New("the kernel refuses")
				}
				return 0, nil
			}, nil
		}})
		run(t, m)
		time.Sleep(90 * time.Second)
		if s := m.State(); s.Problem != "the kernel refuses" || s.Failures != 7 {
			t.Errorf("state %+v", s)
		}
		time.Sleep(93 * time.Second)
		want := []string{"0s", "1s", "3s", "7s", "15s", "31s", "1m1s", "1m31s", "2m31s"}
		if diff := cmp.Diff(want, at); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if s := m.State(); s.Problem != "" || s.Syncs != 9 {
			t.Errorf("state %+v", s)
		}
	})
}

func routeRef(name string) object.Ref {
	return object.Ref{Resource: v1alpha1.Resource(v1alpha1.StaticRoutes), Name: name}
}

// Reports are a state: sent when they change, kept when the outbox refuses, and repeated in batches
// once the cloud has lost them. A link that opens repeats none, however old they are.
func TestReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		outbox := &agenttest.Outbox{}
		word := "a"
		var run1 *agent.Run
		m := agent.New(agent.Config{Name: "a", Reporter: outbox, Start: func(_ context.Context, r *agent.Run) (agent.Sync, error) {
			run1 = r
			return func(context.Context) (time.Duration, error) {
				for i := range 100 {
					if err := r.Reports.Set(routeRef(fmt.Sprint("r", i)), "uid", word); err != nil {
						return 0, err
					}
				}
				return 0, nil
			}, nil
		}})
		b := run(t, m)
		time.Sleep(time.Second)
		expect := func(when string, all int, last string) {
			t.Helper()
			reports := outbox.Reports("")
			if len(reports) != all || all > 0 && reports[len(reports)-1].Body != last {
				t.Errorf("%s: %d reports, want %d; the last is %v", when, len(reports), all, reports[len(reports)-1])
			}
		}
		expect("at the start, without a link", 100, `"a"`)
		setLink(t, b, true, 1)
		expect("link-up: it was reported a moment ago", 100, `"a"`)
		time.Sleep(11 * time.Minute)
		expect("link up for long", 100, `"a"`)
		setLink(t, b, true, 2)
		expect("another link after 11 min", 100, `"a"`)
		m.Repeat()
		synctest.Wait()
		expect("the cloud has lost all: the first batch", 164, `"a"`)
		time.Sleep(2 * time.Second)
		expect("the second batch", 200, `"a"`)
		for epoch := range uint64(10) {
			setLink(t, b, false, 2+epoch)
			setLink(t, b, true, 3+epoch)
		}
		expect("a link that flaps", 200, `"a"`)

		outbox.Refuse(errors.New("the disk is full"))
		word = "b"
		run1.Wake()
		synctest.Wait()
		if s := m.State(); s.Unreported != 100 || !strings.Contains(s.Problem, "the disk is full") || run1.Reports.Sent(routeRef("r1")) {
			t.Errorf("state %+v", s)
		}
		outbox.Refuse(nil)
		time.Sleep(2 * time.Second)
		expect("the disk has room", 300, `"b"`)
		m.Repeat()
		time.Sleep(3 * time.Second)
		expect("the cloud has forgotten all", 400, `"b"`)
		if s := m.State(); s.Unreported != 0 || s.Problem != "" || !run1.Reports.Sent(routeRef("r1")) {
			t.Errorf("state %+v", s)
		}
	})
}

// The cloud has lost the reports: those of an earlier run are repeated too, and without a run the
// next one repeats them. An agent that drops finally reported entries is told once.
func TestClaims_17_RepeatReachesTheNextRunAndWhatItAssumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		outbox := &agenttest.Outbox{}
		var heard []bool
		m := agent.New(agent.Config{Name: "a", Reporter: outbox, Start: func(_ context.Context, r *agent.Run) (agent.Sync, error) {
			if err := r.Reports.Assume(routeRef("known"), "1", "a"); err != nil {
				return nil, err
			}
			return func(context.Context) (time.Duration, error) {
				heard = append(heard, r.Repeated())
				return 0, nil
			}, nil
		}})
		m.Repeat()
		run(t, m)
		time.Sleep(time.Minute)
		want := []agenttest.Report{{Resource: "staticroutes", Name: "known", UID: types.UID("1"), Body: `"a"`}}
		if diff := cmp.Diff(want, outbox.Reports("")); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		m.Repeat()
		time.Sleep(time.Minute)
		if got := len(outbox.Reports("")); got != 2 {
			t.Errorf("%d reports, want 2", got)
		}
		if diff := cmp.Diff([]bool{true, true}, heard); diff != "" {
			t.Errorf("heard (-want +got):\n%s", diff)
		}
	})
}

func TestReports_WithdrawAndAssume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		outbox := &agenttest.Outbox{}
		m := agent.New(agent.Config{Name: "a", Reporter: outbox, Start: func(_ context.Context, r *agent.Run) (agent.Sync, error) {
			if err := r.Reports.Assume(routeRef("known"), "1", "a"); err != nil {
				return nil, err
			}
			if err := r.Reports.Assume(routeRef("gone"), "2", "a"); err != nil {
				return nil, err
			}
			r.Reports.Withdraw(routeRef("gone"), "2")
			return func(context.Context) (time.Duration, error) {
				r.Reports.Drop(routeRef("never"))
				return 0, errors.Join(r.Reports.Set(routeRef("known"), "1", "a"), r.Reports.Set(routeRef("other"), "3", "b"))
			}, nil
		}})
		run(t, m)
		time.Sleep(time.Minute)
		want := []agenttest.Report{
			{Resource: "staticroutes", Name: "gone", UID: types.UID("2"), Body: "null"},
			{Resource: "staticroutes", Name: "other", UID: types.UID("3"), Body: `"b"`},
		}
		got := outbox.Reports("")
		slices.SortFunc(got, func(x, y agenttest.Report) int { return strings.Compare(x.Name, y.Name) })
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}
