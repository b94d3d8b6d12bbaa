package operationset_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// A node without a link holds up nobody, and gets the newest template when it is back; the canary
// that was chosen is one with a link.
func TestPlan_Offline(t *testing.T) {
	w := newWorld(t, 20)
	for i := range 18 {
		w.ready(fmt.Sprintf("n%d", i+1), corev1.ConditionUnknown)
	}
	s := w.set("a", canary)
	w.steps()
	if diff := cmp.Diff([]string{"n19", "n20"}, w.running()); diff != "" {
		t.Errorf("the canaries (-want +got):\n%s", diff)
	}
	for _, n := range w.running() {
		w.report(n, "Booted")
	}
	w.steps()
	w.after(time.Hour)
	w.finish()
	w.expect("all that are linked", "a", "wave 3/3 done 2/20 running 0 offline 18 failed 0 refused 0: Complete")
	s.Spec.Template.Drain, s.Generation = v1alpha1.DrainSkip, 2
	w.steps()
	for _, n := range w.running() {
		w.report(n, "Booted")
	}
	w.steps()
	w.after(time.Hour)
	w.finish()
	w.ready("n1", corev1.ConditionTrue)
	w.steps()
	o := w.of("n1")
	if o == nil || o.Spec.Drain != v1alpha1.DrainSkip {
		t.Fatalf("the late one has %+v", o)
	}
	w.finish()
	w.expect("the late one", "a", "wave 3/3 done 3/20 running 0 offline 17 failed 0 refused 0: Complete")
}

// Where every node of the first wave is offline, the others wait: no device has tried it.
func TestPlan_CanaryIsOffline(t *testing.T) {
	w := newWorld(t, 4)
	w.node("canary", map[string]string{"canary": "yes"})
	w.ready("canary", corev1.ConditionUnknown)
	w.set("a", func(s *v1alpha1.NodeOperationSetSpec) {
		s.Waves = []v1alpha1.OperationWave{{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"canary": "yes"}}}}
	})
	w.steps()
	w.after(24 * time.Hour)
	w.steps()
	w.expect("no canary", "a", "wave 1/2 done 0/5 running 0 offline 1 failed 0 refused 0: Progressing")
	w.ready("canary", corev1.ConditionTrue)
	w.finish()
	w.expect("the end", "a", "wave 2/2 done 5/5 running 0 offline 0 failed 0 refused 0: Complete")
}

// finishOthers ends all running operations but one node's with success, until there are no more.
func (w *world) finishOthers(node string) {
	w.t.Helper()
	for more := true; more; {
		w.steps()
		more = false
		for _, n := range w.running() {
			if n != node {
				w.report(n, "Booted")
				more = true
			}
		}
	}
}

// An operation that its device never took up, or never ends, ends with the node's deadline.
func TestPlan_Deadline(t *testing.T) {
	w := newWorld(t, 3)
	w.set("a", func(s *v1alpha1.NodeOperationSetSpec) { s.MaxParallel, s.FailureThreshold = number(3), number(3) })
	w.steps()
	w.ready("n1", corev1.ConditionUnknown) // before it had it
	w.report("n2", "Running")
	w.ready("n2", corev1.ConditionUnknown)
	w.steps()
	w.expect("two are gone", "a", "wave 1/1 done 0/3 running 2 offline 1 failed 0 refused 0: Progressing")
	w.after(31 * time.Minute)
	w.steps()
	w.expect("the deadline", "a", "wave 1/1 done 0/3 running 0 offline 1 failed 2 refused 0: Progressing")
	if o := w.of("n2"); o == nil || !o.Spec.Cancel || w.of("n3") != nil || w.of("n1") != nil {
		t.Errorf("operations are left on %v", w.running())
	}
	w.ready("n2", corev1.ConditionTrue)
	w.report("n2", "Booted") // it was only slow
	w.ready("n1", corev1.ConditionTrue)
	w.finish()
	w.expect("the end", "a", "wave 1/1 done 2/3 running 0 offline 0 failed 1 refused 0: Complete")
}

// A device that is switched off while it waits for its window holds up nobody, is no failure after
// the deadline, and gets the operation again when it is back.
func TestPlan_OfflineBeforeItsWindow(t *testing.T) {
	w := newWorld(t, 10)
	w.set("a", func(s *v1alpha1.NodeOperationSetSpec) {
		s.Template.Window = &v1alpha1.OperationWindow{Start: "22:00", End: "05:00"}
		s.Waves = []v1alpha1.OperationWave{{Percent: percent(20)}}
		s.MaxParallel = number(500)
	})
	w.steps()
	first := w.running()
	for _, n := range first {
		w.report(n, "Waiting")
	}
	w.steps()
	w.expect("they wait for the window", "a", "wave 1/2 done 0/10 running 2 offline 0 failed 0 refused 0: Progressing")
	w.ready(first[0], corev1.ConditionUnknown)
	w.after(11 * time.Hour)
	w.report(first[1], "Booted")
	w.finishOthers(first[0])
	w.expect("one is switched off", "a", "wave 2/2 done 9/10 running 0 offline 1 failed 0 refused 0: Complete")
	w.after(14 * time.Hour) // the deadline after the day of its window
	w.steps()
	w.expect("the deadline", "a", "wave 2/2 done 9/10 running 0 offline 1 failed 0 refused 0: Complete")
	if o := w.of(first[0]); o != nil {
		t.Errorf("the operation is left: %+v", o)
	}
	w.ready(first[0], corev1.ConditionTrue)
	w.finish()
	w.expect("it is back", "a", "wave 2/2 done 10/10 running 0 offline 0 failed 0 refused 0: Complete")
}

// An operation for an earlier template on a device that went offline with it holds nobody up after
// its deadline, and is cancelled; the device gets the newest template when it is back.
func TestPlan_OfflineWithAnEarlierTemplate(t *testing.T) {
	w := newWorld(t, 2)
	s := w.set("a", func(s *v1alpha1.NodeOperationSetSpec) { s.MaxParallel = number(1) })
	w.steps()
	lost := w.running()[0]
	w.report(lost, "Running")
	w.ready(lost, corev1.ConditionUnknown)
	s.Spec.Template.Drain, s.Generation = v1alpha1.DrainSkip, 2
	w.steps()
	w.expect("before the deadline", "a", "wave 1/1 done 0/2 running 1 offline 0 failed 0 refused 0: Progressing")
	w.after(31 * time.Minute)
	w.steps()
	if o := w.of(lost); o == nil || !o.Spec.Cancel || o.Spec.Drain == v1alpha1.DrainSkip {
		t.Fatalf("the lost one has %+v", o)
	}
	for _, n := range w.running() {
		if n != lost {
			w.report(n, "Booted")
		}
	}
	w.steps()
	w.expect("the deadline", "a", "wave 1/1 done 1/2 running 0 offline 1 failed 0 refused 0: Complete")
	w.ready(lost, corev1.ConditionTrue)
	w.steps()
	w.report(lost, "Cancelled")
	w.finish()
	w.expect("it is back", "a", "wave 1/1 done 2/2 running 0 offline 0 failed 0 refused 0: Complete")
}

// An operation of a node that was deleted, or that the set selects no more, does not stay for ever
// where its device never ends it; and 500 of devices that are lost hold up no others.
func TestPlan_LostOperations(t *testing.T) {
	w := newWorld(t, v1alpha1.MaxOperationsAtOnce)
	w.set("a", func(s *v1alpha1.NodeOperationSetSpec) {
		s.MaxParallel, s.FailureThreshold = number(v1alpha1.MaxOperationsAtOnce), number(v1alpha1.MaxOperationsAtOnce)
		s.NodeSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "out", Operator: metav1.LabelSelectorOpDoesNotExist}}}
	})
	w.steps()
	for _, n := range w.running() {
		w.report(n, "Running")
		w.ready(n, corev1.ConditionUnknown)
	}
	w.node("late", nil)
	w.steps()
	if w.of("late") != nil {
		t.Fatal("more operations are made than may run at once")
	}
	delete(w.nodes, "n1")
	w.nodes["n2"].Labels["out"] = ""
	w.after(31 * time.Minute)
	w.steps()
	if w.of("n1") != nil || w.of("n2") != nil || w.of("n3") == nil || w.of("late") == nil {
		t.Errorf("%d operations are left, of n1 %v, n2 %v, n3 %v, late %v", len(w.operations), w.of("n1"), w.of("n2"), w.of("n3"), w.of("late"))
	}
	for _, o := range w.operations { // those of a deleted set, which nothing cancels
		o.Spec.Cancel = false
	}
	w.sets = nil
	w.node("last", nil)
	w.set("b", func(s *v1alpha1.NodeOperationSetSpec) {
		s.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"b": ""}}
	})
	w.nodes["last"].Labels["b"] = ""
	w.steps()
	if w.of("last") == nil {
		t.Error("the operations of a deleted set on devices that are lost hold up another set")
	}
}

// A device that takes over the name of a broken one gets the version, configuration and images
// again; it is not rebooted again.
func TestPlan_ReplacedDevice(t *testing.T) {
	for kind, again := range map[v1alpha1.OperationType]bool{v1alpha1.OperationUpgrade: true, v1alpha1.OperationConfig: true, v1alpha1.OperationReboot: false} {
		t.Run(string(kind), func(t *testing.T) {
			w := newWorld(t, 1)
			w.set("a", func(s *v1alpha1.NodeOperationSetSpec) { s.Template.Operation = kind })
			w.nodes["n1"].Status.NodeInfo.SystemUUID = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
			w.finish()
			w.nodes["n1"].Status.NodeInfo.SystemUUID = "" // of a status that was lost
			w.finish()
			if len(w.created) != 1 {
				t.Fatalf("%d operations", len(w.created))
			}
			w.nodes["n1"].Status.NodeInfo.SystemUUID = "6fa459ea-ee8a-3ca4-894e-db77e160355e"
			w.finish()
			if twice := len(w.created) == 2; twice != again {
				t.Errorf("%d operations", len(w.created))
			}
			w.expect("the end", "a", "wave 1/1 done 1/1 running 0 offline 0 failed 0 refused 0: Complete")
		})
	}
}

// A device that has no version of the link's protocol in common with the cloud is NotReady, and is
// upgraded all the same while it asks for its upgrades; it is offline for other operations.
func TestPlan_RescuedDevice(t *testing.T) {
	for name, c := range map[string]struct {
		kind    v1alpha1.OperationType
		rescued time.Time
		want    bool
	}{
		"upgrade":               {v1alpha1.OperationUpgrade, start.Add(-10 * time.Minute), true},
		"reboot":                {v1alpha1.OperationReboot, start.Add(-time.Minute), false},
		"rescued an hour ago":   {v1alpha1.OperationUpgrade, start.Add(-time.Hour), false},
		"a time of the future":  {v1alpha1.OperationUpgrade, start.Add(time.Hour), false},
		"never rescued, absent": {v1alpha1.OperationUpgrade, time.Time{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1)
			w.now = start.Add(-2 * time.Hour)
			w.ready("n1", corev1.ConditionUnknown)
			w.now = start
			if !c.rescued.IsZero() {
				w.nodes["n1"].Annotations[v1alpha1.RescuedAtAnnotation] = c.rescued.Format(time.RFC3339)
			}
			w.set("all", func(s *v1alpha1.NodeOperationSetSpec) {
				s.Template.Operation = c.kind
				if c.kind == v1alpha1.OperationUpgrade {
					s.Template.Upgrade = &v1alpha1.UpgradeSpec{Version: "v1.5.0"}
				}
			})
			changes := w.step()
			if got := len(w.created) == 1; got != c.want {
				t.Fatalf("created %v, want %t", w.created, c.want)
			}
			if until := c.rescued.Add(11 * time.Minute); c.want && !changes.Again.Equal(until) {
				t.Errorf("the next plan is due at %v, want %v, when the device counts as offline", changes.Again, until)
			}
		})
	}
}
