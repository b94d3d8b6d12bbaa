package drain_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	kubectl "k8s.io/kubectl/pkg/drain"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/agents/drain"
)

// kubectlCordon is `kubectl cordon` and `kubectl uncordon`.
func (l *lab) kubectlCordon(cordoned bool) {
	l.t.Helper()
	helper := &kubectl.Helper{Ctx: l.t.Context(), Client: l.admin}
	l.must(nil, kubectl.RunCordonOrUncordon(helper, l.getNode(), cordoned))
}

// A cordon that an administrator sets after removing ours is theirs: it stays, regardless of the
// operation.
func TestTraps_18_AdministratorsCordonStays(t *testing.T) {
	ends := map[string]func(*lab){
		"the operation is cancelled": func(l *lab) { l.must(nil, l.agent.Cancel(l.t.Context(), "one")) },
		"the device boots": func(l *lab) {
			l.stop()
			l.boot = "boot-2"
			l.start()
		},
		"a second drain ends": func(l *lab) {
			l.ask("two", v1alpha1.OperationDrain)
			l.awaitStage("two", drain.Done)
			l.must(nil, l.agent.Cancel(l.t.Context(), "one"))
			l.must(nil, l.agent.Cancel(l.t.Context(), "two"))
		},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			l.start()
			l.ask("one", v1alpha1.OperationDrain)
			l.awaitStage("one", drain.Done)
			l.awaitCordon(true, true)
			l.kubectlCordon(false)
			l.kubectlCordon(true)
			end(l)
			l.await("the drain is over", func(s drain.State) bool { return s.Drain.Phase == v1alpha1.DrainNotRequested && !s.Drain.Cordoned })
			if cordoned, ours := l.cordon(); !cordoned || ours {
				t.Errorf("cordoned %v, marked as ours %v; want the administrator's cordon alone", cordoned, ours)
			}
		})
	}
}

// Only a node that could really take the pods counts as another node.
func TestTraps_19_OnlyNodesThatCanTakeThePodsCount(t *testing.T) {
	taint := func(effect corev1.TaintEffect) func(*corev1.Node) {
		return func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "role", Value: "control-plane", Effect: effect}}
		}
	}
	tests := map[string]struct {
		other func(*corev1.Node) // changes another node of the pod's site; nil: no other node
		pod   func(*corev1.Pod)  // changes the pod
		takes bool
	}{
		"no node of the site":           {},
		"one that could":                {other: func(*corev1.Node) {}, takes: true},
		"a control plane with a taint":  {other: taint(corev1.TaintEffectNoSchedule)},
		"one that would evict it again": {other: taint(corev1.TaintEffectNoExecute)},
		"a taint that is a preference":  {other: taint(corev1.TaintEffectPreferNoSchedule), takes: true},
		"a taint that the pod tolerates": {other: taint(corev1.TaintEffectNoSchedule), takes: true, pod: func(p *corev1.Pod) {
			p.Spec.Tolerations = []corev1.Toleration{{Key: "role", Operator: corev1.TolerationOpExists}}
		}},
		"one that is not Ready": {other: func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }},
		"one that the pod's affinity leaves out": {other: func(*corev1.Node) {}, pod: func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
					{Key: "disk", Operator: corev1.NodeSelectorOpIn, Values: []string{"fast"}},
				}}},
			}}}
		}},
		"an administrator's cordon": {other: func(n *corev1.Node) { n.Spec.Unschedulable = true }},
		"one that is being drained itself": {takes: true, other: func(n *corev1.Node) {
			n.Spec.Unschedulable, n.Annotations = true, map[string]string{v1alpha1.CordonAnnotation: "edgecore"}
		}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			ctx := t.Context()
			if tc.other != nil {
				n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: l.name + "-other", Labels: map[string]string{"site": l.name}}}
				n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now()}}
				tc.other(n)
				status := n.Status
				n, err := l.admin.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{FieldManager: "edgecore-drain"})
				l.must(n, err)
				t.Cleanup(func() { _ = l.admin.CoreV1().Nodes().Delete(t.Context(), n.Name, metav1.DeleteOptions{}) })
				patch, err := json.Marshal(map[string]any{"status": status})
				l.must(patch, err)
				l.must(l.admin.CoreV1().Nodes().Patch(ctx, n.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"))
				if status.Conditions[0].Status == corev1.ConditionTrue {
					l.eventually("the controllers have seen the other node", func() bool {
						n, err := l.admin.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
						for _, taint := range n.Spec.Taints {
							if taint.Key == corev1.TaintNodeNotReady {
								return false
							}
						}
						return err == nil
					})
				}
			}
			pod := l.pod("till", func(p *corev1.Pod) {
				p.Spec.NodeSelector = map[string]string{"site": l.name}
				if tc.pod != nil {
					tc.pod(p)
				}
			})
			l.start()
			l.ask("one", v1alpha1.OperationDrain)
			o := l.awaitStage("one", drain.Done)
			want, evicted := v1alpha1.DrainNotSupported, !l.hasPod(pod.UID)
			if tc.takes {
				want = v1alpha1.DrainComplete
			}
			if o.Phase != want || evicted != tc.takes {
				t.Errorf("%s (%s), evicted: %v; want %s", o.Phase, o.Message, evicted, want)
			}
		})
	}
}

// A pod whose eviction was accepted, and that does not end, stays named.
func TestTraps_20_StuckTerminatingPodStaysNamed(t *testing.T) {
	l := newLab(t)
	pod := l.pod("stuck", func(p *corev1.Pod) { p.Finalizers = []string{"example.com/backup"} })
	l.start()
	l.ask("one", v1alpha1.OperationDrain)
	s := l.await("the pod is named", func(s drain.State) bool { return len(s.Drain.Blocked) == 1 })
	if b := s.Drain.Blocked[0]; b.Name != "stuck" || b.Reason != "Terminating" || !strings.Contains(b.Message, "example.com/backup") {
		t.Errorf("blocked: %+v", b)
	}
	l.must(l.admin.CoreV1().Pods(l.name).Patch(t.Context(), pod.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}))
	if o := l.awaitStage("one", drain.Done); o.Attempts != 1 || len(o.Blocked) > 0 {
		t.Errorf("%d attempts, blocked %v", o.Attempts, o.Blocked)
	}
}

// An attempt that ends with the link reports that, without the name of a host that does not exist.
func TestTraps_22_TheLostLinkIsNamed(t *testing.T) {
	l := newLab(t)
	l.pod("web")
	l.pdb("keep-web", "web", 1)
	l.start()
	l.ask("one", v1alpha1.OperationReboot)
	l.await("the pod is blocked", func(s drain.State) bool { return len(s.Drain.Blocked) == 1 })
	l.broken.Store(true) // as the way to the cloud fails before anything has noticed that the link has gone
	s := l.await("it is noticed", func(s drain.State) bool { return strings.HasPrefix(s.Drain.Message, "waits: ") })
	if m := s.Drain.Message; !strings.Contains(m, "link") || strings.Contains(m, "invalid") || strings.Contains(m, "http") {
		t.Errorf("the message is %q", m)
	}
	l.stop()
	if text := l.logs.String(); strings.Contains(text, "://") {
		t.Errorf("the log has an address: %s", text)
	}
}

// The numbers of the phases are in the status.
func TestTraps_22_PhasesShowTheirNumbers(t *testing.T) {
	l := newLab(t)
	l.serve()
	name := l.name + "-op"
	l.want(name, v1alpha1.OperationDrain)
	l.awaitReported(name, "Drained")
	u, err := l.operations().Get(t.Context(), name, metav1.GetOptions{})
	l.must(u, err)
	status, _ := u.Object["status"].(map[string]any)
	if n := fmt.Sprint(status["phaseNumber"]); n != "9" {
		t.Errorf("phaseNumber is %s, want 9: %v", n, status)
	}
}

// Each pod that is evicted gets an event of its own, which a burst on one object would lose.
func TestTraps_23_EventOnEachPod(t *testing.T) {
	const pods = 40 // more than client-go's correlator takes for one object
	l := newLab(t)
	uids := map[types.UID]bool{}
	for i := range pods {
		uids[l.pod(fmt.Sprintf("web-%d", i)).UID] = true
	}
	broadcaster := record.NewBroadcaster(record.WithContext(t.Context()))
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: l.admin.CoreV1().Events("")})
	l.sent = broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "drain", Host: l.name})
	l.start()
	l.ask("one", v1alpha1.OperationDrain)
	l.awaitStage("one", drain.Done)
	l.eventually("each evicted pod has its event", func() bool {
		list, err := l.admin.CoreV1().Events(l.name).List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.kind=Pod,reason=EvictedForDrain"})
		l.must(list, err)
		named := map[types.UID]bool{}
		for _, e := range list.Items {
			named[e.InvolvedObject.UID] = true
		}
		return maps.Equal(named, uids)
	})
}
