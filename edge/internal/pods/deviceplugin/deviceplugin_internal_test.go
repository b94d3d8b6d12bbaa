package deviceplugin

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"

	"github.com/skerry-io/skerry/edge/internal/core/object"
)

// device is a Module with a kubelet and a runtime whose answers the test controls.
type device struct {
	*Module
	t       *testing.T
	kubelet *fake.Clientset
	events  *record.FakeRecorder

	mu      sync.Mutex
	plugins Resources
	runs    map[types.UID]sets.Set[string]
	devices sets.Set[string] // nil: the kubelet does not answer
	broken  error            // the runtime
	full    bool             // the store
	again   []string         // see asked
}

type recorder struct{ *record.FakeRecorder }

func (recorder) Close(context.Context) error { return nil }

func newDevice(t *testing.T, pods ...*corev1.Pod) *device {
	d := &device{t: t, kubelet: fake.NewClientset(), events: record.NewFakeRecorder(100), plugins: things(), runs: map[types.UID]sets.Set[string]{}}
	for _, p := range pods {
		if _, err := d.kubelet.CoreV1().Pods(p.Namespace).Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "edge1"}, Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{thing: resource.MustParse("1")}}}
	if _, err := d.kubelet.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	d.Module = &Module{
		config: Config{NodeName: "edge1", Timeout: 5 * time.Minute, Recorrect: func(_ context.Context, refs ...object.Ref) error {
			d.mu.Lock()
			defer d.mu.Unlock()
			if d.full {
				return errors.New("no space left on device")
			}
			for _, r := range refs {
				d.again = append(d.again, r.Name)
			}
			return nil
		}},
		client: d.kubelet, source: d, wake: make(chan struct{}, 1), changed: map[object.Ref]struct{}{}, waiting: map[types.UID]*waiting{}, admitted: map[types.UID]bool{},
	}
	go func() { _ = d.run(t.Context(), recorder{d.events}) }()
	return d
}

func (d *device) Running(context.Context) (map[types.UID]sets.Set[string], error) {
	return d.runs, d.broken
}

func (d *device) Resources() (Resources, error) { return d.plugins, nil }

func (d *device) Healthy(context.Context) (map[string]sets.Set[string], error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.devices == nil {
		return nil, errors.New("no kubelet")
	}
	return map[string]sets.Set[string]{thing: d.devices}, nil
}

func (d *device) register(ids ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.devices = sets.New(ids...)
}

// asked are the pods of which the gate was asked again.
func (d *device) asked() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.again)
}

// withheld are the pods that the gate holds.
func (d *device) withheld(pods ...*corev1.Pod) (names []string) {
	for _, p := range pods {
		if d.Withholds(p) != "" {
			names = append(names, p.Name)
		}
	}
	return names
}

func (d *device) want(when string, got []string, want ...string) {
	d.t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		d.t.Errorf("%s (-want +got):\n%s", when, diff)
	}
}

// After a boot pods wait until the plugin has registered, whatever the Node's status of before
// reports, and are not Ready; then they are let through, and not withheld again.
func TestPodsWaitForTheirPlugin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waits, runs, other := user("waits", 1, 1), user("runs", 2, 1), user("other", 3, 0)
		d := newDevice(t, waits, runs, other)
		d.runs["runs"] = sets.New("c0")
		d.want("before the kubelet waits to start", d.withheld(waits, runs, other))
		if err := d.Prepare(t.Context()); err != nil {
			t.Fatal(err)
		}
		d.want("when the kubelet starts", d.withheld(waits, runs, other), "waits")
		if !slices.Contains(d.asked(), "waits") {
			t.Error("the gate was not asked again")
		}
		time.Sleep(time.Minute)
		d.want("a minute later", d.withheld(waits, runs, other), "waits")
		p, _ := d.kubelet.CoreV1().Pods("default").Get(t.Context(), "waits", metav1.GetOptions{})
		if len(p.Status.Conditions) != 2 || p.Status.Conditions[0].Reason != "WaitingForDevicePlugin" || !strings.Contains(p.Status.Conditions[0].Message, thing) {
			t.Errorf("its conditions: %+v", p.Status.Conditions)
		}
		later := user("later", 4, 1) // delivered over the link
		d.want("another one comes", d.withheld(later), "later")

		d.register("1", "2")
		node, _ := d.kubelet.CoreV1().Nodes().Get(t.Context(), "edge1", metav1.GetOptions{})
		node.Status.Allocatable[thing] = resource.MustParse("2")
		_, _ = d.kubelet.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{})
		time.Sleep(10 * time.Second)
		d.want("with the plugin", d.withheld(waits, runs))
		d.runs["waits"] = nil
		d.register()
		time.Sleep(10 * time.Second)
		d.want("the plugin is gone again", d.withheld(waits, runs))
		if len(d.events.Events) > 0 {
			t.Error(<-d.events.Events)
		}
	})
}

// A plugin that never registers is reported after the limit, and the kubelet decides on its pods.
// The gate is asked for a new pod before the pod is stored: a look in between does not find it. It
// is shown nevertheless, once its devices are there.
func TestPodThatIsNotStoredYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDevice(t)
		if err := d.Prepare(t.Context()); err != nil {
			t.Fatal(err)
		}
		d.register("one")
		late := user("late", 1, 1)
		if d.Withholds(late) == "" {
			t.Fatal("it is not withheld")
		}
		time.Sleep(3 * time.Second)
		if again := d.asked(); !slices.Equal(again, []string{"late"}) {
			t.Fatalf("the gate was asked again for %v", again)
		}
		if _, err := d.kubelet.CoreV1().Pods(late.Namespace).Create(t.Context(), late, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if d.Withholds(late) == "" {
			t.Fatal("it is shown before its devices were seen")
		}
		time.Sleep(5 * time.Second)
		if names := d.withheld(late); names != nil {
			t.Errorf("withheld are %v", names)
		}
	})
}

func TestAPluginThatNeverComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waits := user("waits", 1, 1)
		d := newDevice(t, waits)
		if err := d.Prepare(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5*time.Minute - 2*time.Second)
		d.want("before the limit", d.withheld(waits), "waits")
		time.Sleep(4 * time.Second)
		d.want("after it", d.withheld(waits))
		synctest.Wait()
		if len(d.asked()) < 3 { // at first, with the reason, in the end
			t.Errorf("asked again: %v", d.asked())
		}
		if len(d.events.Events) != 1 {
			t.Fatalf("%d events", len(d.events.Events))
		}
		if e := <-d.events.Events; !strings.Contains(e, "DevicePluginTimeout no device plugin has registered "+thing) {
			t.Error(e)
		}
	})
}

// A pod is shown to the kubelet although the store has no room when its time is over, or when its
// device has come: that is retried.
func TestPodsAreShownAfterAFailedWrite(t *testing.T) {
	for name, come := range map[string]bool{"the limit": false, "the device": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				waits := user("waits", 1, 1)
				d := newDevice(t, waits)
				if err := d.Prepare(t.Context()); err != nil {
					t.Fatal(err)
				}
				time.Sleep(10 * time.Second)
				d.mu.Lock()
				d.full = true
				d.mu.Unlock()
				if come {
					d.register("1")
				}
				time.Sleep(6 * time.Minute)
				d.want("withheld", d.withheld(waits))
				d.mu.Lock()
				d.full, d.again = false, nil
				d.mu.Unlock()
				time.Sleep(3 * time.Second)
				d.want("the gate is asked again", d.asked(), "waits")
			})
		})
	}
}

// Where the runtime does not list its containers, the kubelet waits for it for a while, and then no
// pod is withheld: it might run.
func TestPrepare_withoutTheRuntime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waits := user("waits", 1, 1)
		d := newDevice(t, waits)
		d.broken = errors.New("not yet")
		if d.Prepare(t.Context()) == nil {
			t.Error("the kubelet starts at once")
		}
		time.Sleep(time.Minute)
		if err := d.Prepare(t.Context()); err != nil {
			t.Error(err)
		}
		d.want("withheld", d.withheld(waits))
	})
}
