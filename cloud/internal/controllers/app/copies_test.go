package app_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/cloud/internal/controllers/app"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// single is a singleton that runs on edge1, and whose status has that copy.
func single(t *testing.T, change func(*v1alpha1.EdgeApp)) *world {
	t.Helper()
	w := &world{dead: fencer{}}
	w.App = &v1alpha1.EdgeApp{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", UID: "app"}, Spec: v1alpha1.EdgeAppSpec{DesignatedNode: "edge1", Singleton: true}}
	w.App.Spec.Template.Raw = []byte(`{"spec":{"terminationGracePeriodSeconds":10,"containers":[{"name":"c","image":"i"}]}}`)
	if change != nil {
		change(w.App)
	}
	w.Nodes, w.Claims = map[string]app.Node{}, map[string]*corev1.PersistentVolumeClaim{}
	w.Fencer, w.Storage = w.dead, func() (app.Storage, error) { return w.storage, nil }
	w.Heard = func(string) (time.Time, error) { return now.Add(-time.Minute), nil }
	w.node("edge1", true, time.Hour)
	w.node("edge2", true, time.Hour)
	w.render(t)
	w.pod("p1", "edge1")
	w.plan(t, now.Add(-time.Minute))
	return w
}

// plan plans and takes the status over.
func (w *world) plan(t *testing.T, at time.Time) *app.Plan {
	t.Helper()
	p, err := w.Plan(at)
	if err != nil {
		t.Fatal(err)
	}
	if p.Status != nil {
		w.App.Status = *p.Status
	}
	return p
}

// gone removes the pod from the cluster, and a new one is made.
func (w *world) gone(change ...func(*corev1.Pod)) {
	last := w.Pods[0]
	for _, c := range change {
		c(last)
	}
	w.Pods, w.Removed = nil, []*corev1.Pod{last}
	w.pod("p2", "", gated)
}

func running(p *corev1.Pod) {
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
}

func exited(p *corev1.Pod) {
	p.Status.Phase = corev1.PodSucceeded
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}}
}

// collected sets the status that Kubernetes' garbage collector of pods leaves before it removes a
// pod whose Node is gone (pkg/controller/podgc, markFailedAndDeletePodWithCondition).
func collected(p *corev1.Pod) {
	p.Status.Phase = corev1.PodFailed
	p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByPodGC"})
}

// However the pod of a singleton was deleted, the next one starts once its node has reported again,
// or is out of service.
func TestClaims_07_SingletonIsHeldUntilItsNodeAnswers(t *testing.T) {
	away := func(w *world) { w.node("edge1", false, time.Hour) }
	forgotten := func(w *world) { w.Removed = nil }
	heard := func(after time.Duration) func(*world) {
		return func(w *world) {
			w.Heard = func(string) (time.Time, error) { return now.Add(after), nil }
		}
	}
	for name, tc := range map[string]struct {
		do     []func(*world)
		after  time.Duration // of the plan that counts
		want   string
		reason string
		text   string
	}{
		"ended by its kubelet": {do: []func(*world){func(w *world) { w.gone(exited) }}, want: "admit p2"},
		"deleted by force, the node is cut off": {
			do: []func(*world){func(w *world) { w.gone(running) }, away}, reason: "PodRemoved", text: "kubectl taint node edge1 node.kubernetes.io/out-of-service",
		},
		"deleted by force in the first moments of a cut, as long as the node is called Ready": {
			do: []func(*world){func(w *world) { w.gone(running) }, heard(-time.Second)}, after: time.Hour, reason: "EndNotReported",
		},
		"deleted by force while no leader looked": {
			do: []func(*world){func(w *world) { w.gone(running) }, forgotten, away}, reason: "PodRemoved",
		},
		"ended by its kubelet while no leader looked, the node reports": {
			do: []func(*world){func(w *world) { w.gone(exited) }, forgotten, heard(41 * time.Second)}, after: 42 * time.Second, want: "admit p2",
		},
		"the node is back, and has had too little time": {
			do: []func(*world){func(w *world) { w.gone(running) }, heard(39 * time.Second)}, after: 42 * time.Second, reason: "EndNotReported",
		},
		"the node is back": {do: []func(*world){func(w *world) { w.gone(running) }, heard(41 * time.Second)}, after: 42 * time.Second, want: "admit p2"},
		"its Lease is of the future": {
			do: []func(*world){func(w *world) { w.gone(running) }, heard(24 * time.Hour)}, after: time.Hour, reason: "EndNotReported",
		},
		"the node is back and says that it runs": {
			do: []func(*world){func(w *world) { w.gone(running) }, heard(41 * time.Second), func(w *world) {
				at := metav1.NewTime(now.Add(time.Minute))
				w.App.Status.Nodes = []v1alpha1.EdgeAppNode{{Name: "edge1", Running: true, CollectTime: &at}}
			}}, after: 42 * time.Second, reason: "EndNotReported",
		},
		"the Node was deleted": {
			do:     []func(*world){func(w *world) { w.gone(running, collected); delete(w.Nodes, "edge1") }},
			reason: "NodeDeleted", text: "kubectl annotate edgeapp -n ns a --overwrite skerry.io/ended=p1",
		},
		"the Node was deleted, and a person says that the copy has ended": {
			do: []func(*world){func(w *world) {
				w.gone(running, collected)
				delete(w.Nodes, "edge1")
				w.App.Annotations = map[string]string{v1alpha1.EdgeAppEnded: "p1"}
			}}, want: "admit p2",
		},
		"a person said so of another copy": {
			do: []func(*world){func(w *world) {
				w.gone(running, collected)
				delete(w.Nodes, "edge1")
				w.App.Annotations = map[string]string{v1alpha1.EdgeAppEnded: "p0"}
			}}, reason: "NodeDeleted",
		},
		"out of service": {
			do: []func(*world){func(w *world) { w.gone(running); w.node("edge1", false, time.Hour, outOfService) }}, want: "admit p2",
		},
		"its ReplicaSet was deleted": {
			do: []func(*world){func(w *world) {
				w.gone(running)
				w.Orphans, w.Removed = w.Removed, nil
				deleted(w.Orphans[0])
			}, away}, reason: "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := single(t, nil)
			for _, do := range tc.do {
				do(w)
			}
			w.plan(t, now)
			p := w.plan(t, now.Add(tc.after))
			got := ""
			if p.Admit != nil {
				got = "admit " + p.Admit.Name
			}
			if got != tc.want {
				t.Errorf("want %q, got %q; copies %+v", tc.want, got, w.App.Status.Copies)
			}
			i := slices.IndexFunc(w.App.Status.Conditions, func(c metav1.Condition) bool { return c.Type == v1alpha1.AppAwaitingFencing })
			if tc.reason != "" && (i < 0 || w.App.Status.Conditions[i].Reason != tc.reason || !strings.Contains(w.App.Status.Conditions[i].Message, tc.text)) {
				t.Errorf("want a condition that says %s, %q; got %+v", tc.reason, tc.text, w.App.Status.Conditions)
			}
			if tc.want != "" && i >= 0 {
				t.Errorf("it is not held, yet a condition says %s", w.App.Status.Conditions[i].Message)
			}
		})
	}
}

// A pod that was bound and deleted between two plans counts too.
func TestClaims_07_PodThatNoPlanHasSeenCounts(t *testing.T) {
	w := single(t, nil)
	w.App.Status.Copies = nil
	w.gone(running)
	w.node("edge1", false, time.Hour)
	if p := w.plan(t, now); p.Admit != nil {
		t.Errorf("admitted %s while the first may run", p.Admit.Name)
	}
}

// Only a singleton that may move is held by a device that boots without a link.
func TestClaims_34_WhichPodsWaitAtABoot(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*v1alpha1.EdgeApp)
		want   bool
	}{
		"a singleton":           {want: true},
		"prefers availability":  {change: func(a *v1alpha1.EdgeApp) { a.Spec.Failover.OfflineStart = true }},
		"never moves":           {change: func(a *v1alpha1.EdgeApp) { a.Spec.Affinity = v1alpha1.AppRequired }},
		"two copies do no harm": {change: func(a *v1alpha1.EdgeApp) { a.Spec.Singleton = false }},
		"its template says it does": {change: func(a *v1alpha1.EdgeApp) {
			a.Spec.Singleton, a.Spec.Template.Raw = false, []byte(`{"metadata":{"annotations":{"skerry.io/held-at-boot":"true"}},"spec":{}}`)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := single(t, tc.change)
			if got := w.ReplicaSet.Spec.Template.Annotations[v1alpha1.EdgeAppHeldAtBoot]; (got == "true") != tc.want {
				t.Errorf("want %v, got %v", tc.want, fmt.Sprint(w.ReplicaSet.Spec.Template.Annotations))
			}
		})
	}
}
