package operationset_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

func (w *world) message(set string) string {
	for _, s := range w.sets {
		if s.Name == set {
			return meta.FindStatusCondition(s.Status.Conditions, v1alpha1.SetReady).Message
		}
	}
	return ""
}

// A template that is changed and changed back while a device executes the second one: the device
// has the second, whatever its earlier result was, and gets the first again.
func TestPlan_TemplateIsChangedBack(t *testing.T) {
	for name, c := range map[string]struct {
		end     string // of the second template's operation
		again   bool
		offline bool // the device reports the end after a disconnection
	}{
		"done":               {"Booted", true, false},
		"done, by an island": {"Booted", true, true},
		"rolled back":        {"RolledBack", false, false},
		"refused":            {"Refused", false, false},
		"cancelled":          {"Cancelled", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1)
			s := w.set("a", nil)
			w.finish()
			w.expect("the first", "a", "wave 1/1 done 1/1 running 0 offline 0 failed 0 refused 0: Complete")
			s.Spec.Template.Drain, s.Generation = v1alpha1.DrainSkip, 2
			w.steps()
			w.report("n1", "Running")
			w.steps()
			s.Spec.Template.Drain, s.Generation = "", 3
			w.steps()
			w.expect("changed back", "a", "wave 1/1 done 0/1 running 1 offline 0 failed 0 refused 0: Progressing")
			if c.offline {
				w.ready("n1", corev1.ConditionUnknown)
				w.after(time.Hour)
				w.steps()
				w.ready("n1", corev1.ConditionTrue)
			}
			w.report("n1", c.end)
			w.steps()
			if o := w.of("n1"); (o != nil) != c.again {
				t.Fatalf("operation %+v, want one: %v", o, c.again)
			}
			w.finish()
			w.expect("the end", "a", "wave 1/1 done 1/1 running 0 offline 0 failed 0 refused 0: Complete")
			w.after(48 * time.Hour)
			w.finish()
			if want := map[bool]int{true: 3, false: 2}[c.again]; len(w.created) != want || len(w.operations) != 0 {
				t.Errorf("%d operations were made, want %d; %d are left", len(w.created), want, len(w.operations))
			}
		})
	}
}

// A wave whose selector matches no node tests nothing: the label of the canary may be missing or
// mistyped.
func TestPlan_CanaryWithoutNodes(t *testing.T) {
	w := newWorld(t, 20)
	w.set("a", func(s *v1alpha1.NodeOperationSetSpec) {
		s.Waves = []v1alpha1.OperationWave{
			{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"canary": "yes"}}},
			{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"canary": "no"}}},
			{Percent: percent(50)},
		}
	})
	w.steps()
	w.expect("no canary", "a", "wave 1/4 done 0/20 running 0 offline 0 failed 0 refused 0: Progressing")
	if text := w.message("a"); !strings.Contains(text, "spec.waves[0]") {
		t.Errorf("the message is %q", text)
	}
	w.nodes["n7"].Labels["canary"] = "yes"
	w.steps()
	w.report("n7", "Booted")
	w.finish() // the second wave has no node either, but the first one has shown that it works
	w.expect("the end", "a", "wave 4/4 done 20/20 running 0 offline 0 failed 0 refused 0: Complete")
	if w.created[0] != "n7" {
		t.Errorf("operations began on %v", w.created)
	}
}

// A selector that matches no node is complete, and its message names the field to look at.
func TestPlan_SetWithoutNodes(t *testing.T) {
	w := newWorld(t, 3)
	w.set("labels", func(s *v1alpha1.NodeOperationSetSpec) {
		s.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"site": "x"}}
		s.Waves = []v1alpha1.OperationWave{{Percent: percent(1)}}
	})
	w.set("pool", func(s *v1alpha1.NodeOperationSetSpec) { s.NodeSelector, s.NodePool = nil, "feries" })
	w.steps()
	w.expect("labels", "labels", "wave 1/1 done 0/0 running 0 offline 0 failed 0 refused 0: Complete")
	for set, field := range map[string]string{"labels": "spec.nodeSelector", "pool": "spec.nodePool feries"} {
		if text := w.message(set); !strings.Contains(text, field+" selects no edge node") {
			t.Errorf("%s: the message is %q", set, text)
		}
	}
}

// A hostile device reports an end whose message has terminal escapes, a change of direction and
// bytes that are no text: people read it in the set's status and in events.
func TestPlan_MessageOfAHostileDevice(t *testing.T) {
	w := newWorld(t, 1)
	s := w.set("a", nil)
	w.steps()
	w.report("n1", "HookFailed")
	for _, o := range w.operations {
		o.Status.Conditions[0].Message = "\x1b]0;owned\a\x1b[2J line\none\u202eevil\xff" + strings.Repeat("\u0085x", 1000)
	}
	w.steps()
	f := s.Status.Failures[0].Message
	if len(f) > 128 || !strings.HasPrefix(f, "]0;owned[2J line oneevilxxx") {
		t.Errorf("the message has %d bytes: %q", len(f), f)
	}
	if text := w.message("a"); strings.ContainsAny(text, "\x1b\n\u202e\u0085") {
		t.Errorf("the set's message is %q", text)
	}
}
