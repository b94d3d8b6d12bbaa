package app_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/cloud/internal/controllers/app"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

var now = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

// world is a state that a case changes. The application runs on edge1, which is where it belongs.
type world struct {
	app.State
	storage app.Storage
	dead    fencer
}

type fencer map[string]bool

func (f fencer) Dead(node string) (string, bool) { return "its neighbours", f[node] }

func (w *world) node(name string, ready bool, since time.Duration, change ...func(*app.Node)) {
	n := app.Node{Name: name, Ready: ready, Since: now.Add(-since), BootID: "boot-" + name, Edge: true, Pool: "plant", Labels: v1alpha1.EdgeOwnLabel + "=\n"}
	for _, c := range change {
		c(&n)
	}
	w.Nodes[name] = n
}

func (w *world) pod(name, node string, change ...func(*corev1.Pod)) {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(now.Add(time.Duration(len(w.Pods)) * time.Second)),
		Labels: map[string]string{v1alpha1.EdgeAppLabel: "a", v1alpha1.EdgeAppRevisionLabel: w.ReplicaSet.Labels[v1alpha1.EdgeAppRevisionLabel]},
	}}
	p.Spec.NodeName = node
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	for _, c := range change {
		c(p)
	}
	w.Pods = append(w.Pods, p)
}

func gated(p *corev1.Pod) {
	p.Spec.NodeName = ""
	p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: v1alpha1.EdgeAppGate}}
	p.Status = corev1.PodStatus{Phase: corev1.PodPending}
}

func deleted(p *corev1.Pod) { at := metav1.NewTime(now); p.DeletionTimestamp = &at }

// render makes the ReplicaSet as it must be.
func (w *world) render(t *testing.T) {
	t.Helper()
	var err error
	if w.ReplicaSet, err = app.Render(w.App); err != nil {
		t.Fatal(err)
	}
}

func (w *world) volume(replicated bool) {
	w.App.Spec.Volumes = []v1alpha1.AppVolume{{Name: "data", Replicated: replicated, StorageClassName: "longhorn", Size: "1Gi"}}
	w.Claims["a-data"] = &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a-data", OwnerReferences: []metav1.OwnerReference{owner()}},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pv-a"},
	}
	w.storage.Attachments = []app.Attachment{
		{Name: "va-a-1", Node: "edge1", Volume: "pv-a"}, {Name: "va-b-1", Node: "edge1", Volume: "pv-b"}, {Name: "va-a-2", Node: "edge2", Volume: "pv-a"},
	}
	w.storage.Replicas = func(string) ([]string, bool) { return []string{"edge1", "edge2"}, true }
}

func owner() metav1.OwnerReference {
	yes := true
	return metav1.OwnerReference{Kind: "EdgeApp", Name: "a", UID: "app", Controller: &yes}
}

// planLines describes a plan: its actions, in order, and the phase.
func planLines(p *app.Plan) (text []string) {
	for _, c := range p.Claims {
		text = append(text, "claim "+c.Name)
	}
	if p.Apply != nil {
		text = append(text, fmt.Sprintf("apply %d", *p.Apply.Spec.Replicas))
	}
	for _, a := range p.Detach {
		text = append(text, "detach "+a.Name)
	}
	for _, d := range p.Delete {
		verb := "delete "
		if d.Force {
			verb = "force "
		}
		text = append(text, verb+d.Pod.Name)
	}
	if p.Evict != nil {
		text = append(text, "evict "+p.Evict.Name)
	}
	if p.Admit != nil {
		text = append(text, "admit "+p.Admit.Name)
	}
	if p.Status != nil {
		text = append(text, string(p.Status.Phase))
	}
	return text
}

func outOfService(n *app.Node) { n.OutOfService = true }

func TestPlan(t *testing.T) {
	tests := map[string]struct {
		spec   func(*world) // before the ReplicaSet is rendered
		set    func(*world)
		want   []string
		reason string // of the condition that explains a refusal
	}{
		"new": {
			set: func(w *world) { w.ReplicaSet, w.Pods = nil, nil }, want: []string{"apply 1", "Pending"},
		},
		"new with a volume": {
			spec: func(w *world) { w.volume(true); w.Claims = nil },
			set:  func(w *world) { w.ReplicaSet, w.Pods = nil, nil }, want: []string{"claim a-data", "apply 1", "Pending"},
		},
		"unknown node": {
			set: func(w *world) { w.ReplicaSet, w.Pods, w.Nodes = nil, nil, nil }, want: []string{"Refused"}, reason: "NodeUnknown",
		},
		"a template that is none": {
			set: func(w *world) { w.App.Spec.Template.Raw = []byte(`{"spec":{"containers":"c"}}`) }, want: []string{"Refused"}, reason: "TemplateInvalid",
		},
		"a template with a field that pods don't have": {
			set: func(w *world) { w.App.Spec.Template.Raw = []byte(`{"spec":{"replicas":3}}`) }, want: []string{"Refused"}, reason: "TemplateInvalid",
		},
		"a ReplicaSet of another owner": {
			set: func(w *world) { w.ReplicaSet = &appsv1.ReplicaSet{} }, want: []string{"Refused"}, reason: "NameTaken",
		},
		"runs": {want: []string{"Running"}},
		"switched off": {
			set: func(w *world) { no := false; w.App.Spec.Activate = &no }, want: []string{"apply 0", "Inactive"},
		},
		"lost too short a time": {
			set: func(w *world) { w.node("edge1", false, 14*time.Second) }, want: []string{"NotReady"},
		},
		"lost, no fencing": {
			set: func(w *world) { w.node("edge1", false, 15*time.Second) }, want: []string{"delete p1", "NotReady"},
		},
		"lost, no fencing, deleted already": {
			set: func(w *world) {
				w.node("edge1", false, time.Hour)
				deleted(w.Pods[0])
				w.pod("p2", "edge2")
			}, want: []string{"Running"},
		},
		"lost, Required": {
			spec: func(w *world) { w.App.Spec.Affinity = v1alpha1.AppRequired },
			set:  func(w *world) { w.node("edge1", false, time.Hour, outOfService) }, want: []string{"NotReady"},
		},
		"lost, a singleton": {
			spec: func(w *world) { w.App.Spec.Singleton = true },
			set:  func(w *world) { w.node("edge1", false, time.Hour) }, want: []string{"AwaitingFencing"}, reason: "NotConfirmed",
		},
		"lost, a singleton whose pod was deleted": {
			spec: func(w *world) { w.App.Spec.Singleton = true },
			set: func(w *world) {
				w.node("edge1", false, time.Hour)
				deleted(w.Pods[0])
				w.pod("p2", "", gated)
			}, want: []string{"AwaitingFencing"}, reason: "NotConfirmed",
		},
		"a person says that it is dead": {
			spec: func(w *world) { w.App.Spec.Singleton = true },
			set:  func(w *world) { w.node("edge1", false, time.Hour, outOfService) }, want: []string{"force p1", "NotReady"},
		},
		"a person says so of a node that is Ready": {
			spec: func(w *world) { w.App.Spec.Singleton = true },
			set:  func(w *world) { w.node("edge1", true, time.Hour, outOfService) }, want: []string{"Running"},
		},
		"its neighbours say that it is dead": {
			spec: func(w *world) { w.App.Spec.Singleton = true },
			set:  func(w *world) { w.node("edge1", false, time.Hour); w.dead["edge1"] = true }, want: []string{"force p1", "NotReady"},
		},
		"a new pod where no other is": {
			spec: func(w *world) { w.App.Spec.Singleton = true },
			set:  func(w *world) { w.Pods = nil; w.pod("p2", "", gated) }, want: []string{"admit p2", "Pending"},
		},
		"a new pod where another one ends": {
			spec: func(w *world) { w.App.Spec.Singleton = true },
			set:  func(w *world) { deleted(w.Pods[0]); w.pod("p2", "", gated) }, want: []string{"Running"},
		},
		"two new pods": {
			spec: func(w *world) { w.App.Spec.Singleton = true },
			set:  func(w *world) { w.Pods = nil; w.pod("p3", "", gated); w.pod("p2", "", gated) }, want: []string{"admit p2", "Pending"},
		},
		"dead, its volume has another replica": {
			spec: func(w *world) { w.volume(true) },
			set:  func(w *world) { w.node("edge1", false, time.Hour, outOfService) }, want: []string{"detach va-a-1", "force p1", "NotReady"},
		},
		"dead, with the only healthy replica": {
			spec: func(w *world) {
				w.volume(true)
				w.storage.Replicas = func(string) ([]string, bool) { return []string{"edge1"}, true }
			},
			set: func(w *world) { w.node("edge1", false, time.Hour, outOfService) }, want: []string{"FailoverRefused"}, reason: "NoHealthyReplica",
		},
		"dead, the other replica's node is not Ready": {
			spec: func(w *world) { w.volume(true) },
			set: func(w *world) {
				w.node("edge1", false, time.Hour, outOfService)
				w.node("edge2", false, time.Second)
			}, want: []string{"FailoverRefused"}, reason: "NoHealthyReplica",
		},
		"dead, nothing knows of replicas": {
			spec: func(w *world) {
				w.volume(true)
				w.storage.Replicas = func(string) ([]string, bool) { return nil, false }
			},
			set: func(w *world) { w.node("edge1", false, time.Hour, outOfService) }, want: []string{"FailoverRefused"}, reason: "ReplicasUnknown",
		},
		"dead, with a local volume": {
			spec: func(w *world) { w.volume(false) },
			set:  func(w *world) { w.node("edge1", false, time.Hour, outOfService) }, want: []string{"FailoverRefused"}, reason: "VolumeLocal",
		},
		"lost, with a volume, not confirmed": {
			spec: func(w *world) { w.volume(true) },
			set:  func(w *world) { w.node("edge1", false, time.Hour) }, want: []string{"AwaitingFencing"}, reason: "NotConfirmed",
		},
		"home is Ready for long": {
			set: func(w *world) { w.elsewhere(true) }, want: []string{"evict p2", "Running"},
		},
		"home is Ready for long, not asked for": {
			set: func(w *world) { w.elsewhere(false) }, want: []string{"Running"},
		},
		"home is Ready for a moment": {
			set: func(w *world) { w.elsewhere(true); w.node("edge1", true, time.Minute) }, want: []string{"Running"},
		},
		"home is cordoned": {
			set: func(w *world) {
				w.elsewhere(true)
				w.node("edge1", true, time.Hour, func(n *app.Node) { n.Closed = true })
			}, want: []string{"Running"},
		},
		"a return was tried in this boot": {
			set: func(w *world) {
				w.elsewhere(true)
				w.App.Status.LastFailback = &v1alpha1.AppReturn{BootID: "boot-edge1", PodUID: "another"}
			}, want: []string{"Running"},
		},
		"a return was tried in the boot before": {
			set: func(w *world) {
				w.elsewhere(true)
				w.App.Status.LastFailback = &v1alpha1.AppReturn{BootID: "before", PodUID: "another"}
			}, want: []string{"evict p2", "Running"},
		},
		"the template changed": {
			set: func(w *world) { w.Pods[0].Labels[v1alpha1.EdgeAppRevisionLabel] = "older" }, want: []string{"delete p1", "Running"},
		},
		"the template changed while the node is cut off": {
			set: func(w *world) {
				w.Pods[0].Labels[v1alpha1.EdgeAppRevisionLabel] = "older"
				w.node("edge1", false, time.Second)
			}, want: []string{"NotReady"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := &world{dead: fencer{}}
			w.App = &v1alpha1.EdgeApp{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", UID: "app"}, Spec: v1alpha1.EdgeAppSpec{DesignatedNode: "edge1"}}
			w.App.Spec.Template.Raw = []byte(`{"spec":{"containers":[{"name":"c","image":"i"}]}}`)
			w.Nodes, w.Claims = map[string]app.Node{}, map[string]*corev1.PersistentVolumeClaim{}
			w.Fencer, w.Storage = w.dead, func() (app.Storage, error) { return w.storage, nil }
			w.node("edge1", true, time.Hour)
			w.node("edge2", true, time.Hour)
			if tc.spec != nil {
				tc.spec(w)
			}
			w.render(t)
			w.pod("p1", "edge1")
			if tc.set != nil {
				tc.set(w)
			}
			p, err := w.Plan(now)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, planLines(p)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if tc.reason != "" && !slices.ContainsFunc(p.Status.Conditions, func(c metav1.Condition) bool { return c.Reason == tc.reason && c.Message != "" }) {
				t.Errorf("no condition has the reason %s: %+v", tc.reason, p.Status.Conditions)
			}
			// The next plan begins with the recorded actions of this one, and does not repeat them.
			if p.Status == nil {
				return
			}
			w.App.Status = *p.Status
			again, err := w.Plan(now)
			if err != nil {
				t.Fatal(err)
			}
			if again.Status != nil {
				t.Errorf("the second plan has another status: %s", cmp.Diff(*p.Status, *again.Status))
			}
			for _, e := range again.Events {
				if e.Reason != "NodeConfirmedDead" { // reported for as long as the pod is there
					t.Errorf("reported twice: %+v", e)
				}
			}
		})
	}
}

// elsewhere puts the application on edge2, while its home is Ready.
func (w *world) elsewhere(back bool) {
	w.App.Spec.Failback.Enable = back
	w.Pods = nil
	w.pod("p2", "edge2")
}

// A move away from home is a fail-over and counts; the return does not.
func TestPlan_Moves(t *testing.T) {
	w := &world{dead: fencer{}}
	w.App = &v1alpha1.EdgeApp{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", UID: "app"}, Spec: v1alpha1.EdgeAppSpec{DesignatedNode: "edge1"}}
	w.App.Spec.Template.Raw = []byte(`{"spec":{}}`)
	w.Nodes = map[string]app.Node{}
	for _, n := range []string{"edge1", "edge2", "edge3"} {
		w.node(n, true, time.Hour)
	}
	w.render(t)
	var moves []string
	for _, on := range []string{"edge1", "edge2", "edge3", "edge1"} {
		w.Pods = nil
		w.pod("p", on)
		p, err := w.Plan(now)
		if err != nil {
			t.Fatal(err)
		}
		if p.Status != nil {
			w.App.Status = *p.Status
		}
		line := fmt.Sprint(on, " ", w.App.Status.Failovers)
		for _, e := range p.Events {
			line += " " + e.Reason
		}
		moves = append(moves, line)
	}
	want := "edge1 0, edge2 1 FailedOver, edge3 2 FailedOver, edge1 2 FailedBack"
	if got := strings.Join(moves, ", "); got != want {
		t.Errorf("want %s\ngot  %s", want, got)
	}
}
