package drain_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/agents/drain"
)

func TestDrain_01_IdleNodeGoesThroughThePhases(t *testing.T) {
	l := newLab(t)
	l.start()
	l.ask("one", v1alpha1.OperationDrain)
	l.awaitStage("one", drain.Done)
	want := []v1alpha1.DrainPhase{
		v1alpha1.DrainNotRequested, v1alpha1.DrainRequested, v1alpha1.DrainStarting, v1alpha1.DrainCordoned, v1alpha1.DrainComplete,
	}
	if diff := cmp.Diff(want, l.store.seen()); diff != "" {
		t.Errorf("the phases (-want +got):\n%s", diff)
	}
	if cordoned, ours := l.cordon(); !cordoned || !ours {
		t.Errorf("cordoned %v, ours %v; want both", cordoned, ours)
	}
	l.stop()
	if diff := cmp.Diff([]string{"request", "starting", "cordoned", "attempt", "complete"}, l.logs.steps()); diff != "" {
		t.Errorf("the log (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"OperationWaiting", "DrainRequested", "DrainStarting", "DrainCordoned", "DrainAttempt", "DrainComplete", "OperationDone"}, l.reasons()); diff != "" {
		t.Errorf("the events (-want +got):\n%s", diff)
	}
	if n := l.completed(); n != 1 {
		t.Errorf("%d drains were counted", n)
	}
}

func TestDrain_02_LoosenedBudgetEndsTheSameAttempt(t *testing.T) {
	l := newLab(t)
	pod := l.pod("web")
	l.pdb("keep-web", "web", 1)
	l.start()
	l.ask("one", v1alpha1.OperationReboot)
	s := l.await("the pod is blocked", func(s drain.State) bool { return len(s.Drain.Blocked) == 1 })
	if b := s.Drain.Blocked[0]; b.Name != "web" || b.PDB != "keep-web" || b.Reason != v1alpha1.BlockedByBudget {
		t.Errorf("blocked: %+v", b)
	}
	if !l.hasPod(pod.UID) || len(l.hooks.runs()) > 0 {
		t.Error("the pod must stay, and nothing go ahead")
	}
	patch := []byte(`{"spec":{"minAvailable":0}}`)
	l.must(l.admin.PolicyV1().PodDisruptionBudgets(l.name).Patch(t.Context(), "keep-web", types.MergePatchType, patch, metav1.PatchOptions{}))
	o := l.awaitStage("one", drain.Running)
	if o.Attempts != 1 || len(o.Blocked) > 0 {
		t.Errorf("%d attempts, blocked %v; want the same attempt, and none blocked", o.Attempts, o.Blocked)
	}
}

func TestDrain_03_TwoBudgetsFailAfterFiveAttempts(t *testing.T) {
	l := newLab(t)
	pod := l.pod("web")
	l.pdb("first", "web", 1)
	l.pdb("second", "web", 1)
	l.start()
	l.ask("one", v1alpha1.OperationReboot)
	o := l.awaitStage("one", drain.Failed)
	if o.Attempts != 5 || o.Phase != v1alpha1.DrainFailed || !strings.Contains(o.Message, "web") {
		t.Errorf("%d attempts, %s, %q; want 5, FailedDrain and the reason", o.Attempts, o.Phase, o.Message)
	}
	if len(o.Blocked) != 1 || o.Blocked[0].PDB != "first, second" {
		t.Errorf("blocked: %+v", o.Blocked)
	}
	l.awaitCordon(false, false)
	if !l.hasPod(pod.UID) || len(l.hooks.runs()) > 0 {
		t.Error("the pod must stay, and nothing go ahead")
	}
	l.stop()
	want := []string{"request", "starting", "cordoned"}
	for range 4 {
		want = append(want, "attempt", "evict-error", "failure")
	}
	if diff := cmp.Diff(append(want, "attempt", "evict-error", "giving-up"), l.logs.steps()); diff != "" {
		t.Errorf("the log (-want +got):\n%s", diff)
	}
	if all := l.reasons(); !slices.Contains(all, "DrainBlocked") || !slices.Contains(all, "DrainDrainRetrying") || !slices.Contains(all, "DrainFailedDrain") || !slices.Contains(all, "OperationFailed") {
		t.Errorf("the events: %v", all)
	}
	if n := l.completed(); n != 0 {
		t.Errorf("%d drains were counted", n)
	}
}

// Our cordon is removed in mid-drain: the next attempt sets it again, or pods would come as fast as
// they go.
func TestDrain_03_CordonTakenBackIsSetAgain(t *testing.T) {
	l := newLab(t)
	l.pod("web")
	l.pdb("first", "web", 1)
	l.pdb("second", "web", 1)
	l.rules.Attempts = 1000
	l.start()
	l.ask("one", v1alpha1.OperationReboot)
	l.await("an attempt has failed", func(s drain.State) bool { return s.Drain.Phase == v1alpha1.DrainRetrying })
	l.must(l.admin.CoreV1().Nodes().Patch(t.Context(), l.name, types.MergePatchType, []byte(`{"spec":{"unschedulable":false}}`), metav1.PatchOptions{}))
	l.awaitCordon(true, true)
	l.eventually("it was set twice", func() bool { return l.updates.Load() == 2 })
	l.must(nil, l.agent.Cancel(t.Context(), "one"))
	l.awaitCordon(false, false)
}

func TestDrain_04_TenthCordonWorksOrNothingIsEvicted(t *testing.T) {
	for name, conflicts := range map[string]int32{"nine": 9, "ten": 10} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			pod := l.pod("web")
			l.conflicts.Store(conflicts)
			l.start()
			l.ask("one", v1alpha1.OperationDrain)
			if conflicts == 9 {
				l.awaitStage("one", drain.Done)
				return
			}
			if o := l.awaitStage("one", drain.Failed); o.Phase != v1alpha1.DrainFailedCordon || o.Attempts != 0 {
				t.Errorf("%s after %d attempts, want FailedCordon after none", o.Phase, o.Attempts)
			}
			if !l.hasPod(pod.UID) {
				t.Error("a pod was evicted")
			}
			l.awaitCordon(false, false)
			l.stop()
			if diff := cmp.Diff([]string{"request", "starting", "cordon-failure"}, l.logs.steps()); diff != "" {
				t.Errorf("the log (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDrain_05_DaemonSetAndStaticPodsStay(t *testing.T) {
	l := newLab(t)
	labels := map[string]string{"app": "agent"}
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
		NodeSelector: map[string]string{"name": l.name}, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		Containers: []corev1.Container{{Name: "c", Image: "example.invalid/none:1"}},
	}}
	l.must(l.admin.AppsV1().DaemonSets(l.name).Create(t.Context(), &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "agent"}, Spec: appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template},
	}, metav1.CreateOptions{}))
	l.eventually("the DaemonSet's pod is on the node", func() bool { return len(l.pods()) == 1 })
	static := l.pod("static", func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} })
	bare := l.pod("bare")
	scratch := l.pod("scratch", func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	})
	l.start()
	l.ask("one", v1alpha1.OperationDrain)
	l.awaitStage("one", drain.Done)
	if !l.hasPod(static.UID) || len(l.pods()) != 2 {
		t.Errorf("there are %v; the static pod and the DaemonSet's must stay", l.pods())
	}
	if l.hasPod(bare.UID) || l.hasPod(scratch.UID) {
		t.Error("bare pods and those with an emptyDir must go")
	}
}

func TestDrain_05_PinnedPodIsReported(t *testing.T) {
	l := newLab(t)
	labels := map[string]string{"app": "pinned"}
	one := int32(1)
	grace := int64(1)
	l.must(l.admin.AppsV1().ReplicaSets(l.name).Create(t.Context(), &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: "pinned"}, Spec: appsv1.ReplicaSetSpec{
			Replicas: &one, Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
					NodeName: l.name, TerminationGracePeriodSeconds: &grace, Containers: []corev1.Container{{Name: "c", Image: "example.invalid/none:1"}},
				},
			},
		},
	}, metav1.CreateOptions{}))
	l.eventually("the pod is there", func() bool { return len(l.pods()) == 1 })
	l.rules.Attempts = 1
	l.start()
	l.ask("one", v1alpha1.OperationDrain)
	o := l.awaitStage("one", drain.Failed)
	if len(o.Blocked) != 1 || o.Blocked[0].Reason != v1alpha1.BlockedPinned {
		t.Errorf("blocked: %+v, want one that is pinned", o.Blocked)
	}
	l.awaitCordon(false, false)
}

func TestDrain_06_SecondRequestJoins(t *testing.T) {
	l := newLab(t)
	l.pod("web")
	l.pdb("keep-web", "web", 1)
	l.start()
	l.ask("update", v1alpha1.OperationImageUpdate, func(s *v1alpha1.NodeOperationSpec) { s.Image = "v2" })
	l.await("the pod is blocked", func(s drain.State) bool { return len(s.Drain.Blocked) == 1 })
	l.ask("reboot", v1alpha1.OperationReboot)
	s := l.await("it has joined", func(s drain.State) bool { o := operation(s, "reboot"); return o != nil && o.Asked })
	if s.Drain.Attempts != 1 || operation(s, "reboot").Stage != drain.Waiting {
		t.Errorf("%d attempts, %s; want the one that runs, and to wait", s.Drain.Attempts, operation(s, "reboot").Stage)
	}
	l.must(nil, l.admin.PolicyV1().PodDisruptionBudgets(l.name).Delete(t.Context(), "keep-web", metav1.DeleteOptions{}))
	l.awaitStage("update", drain.Running)
	l.awaitStage("reboot", drain.Running)
	l.eventually("both hooks have run", func() bool { return slices.Equal(l.hooks.runs(), []string{"ImageUpdate", "Reboot"}) })
	l.stop()
	l.boot = "boot-2"
	l.start()
	for _, name := range []string{"update", "reboot"} {
		if o := l.awaitStage(name, drain.Done); o.BootBefore != "boot-1" || o.BootAfter != "boot-2" {
			t.Errorf("%s: boots %s and %s", name, o.BootBefore, o.BootAfter)
		}
	}
}

func TestDrain_07_CancelStopsEvictions(t *testing.T) {
	l := newLab(t)
	pod := l.pod("web")
	l.pdb("keep-web", "web", 1)
	l.start()
	l.ask("one", v1alpha1.OperationReboot)
	l.await("the pod is blocked", func(s drain.State) bool { return len(s.Drain.Blocked) == 1 })
	l.must(nil, l.agent.Cancel(t.Context(), "one"))
	l.awaitStage("one", drain.Cancelled)
	l.awaitCordon(false, false)
	l.must(nil, l.admin.PolicyV1().PodDisruptionBudgets(l.name).Delete(t.Context(), "keep-web", metav1.DeleteOptions{}))
	if s := l.agent.Status(); s.Drain.Phase != v1alpha1.DrainNotRequested || !l.hasPod(pod.UID) || len(l.hooks.runs()) > 0 {
		t.Errorf("after the cancel: %s", l.dump())
	}
}

func TestDrain_07_EdgecoreKilledResumes(t *testing.T) {
	l := newLab(t)
	l.pod("web")
	l.pdb("keep-web", "web", 1)
	l.start()
	l.ask("one", v1alpha1.OperationReboot)
	l.await("the pod is blocked", func(s drain.State) bool { return len(s.Drain.Blocked) == 1 })
	l.stop()
	l.rules.Timeout, l.rules.Attempts = time.Nanosecond, 1 // a change of the configuration in mid-drain
	l.start()
	l.await("the attempt goes on", func(s drain.State) bool { return s.Drain.Attempting && s.Drain.Phase == v1alpha1.DrainCordoned })
	l.must(nil, l.admin.PolicyV1().PodDisruptionBudgets(l.name).Delete(t.Context(), "keep-web", metav1.DeleteOptions{}))
	if o := l.awaitStage("one", drain.Running); o.Attempts != 1 {
		t.Errorf("%d attempts, want the first to go on", o.Attempts)
	}
	if cordoned, ours := l.cordon(); !cordoned || !ours || l.updates.Load() != 1 {
		t.Error("the node must be cordoned once")
	}
}

// In each phase edgecore is killed as soon as that is on the disk: its later actions have no
// effect. There is still one attempt, one cordon, one eviction and one reboot.
func TestDrain_07_KilledInEveryPhase(t *testing.T) {
	l := newLab(t)
	pod := l.pod("web")
	phases := []v1alpha1.DrainPhase{v1alpha1.DrainRequested, v1alpha1.DrainStarting, v1alpha1.DrainCordoned, v1alpha1.DrainComplete}
	l.store.dies, l.store.died = map[v1alpha1.DrainPhase]bool{}, make(chan v1alpha1.DrainPhase, len(phases))
	for _, p := range phases {
		l.store.dies[p] = true
	}
	l.hooks.dead = &l.store.dead
	l.start()
	l.ask("one", v1alpha1.OperationReboot)
	var killed []v1alpha1.DrainPhase
	for len(killed) < len(phases) {
		select {
		case p := <-l.store.died:
			killed = append(killed, p)
			l.stop()
			l.store.dead.Store(false)
			l.start()
		case <-time.After(patience):
			t.Fatalf("killed in %v\nstate: %s", killed, l.dump())
		}
	}
	if o := l.awaitStage("one", drain.Running); o.Attempts != 1 || !slices.Equal(killed, phases) {
		t.Errorf("%d attempts, killed in %v", o.Attempts, killed)
	}
	l.eventually("the reboot", func() bool { return len(l.hooks.runs()) > 0 })
	if cordoned, ours := l.cordon(); !cordoned || !ours || l.updates.Load() != 1 || l.hasPod(pod.UID) || len(l.hooks.runs()) != 1 {
		t.Errorf("cordoned %v, by us %v, %d updates of the node, hooks %v, pods %v", cordoned, ours, l.updates.Load(), l.hooks.runs(), l.pods())
	}
}

func TestDrain_07_LinkCutUsesUpNoAttempt(t *testing.T) {
	l := newLab(t)
	l.pod("web")
	l.pdb("keep-web", "web", 1)
	l.start()
	l.ask("one", v1alpha1.OperationReboot)
	l.await("the pod is blocked", func(s drain.State) bool { return len(s.Drain.Blocked) == 1 })
	for range 3 {
		l.cut.Store(true) // before the agent is notified
		l.await("it is noticed", func(s drain.State) bool { return strings.Contains(s.Drain.Message, "no answer") })
		l.setLink(false)
		l.await("it waits", func(s drain.State) bool { return strings.Contains(s.Drain.Message, "can't be reached") })
		l.setLink(true)
	}
	l.must(nil, l.admin.PolicyV1().PodDisruptionBudgets(l.name).Delete(t.Context(), "keep-web", metav1.DeleteOptions{}))
	if o := l.awaitStage("one", drain.Running); o.Attempts != 1 {
		t.Errorf("%d attempts, want none used up", o.Attempts)
	}
}

func TestDrain_08_ForcedEndIsNotOverwritten(t *testing.T) {
	for name, off := range map[string]bool{"complete": false, "off": true} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			pod := l.pod("web")
			l.pdb("keep-web", "web", 1)
			l.start()
			l.ask("one", v1alpha1.OperationReboot)
			l.await("the pod is blocked", func(s drain.State) bool { return len(s.Drain.Blocked) == 1 })
			l.must(nil, l.agent.Force(t.Context(), "one", off))
			o := l.awaitStage("one", drain.Running)
			want := v1alpha1.DrainComplete
			if off {
				want = v1alpha1.DrainNotSupported
			}
			l.eventually("the hook has run", func() bool { return slices.Equal(l.hooks.runs(), []string{"Reboot"}) })
			l.must(nil, l.admin.PolicyV1().PodDisruptionBudgets(l.name).Delete(t.Context(), "keep-web", metav1.DeleteOptions{}))
			if s := l.agent.Status(); o.Phase != want || s.Drain.Phase != want || s.Drain.Attempting || !l.hasPod(pod.UID) {
				t.Errorf("after the force: %s", l.dump())
			}
			if n := l.completed(); n == 1 == off {
				t.Errorf("%d drains were counted", n)
			}
		})
	}
}

func TestDrain_08_OfflineDefersOrProceeds(t *testing.T) {
	l := newLab(t)
	l.cut.Store(true)
	l.start()
	l.ask("waits", v1alpha1.OperationReboot)
	l.await("it says so", func(s drain.State) bool { return strings.Contains(s.Drain.Message, "can't be reached") })
	l.ask("proceeds", v1alpha1.OperationImageUpdate, func(s *v1alpha1.NodeOperationSpec) {
		s.Image, s.WhenUnreachable = "v2", v1alpha1.UnreachableProceed
	})
	l.awaitStage("proceeds", drain.Running)
	if o := operation(l.agent.Status(), "waits"); o.Stage != drain.Waiting {
		t.Errorf("the other one is %s, want it to wait", o.Stage)
	}
}

func TestDrain_09_BootRemovesOurCordonAlone(t *testing.T) {
	for name, admin := range map[string]bool{"ours": false, "administrator's": true} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			if admin {
				patch := []byte(`{"spec":{"unschedulable":true}}`)
				l.must(l.admin.CoreV1().Nodes().Patch(t.Context(), l.name, types.MergePatchType, patch, metav1.PatchOptions{}))
			}
			l.start()
			l.ask("one", v1alpha1.OperationReboot)
			l.awaitStage("one", drain.Running)
			if cordoned, ours := l.cordon(); !cordoned || ours == admin {
				t.Errorf("cordoned %v, ours %v", cordoned, ours)
			}
			l.stop()
			l.boot = "boot-2"
			l.start()
			l.awaitStage("one", drain.Done)
			l.await("the cordon is dealt with", func(s drain.State) bool { return !s.Drain.Cordoned })
			if cordoned, ours := l.cordon(); cordoned != admin || ours {
				t.Errorf("after the boot: cordoned %v, ours %v", cordoned, ours)
			}
		})
	}
}

// Three nodes at once, with an application over all of them. If its budget allows one disruption,
// one node completes, and the others report the blocking budget until they give up; if it allows no
// disruption, all three give up. The budget is kept all the time.
func TestDrain_10_ThreeNodesAtOnceKeepTheBudget(t *testing.T) {
	for name, tc := range map[string]struct{ least, drained int }{
		"one may go":            {2, 1},
		"none may go, for ever": {3, 0},
	} {
		t.Run(name, func(t *testing.T) {
			labs := []*lab{newLab(t), newLab(t), newLab(t)}
			first := labs[0]
			for _, l := range labs { // one application over three nodes
				first.pod("db-"+l.name, func(p *corev1.Pod) { p.Spec.NodeName, p.Labels = l.name, map[string]string{"app": "db"} })
			}
			first.pdb("db", "db", tc.least)
			first.eventually("the budget counts all three pods", func() bool {
				p, err := first.admin.PolicyV1().PodDisruptionBudgets(first.name).Get(t.Context(), "db", metav1.GetOptions{})
				return err == nil && p.Status.CurrentHealthy == 3 && p.Status.DisruptionsAllowed == int32(tc.drained)
			})
			for _, l := range labs {
				l.rules.Attempts, l.rules.Timeout = 2, 2*time.Second
				l.start()
			}
			for _, l := range labs {
				l.ask("one", v1alpha1.OperationDrain)
			}
			drained := 0
			for _, l := range labs {
				s := l.await("an end", func(s drain.State) bool {
					o := operation(s, "one")
					return o.Stage == drain.Done || o.Stage == drain.Failed
				})
				o := operation(s, "one")
				if o.Stage == drain.Done {
					drained++
					continue
				}
				if o.Phase != v1alpha1.DrainFailed || o.Attempts != 2 || len(o.Blocked) != 1 || o.Blocked[0].PDB != "db" || o.Blocked[0].Reason != v1alpha1.BlockedByBudget {
					t.Errorf("%s: %s after %d attempts, blocked %v", l.name, o.Phase, o.Attempts, o.Blocked)
				}
				l.awaitCordon(false, false)
			}
			list, err := first.admin.CoreV1().Pods(first.name).List(t.Context(), metav1.ListOptions{LabelSelector: "app=db"})
			first.must(list, err)
			if drained != tc.drained || len(list.Items) != 3-tc.drained { // bare pods: they were not recreated, so there were never fewer
				t.Errorf("%d nodes are drained, %d pods are left; want %d, %d", drained, len(list.Items), tc.drained, 3-tc.drained)
			}
		})
	}
}
