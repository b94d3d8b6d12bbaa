package deviceplugin

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
)

const thing = "devices.example/thing"

// user returns a pod whose containers each request so many devices, created in the given second of
// a day.
func user(name string, second int, wants ...int) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(time.Date(2026, 11, 27, 0, 0, second, 0, time.UTC)),
	}}
	for i, n := range wants {
		c := corev1.Container{Name: fmt.Sprint("c", i)}
		if n > 0 {
			c.Resources.Limits = corev1.ResourceList{thing: *resource.NewQuantity(int64(n), resource.DecimalSI), corev1.ResourceCPU: resource.MustParse("1")}
		}
		p.Spec.Containers = append(p.Spec.Containers, c)
	}
	return p
}

func things() Resources {
	return Resources{Known: sets.New(thing), Allocated: map[types.UID]map[string]sets.Set[string]{}}
}

// Only pods that the kubelet would reject wait.
func TestMustWait(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	folder := func(path string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path}}}}
		}
	}
	for name, c := range map[string]struct {
		pod     *corev1.Pod
		change  func(*corev1.Pod)
		running []string
		want    bool
	}{
		"wants nothing":                   {pod: user("a", 0, 0)},
		"wants a device":                  {pod: user("a", 0, 1), want: true},
		"runs":                            {pod: user("a", 0, 1), running: []string{"c0"}},
		"one of two runs":                 {pod: user("a", 0, 1, 1), running: []string{"c0"}, want: true},
		"the one that wants runs":         {pod: user("a", 0, 1, 0), running: []string{"c0"}},
		"the one that wants nothing runs": {pod: user("a", 0, 1, 0), running: []string{"c1"}, want: true},
		"an init container wants, and is over": {pod: user("a", 0, 0), running: []string{"c0"}, change: func(p *corev1.Pod) {
			p.Spec.InitContainers = user("b", 0, 1).Spec.Containers
			p.Spec.InitContainers[0].Name = "init"
		}, want: true},
		"a sidecar wants, and runs": {pod: user("a", 0, 0), running: []string{"side"}, change: func(p *corev1.Pod) {
			p.Spec.InitContainers = user("b", 0, 1).Spec.Containers
			p.Spec.InitContainers[0].Name, p.Spec.InitContainers[0].RestartPolicy = "side", &always
		}},
		"has ended":                          {pod: user("a", 0, 1), change: func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }},
		"a mirror":                           {pod: user("a", 0, 1), change: func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} }},
		"a plugin":                           {pod: user("a", 0, 1), change: folder("/var/lib/kubelet/device-plugins/")},
		"a plugin with all of the kubelet's": {pod: user("a", 0, 1), change: folder("/var/lib/kubelet")},
		"has another folder":                 {pod: user("a", 0, 1), change: folder("/var/lib/kubelet/device-plugins-of-others"), want: true},
		"its device is of DRA": {pod: user("a", 0, 1), change: func(p *corev1.Pod) {
			p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{RequestMappings: []corev1.ContainerExtendedResourceRequest{{ContainerName: "c0", ResourceName: thing}}}
		}},
		"of a resource that no plugin provides": {pod: user("a", 0, 1), change: func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"opaque.example/x": resource.MustParse("1")}
		}},
	} {
		if c.change != nil {
			c.change(c.pod)
		}
		if got := things().mustWait(c.pod, sets.New(c.running...)); got != c.want {
			t.Errorf("%s: waits %t", name, got)
		}
	}
	unread := things()
	unread.Known, unread.All = nil, true
	if !unread.mustWait(user("a", 0, 1), nil) {
		t.Error("of a checkpoint that can't be read: does not wait")
	}
}

func TestPlan(t *testing.T) {
	none, few := "no device plugin has registered", "too few devices"
	ids := func(all ...string) map[string]sets.Set[string] {
		return map[string]sets.Set[string]{thing: sets.New(all...)}
	}
	for name, c := range map[string]struct {
		healthy       []string
		allocatable   int
		waiting       []*corev1.Pod
		shown         []*corev1.Pod
		allocated     map[types.UID]map[string]sets.Set[string]
		want          map[types.UID]string
		allocatableIs bool
	}{
		"no plugin, the Node's status is of before": {allocatable: 1, waiting: []*corev1.Pod{user("a", 1, 1)}, want: map[types.UID]string{"a": none}},
		"registered, the Node is behind":            {healthy: []string{"1"}, waiting: []*corev1.Pod{user("a", 1, 1)}, want: map[types.UID]string{"a": few}},
		"there":                                     {healthy: []string{"1"}, allocatable: 1, waiting: []*corev1.Pod{user("a", 1, 1)}, want: map[types.UID]string{}},
		"the oldest first":                          {healthy: []string{"1", "2"}, allocatable: 2, waiting: []*corev1.Pod{user("young", 3, 1), user("old", 1, 1), user("older", 0, 1)}, want: map[types.UID]string{"young": few}},
		"none is overtaken":                         {healthy: []string{"1"}, allocatable: 1, waiting: []*corev1.Pod{user("two", 1, 1, 1), user("one", 2, 1)}, want: map[types.UID]string{"two": few, "one": few}},
		"others have some":                          {healthy: []string{"1", "2"}, allocatable: 2, shown: []*corev1.Pod{user("runs", 9, 1)}, waiting: []*corev1.Pod{user("a", 1, 1), user("b", 2, 1)}, want: map[types.UID]string{"b": few}},
		"its own device is there": {
			healthy: []string{"1", "2"}, allocatable: 2, shown: []*corev1.Pod{user("runs", 9, 1)}, waiting: []*corev1.Pod{user("a", 1, 1)},
			allocated: map[types.UID]map[string]sets.Set[string]{"a": ids("2"), "runs": ids("1")}, want: map[types.UID]string{},
		},
		"another one is there": {
			healthy: []string{"1"}, allocatable: 1, waiting: []*corev1.Pod{user("a", 1, 1)},
			allocated: map[types.UID]map[string]sets.Set[string]{"a": ids("2")}, want: map[types.UID]string{"a": "does not have the pod's devices of devices.example/thing yet: 2"},
		},
	} {
		s := State{Resources: things(), Healthy: ids(c.healthy...), Waiting: c.waiting, Shown: c.shown}
		s.Allocatable = corev1.ResourceList{thing: *resource.NewQuantity(int64(c.allocatable), resource.DecimalSI)}
		if c.allocated != nil {
			s.Allocated = c.allocated
		}
		got := Plan(s)
		for uid, reason := range got {
			if want := c.want[uid]; want != "" && strings.Contains(reason, want) {
				got[uid] = want
			}
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// An init container leaves its devices to those after it, a sidecar does not.
func TestRequests(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	p := user("a", 0, 1, 1)
	p.Spec.InitContainers = user("b", 0, 1, 3).Spec.Containers
	p.Spec.InitContainers[0].RestartPolicy = &always
	if got := things().requests(p)[thing]; got != 4 { // the sidecar's and the init container's
		t.Error(got)
	}
	p.Spec.InitContainers = p.Spec.InitContainers[:1]
	if got := things().requests(p)[thing]; got != 3 {
		t.Error(got)
	}
}

// The checkpoint is the kubelet's (pkg/kubelet/cm/devicemanager/checkpoint).
func TestReadResources(t *testing.T) {
	dir := t.TempDir()
	r, err := readResources(dir)
	if err != nil || r.All || len(r.Known) > 0 {
		t.Errorf("without a checkpoint: %+v, %v", r, err)
	}
	write := func(text string) {
		if err := os.WriteFile(filepath.Join(dir, checkpointFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"Data":{"PodDeviceEntries":[{"PodUID":"u","ContainerName":"c","ResourceName":"x.example/gone","DeviceIDs":{"-1":["d1"],"0":["d2"]},"AllocResp":"CgA="}],
		"RegisteredDevices":{"devices.example/thing":["1","2"]}},"Checksum":1}`)
	r, err = readResources(dir)
	if err != nil || r.All || !r.Known.Equal(sets.New(thing, "x.example/gone")) || !r.Allocated["u"]["x.example/gone"].Equal(sets.New("d1", "d2")) {
		t.Errorf("%+v, %v", r, err)
	}
	write(`{"Data":`)
	if r, err = readResources(dir); err == nil || !r.All {
		t.Errorf("of half a checkpoint: %+v, %v", r, err)
	}
}
