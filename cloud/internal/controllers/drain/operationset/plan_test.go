package operationset_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/skerry-io/skerry/cloud/internal/controllers/drain/operationset"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

var start = time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)

// world is a cluster without kube-apiserver: it makes the changes of plans.
type world struct {
	t          *testing.T
	now        time.Time
	sets       []*v1alpha1.NodeOperationSet
	nodes      map[string]*corev1.Node
	operations map[string]*v1alpha1.NodeOperation
	created    []string // nodes, in order
	next       int
}

func newWorld(t *testing.T, nodes int) *world {
	w := &world{t: t, now: start, nodes: map[string]*corev1.Node{}, operations: map[string]*v1alpha1.NodeOperation{}}
	for i := range nodes {
		w.node(fmt.Sprintf("n%d", i+1), nil)
	}
	return w
}

func (w *world) node(name string, labels map[string]string) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: map[string]string{v1alpha1.EdgeOwnLabel: ""}, Annotations: map[string]string{}}}
	for k, v := range labels {
		n.Labels[k] = v
	}
	w.nodes[name] = n
	w.ready(name, corev1.ConditionTrue)
}

func (w *world) ready(name string, status corev1.ConditionStatus) {
	w.nodes[name].Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status, LastTransitionTime: metav1.NewTime(w.now)}}
}

// set adds a set for all nodes.
func (w *world) set(name string, change func(*v1alpha1.NodeOperationSetSpec)) *v1alpha1.NodeOperationSet {
	ten := intstr.FromString("10%")
	s := &v1alpha1.NodeOperationSet{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), Generation: 1, CreationTimestamp: metav1.NewTime(w.now.Add(time.Duration(len(w.sets)) * time.Second))},
		Spec: v1alpha1.NodeOperationSetSpec{
			Template: v1alpha1.NodeOperationTemplate{Operation: v1alpha1.OperationReboot}, NodeSelector: &metav1.LabelSelector{}, MaxParallel: &ten, MaxUnavailablePerPool: 1,
			NodeDeadline: &metav1.Duration{Duration: 30 * time.Minute},
		},
	}
	if change != nil {
		change(&s.Spec)
	}
	w.sets = append(w.sets, s)
	return s
}

func (w *world) state() operationset.State {
	s := operationset.State{Now: w.now, Pools: []operationset.Pool{}}
	for _, set := range w.sets {
		s.Sets = append(s.Sets, operationset.NewSet(set.DeepCopy()))
	}
	for _, name := range sorted(w.nodes) {
		s.Nodes = append(s.Nodes, operationset.NewNode(w.nodes[name]))
	}
	for _, name := range sorted(w.operations) {
		s.Operations = append(s.Operations, operationset.NewOperation(w.operations[name]))
	}
	return s
}

func sorted[T any](m map[string]T) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// step makes the changes of one plan.
func (w *world) step() *operationset.Changes {
	w.t.Helper()
	s := w.state()
	c := operationset.Plan(s)
	for _, n := range c.Create {
		origin, _ := json.Marshal(n.Origin)
		w.next++
		o := &v1alpha1.NodeOperation{
			ObjectMeta: metav1.ObjectMeta{
				Name: operationset.OperationName(n.Origin, n.Node.Name), UID: types.UID(fmt.Sprint("op", w.next)), CreationTimestamp: metav1.NewTime(w.now),
				Annotations: map[string]string{v1alpha1.OperationSetAnnotation: string(origin)},
			},
			Spec: n.Set.Spec.Template.Spec(n.Node.Name),
		}
		if w.operations[o.Name] != nil {
			w.t.Errorf("operation %s is made twice", o.Name)
		}
		w.operations[o.Name] = o
		w.created = append(w.created, n.Node.Name)
	}
	for _, o := range c.Delete {
		delete(w.operations, o.Name)
	}
	for _, o := range c.Cancel {
		op := w.operations[o.Name]
		var origin v1alpha1.OperationSetOrigin
		_ = json.Unmarshal([]byte(op.Annotations[v1alpha1.OperationSetAnnotation]), &origin)
		origin.Withdrawn = true
		text, _ := json.Marshal(origin)
		op.Annotations[v1alpha1.OperationSetAnnotation] = string(text)
		op.Spec.Cancel = true
	}
	for _, r := range c.Record {
		n := w.nodes[r.Node]
		if n == nil {
			continue
		}
		old, _ := operationset.ResultsOf(n.Annotations)
		text, _ := json.Marshal(operationset.With(old, r, func(uid string) bool {
			return slices.ContainsFunc(w.sets, func(s *v1alpha1.NodeOperationSet) bool { return string(s.UID) == uid })
		}))
		n.Annotations[v1alpha1.OperationSetsAnnotation] = string(text)
	}
	for _, status := range c.Status {
		for _, set := range w.sets {
			if set.UID == status.Set.UID {
				set.Status = operationset.Timed(status.Status, set.Status, w.now)
			}
		}
	}
	for _, gone := range c.Expire {
		w.sets = slices.DeleteFunc(w.sets, func(s *v1alpha1.NodeOperationSet) bool { return s.UID == gone.UID })
	}
	return c
}

// steps plans until there is no change.
func (w *world) steps() {
	w.t.Helper()
	for range 20 {
		c := w.step()
		if len(c.Create)+len(c.Delete)+len(c.Cancel)+len(c.Record)+len(c.Expire) == 0 {
			return
		}
	}
	w.t.Fatal("plans change for ever")
}

func (w *world) after(d time.Duration) { w.now = w.now.Add(d) }

// of is the operation of a node that has not ended; nil without one.
func (w *world) of(node string) *v1alpha1.NodeOperation {
	for _, o := range w.operations {
		if o.Spec.NodeName == node && o.Status.CompletedAt == nil {
			return o
		}
	}
	return nil
}

// report is a device's status of its operation: Waiting, Running, or an end.
func (w *world) report(node, reason string) {
	w.t.Helper()
	o := w.of(node)
	if o == nil {
		w.t.Fatalf("node %s has no operation", node)
	}
	at := metav1.NewTime(w.now)
	done := metav1.Condition{Type: v1alpha1.OperationDone, Status: metav1.ConditionFalse, Reason: reason}
	o.Status.RequestedAt = &at
	switch reason {
	case "Waiting", "Running":
	case "Booted":
		done.Status, o.Status.CompletedAt = metav1.ConditionTrue, &at
	case "Cancelled":
		o.Status.CompletedAt = &at
		o.Status.Conditions = []metav1.Condition{done, {Type: v1alpha1.OperationCancelled, Status: metav1.ConditionTrue, Reason: reason}}
		return
	default:
		o.Status.CompletedAt = &at
		done.Message = "the device reported it"
		o.Status.Conditions = []metav1.Condition{done, {Type: v1alpha1.OperationFailed, Status: metav1.ConditionTrue, Reason: reason}}
		return
	}
	o.Status.Conditions = []metav1.Condition{done}
}

// running are the nodes with an operation.
func (w *world) running() (names []string) {
	for _, o := range w.operations {
		if o.Status.CompletedAt == nil {
			names = append(names, o.Spec.NodeName)
		}
	}
	slices.Sort(names)
	return names
}

// finish ends all running operations with success, until there are no more.
func (w *world) finish() {
	w.t.Helper()
	for range 1000 {
		w.steps()
		all := w.running()
		if len(all) == 0 {
			return
		}
		for _, n := range all {
			w.report(n, "Booted")
		}
	}
	w.t.Fatal("it never ends")
}

func (w *world) status(name string) string {
	for _, s := range w.sets {
		if s.Name == name {
			c := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.SetReady)
			return fmt.Sprintf("wave %s done %s running %d offline %d failed %d refused %d: %s", s.Status.Wave, s.Status.Progress, s.Status.Running, s.Status.Offline,
				s.Status.Failed, s.Status.Refused, c.Reason)
		}
	}
	return "gone"
}

func (w *world) expect(what, set, want string) {
	w.t.Helper()
	if got := w.status(set); got != want {
		w.t.Errorf("%s: %s\nwant %s", what, got, want)
	}
}

func percent(n int32) *int32 { return &n }

func soak(d time.Duration) *metav1.Duration { return &metav1.Duration{Duration: d} }

func number(n int32) *intstr.IntOrString { v := intstr.FromInt32(n); return &v }

func canary(s *v1alpha1.NodeOperationSetSpec) {
	s.Waves = []v1alpha1.OperationWave{{Percent: percent(10), Soak: soak(time.Hour)}, {Percent: percent(50)}}
	s.MaxParallel = number(500)
}

// A canary's wave, its soak, the next wave, the rest.
func TestPlan_Waves(t *testing.T) {
	w := newWorld(t, 20)
	w.set("a", canary)
	w.steps()
	w.expect("the canaries", "a", "wave 1/3 done 0/20 running 2 offline 0 failed 0 refused 0: Progressing")
	for _, n := range w.running() {
		w.report(n, "Booted")
	}
	w.steps()
	w.after(59 * time.Minute)
	w.steps()
	w.expect("it soaks", "a", "wave 1/3 done 2/20 running 0 offline 0 failed 0 refused 0: Progressing")
	w.after(time.Minute)
	w.steps()
	w.expect("the second wave", "a", "wave 2/3 done 2/20 running 10 offline 0 failed 0 refused 0: Progressing")
	w.finish()
	w.expect("the end", "a", "wave 3/3 done 20/20 running 0 offline 0 failed 0 refused 0: Complete")
	w.after(48 * time.Hour)
	w.finish()
	if len(w.created) != 20 || len(w.operations) != 0 {
		t.Errorf("%d operations were made, %d are left", len(w.created), len(w.operations))
	}
	w.node("new", nil)
	w.finish()
	w.expect("a new node", "a", "wave 3/3 done 21/21 running 0 offline 0 failed 0 refused 0: Complete")
}

// A failure above the threshold stops it; a raised retry continues with the node that failed.
func TestPlan_Threshold(t *testing.T) {
	w := newWorld(t, 20)
	s := w.set("a", canary)
	w.steps()
	first := w.running()
	w.report(first[0], "HookFailed")
	w.steps()
	w.expect("one has failed", "a", "wave 1/3 done 0/20 running 1 offline 0 failed 1 refused 0: FailureThreshold")
	w.report(first[1], "Refused")
	w.after(10 * time.Hour)
	w.steps()
	w.expect("one was refused", "a", "wave 1/3 done 0/20 running 0 offline 0 failed 1 refused 1: FailureThreshold")
	if len(w.created) != 2 {
		t.Errorf("operations began on %v", w.created)
	}
	want := []v1alpha1.NodeFailure{
		{Node: first[0], Result: v1alpha1.ResultFailed, Reason: "HookFailed", Message: "the device reported it"},
		{Node: first[1], Result: v1alpha1.ResultRefused, Reason: "Refused", Message: "the device reported it"},
	}
	if diff := cmp.Diff(want, s.Status.Failures); diff != "" {
		t.Errorf("failures (-want +got):\n%s", diff)
	}
	s.Spec.Retry, s.Generation = 1, 2
	w.steps()
	if diff := cmp.Diff(first, w.running()); diff != "" {
		t.Errorf("after a retry (-want +got):\n%s", diff)
	}
	for _, n := range w.running() {
		w.report(n, "Booted")
	}
	w.steps()
	w.after(time.Hour)
	w.finish()
	w.expect("the end", "a", "wave 3/3 done 20/20 running 0 offline 0 failed 0 refused 0: Complete")
	s.Spec.FailureThreshold, s.Spec.Template.Drain, s.Generation = number(1), v1alpha1.DrainSkip, 3
	w.steps()
	w.report(w.running()[0], "HookFailed")
	w.steps()
	w.expect("below the threshold, with another template", "a", "wave 1/3 done 0/20 running 1 offline 0 failed 1 refused 0: Progressing")
}

// The digest of a template must not change with a release of cloudcore: all nodes would get their
// operations again.
func TestTemplateDigestIsStable(t *testing.T) {
	for want, text := range map[string]string{
		"74f04e84e5286e9a": `{"operation": "Reboot", "drain": "Required", "whenUnreachable": "Defer"}`,
		"c8b526fc0d5ff6bb": `{"operation": "Upgrade", "drain": "Required", "whenUnreachable": "Defer", "healthTimeout": "10m0s", "window": {"start": "22:00", "end": "05:00"}, "upgrade": {"version": "v1.4.0"}}`,
		"7205cab96c7e24c3": `{"operation": "Config", "drain": "Required", "whenUnreachable": "Defer", "config": {"patch": "{}"}}`,
		"e9bb71271e14db94": `{"operation": "ImagePull", "drain": "Required", "whenUnreachable": "Defer", "imagePull": {"images": ["a:1"], "pullSecret": {"namespace": "shop", "name": "registry"}}}`,
	} {
		o := &v1alpha1.NodeOperationSet{}
		if err := json.Unmarshal([]byte(text), &o.Spec.Template); err != nil {
			t.Fatal(err)
		}
		if got := operationset.NewSet(o).Template; got != want {
			t.Errorf("%s\nhas digest %s, want %s", text, got, want)
		}
	}
}

// A node that becomes NotReady while its wave soaks holds the next one up, and counts as failed
// after the deadline.
func TestPlan_NotReadyWhileItSoaks(t *testing.T) {
	w := newWorld(t, 20)
	w.set("a", canary)
	w.steps()
	first := w.running()
	for _, n := range first {
		w.report(n, "Booted")
	}
	w.steps()
	w.after(50 * time.Minute)
	w.ready(first[0], corev1.ConditionFalse)
	w.after(11 * time.Minute)
	w.steps()
	w.expect("it is NotReady", "a", "wave 1/3 done 2/20 running 0 offline 0 failed 0 refused 0: Progressing")
	w.ready(first[0], corev1.ConditionTrue)
	w.after(59 * time.Minute)
	w.steps()
	if len(w.created) != 2 {
		t.Errorf("the soak did not begin anew: %v", w.created)
	}
	w.after(time.Minute)
	w.steps()
	if len(w.created) != 12 {
		t.Errorf("after the second soak operations began on %d nodes", len(w.created))
	}
	w = newWorld(t, 20)
	w.set("a", canary)
	w.steps()
	first = w.running()
	for _, n := range first {
		w.report(n, "Booted")
	}
	w.steps()
	w.after(time.Minute)
	w.ready(first[1], corev1.ConditionUnknown)
	w.after(31 * time.Minute)
	w.steps()
	w.expect("it is gone", "a", "wave 1/3 done 1/20 running 0 offline 0 failed 1 refused 0: FailureThreshold")
	w.ready(first[1], corev1.ConditionTrue)
	w.steps()
	w.expect("it is back", "a", "wave 1/3 done 2/20 running 0 offline 0 failed 0 refused 0: Progressing")
}

// Never two devices of a pool at once.
func TestPlan_Budget(t *testing.T) {
	w := newWorld(t, 0)
	for i := range 30 {
		w.node(fmt.Sprintf("n%d", i), map[string]string{v1alpha1.NodePoolLabel: fmt.Sprintf("p%d", i%3)})
	}
	w.set("a", func(s *v1alpha1.NodeOperationSetSpec) { s.MaxParallel = number(20) })
	w.ready("n0", corev1.ConditionFalse) // its pool has one that is unavailable
	for range 200 {
		w.steps()
		pools := map[string]int{}
		for _, n := range w.running() {
			pools[w.nodes[n].Labels[v1alpha1.NodePoolLabel]]++
		}
		if pools["p0"] > 1 || pools["p1"] > 1 || pools["p2"] > 1 {
			t.Fatalf("at once: %v", w.running())
		}
		if pools["p0"] == 1 && w.of("n0") == nil && w.nodes["n0"].Status.Conditions[0].Status == corev1.ConditionFalse {
			t.Fatalf("beside n0, which is NotReady: %v", w.running())
		}
		all := w.running()
		if len(all) == 0 {
			break
		}
		n := all[rand.N(len(all))]
		w.report(n, "Booted")
		w.ready(n, corev1.ConditionTrue)
	}
	w.expect("the end", "a", "wave 1/1 done 30/30 running 0 offline 0 failed 0 refused 0: Complete")
}

func TestPlan_MaxParallel(t *testing.T) {
	w := newWorld(t, 25)
	w.set("a", nil) // 10% of 25
	w.steps()
	if n := len(w.running()); n != 3 {
		t.Errorf("%d at once", n)
	}
	big := newWorld(t, 700)
	big.set("a", func(s *v1alpha1.NodeOperationSetSpec) { v := intstr.FromString("100%"); s.MaxParallel = &v })
	big.set("b", func(s *v1alpha1.NodeOperationSetSpec) { s.Template.Operation = v1alpha1.OperationDrain })
	big.steps()
	if n := len(big.running()); n != v1alpha1.MaxOperationsAtOnce {
		t.Errorf("%d at once of two sets", n)
	}
}

// Pause, abort and deletion leave no operation that waits, and no result of a set that is gone.
func TestPlan_PauseAbortDelete(t *testing.T) {
	w := newWorld(t, 4)
	s := w.set("a", func(s *v1alpha1.NodeOperationSetSpec) { s.MaxParallel = number(3) })
	w.steps()
	first := w.running()
	w.report(first[0], "Running")
	w.report(first[1], "Waiting")
	s.Spec.Paused = true
	w.steps()
	if diff := cmp.Diff(first[:1], w.running()); diff != "" {
		t.Errorf("after a pause (-want +got):\n%s", diff)
	}
	w.expect("paused", "a", "wave 1/1 done 0/4 running 1 offline 0 failed 0 refused 0: Paused")
	w.report(first[0], "Booted")
	s.Spec.Paused = false
	w.steps()
	for _, n := range w.running() {
		w.report(n, "Running")
	}
	s.Spec.Abort = true
	w.steps()
	running := w.running()
	for _, n := range running {
		if !w.of(n).Spec.Cancel {
			t.Errorf("the operation of %s goes on", n)
		}
		w.report(n, "Cancelled")
	}
	w.steps()
	w.expect("aborted", "a", "wave 1/1 done 1/4 running 0 offline 0 failed 0 refused 0: Aborted")
	if len(running) != 3 || len(w.operations) != 1 {
		t.Errorf("%d ran, %d are left", len(running), len(w.operations))
	}
	s.Spec.Abort = false
	w.steps()
	w.report(w.running()[0], "Running")
	w.sets = nil
	w.steps()
	w.report(w.running()[0], "Booted")
	w.steps()
	if len(w.operations) != 0 {
		t.Errorf("after the deletion: %v", sorted(w.operations))
	}
	for name, n := range w.nodes {
		if text := n.Annotations[v1alpha1.OperationSetsAnnotation]; text != "" && text != "[]" && text != "null" {
			t.Errorf("node %s has %s", name, text)
		}
	}
}

// An operation that an operator cancelled has failed; it is not made again.
func TestPlan_CancelledByAnOperator(t *testing.T) {
	w := newWorld(t, 1)
	w.set("a", nil)
	w.steps()
	w.report("n1", "Cancelled")
	w.steps()
	w.expect("cancelled", "a", "wave 1/1 done 0/1 running 0 offline 0 failed 1 refused 0: FailureThreshold")
}

// Of two sets that want the same of a node, the older one has it.
func TestPlan_Conflict(t *testing.T) {
	w := newWorld(t, 2)
	w.node("other", map[string]string{"x": "y"})
	w.set("old", func(s *v1alpha1.NodeOperationSetSpec) {
		s.NodeSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "x", Operator: metav1.LabelSelectorOpDoesNotExist}}}
	})
	young := w.set("young", nil)
	w.set("drain", func(s *v1alpha1.NodeOperationSetSpec) { s.Template.Operation = v1alpha1.OperationDrain })
	w.finish()
	w.expect("the older", "old", "wave 1/1 done 2/2 running 0 offline 0 failed 0 refused 0: Complete")
	w.expect("the younger", "young", "wave 1/1 done 1/1 running 0 offline 0 failed 0 refused 0: Complete")
	w.expect("of another kind", "drain", "wave 1/1 done 3/3 running 0 offline 0 failed 0 refused 0: Complete")
	c := meta.FindStatusCondition(young.Status.Conditions, v1alpha1.SetConflict)
	if c == nil || c.Status != metav1.ConditionTrue || c.Message != "older sets have the operation Reboot on 2 nodes: old" {
		t.Errorf("the younger one's condition is %+v", c)
	}
	w.sets = w.sets[1:]
	w.finish()
	w.expect("the younger, alone", "young", "wave 1/1 done 3/3 running 0 offline 0 failed 0 refused 0: Complete")
}

// A set goes when its time is over, and not before every node has ended.
func TestPlan_TTL(t *testing.T) {
	w := newWorld(t, 2)
	w.ready("n2", corev1.ConditionUnknown)
	w.set("a", func(s *v1alpha1.NodeOperationSetSpec) { s.TTLSecondsAfterFinished = percent(60) })
	w.finish()
	w.after(time.Hour)
	w.finish()
	w.expect("one is offline", "a", "wave 1/1 done 1/2 running 0 offline 1 failed 0 refused 0: Complete")
	w.ready("n2", corev1.ConditionTrue)
	w.finish()
	if c := w.step(); !c.Again.Equal(w.now.Add(time.Minute)) {
		t.Errorf("it looks again at %v", c.Again)
	}
	w.after(time.Minute)
	w.steps()
	w.expect("after its time", "a", "gone")
}

// A node remembers sixteen sets, never forgets one that is there, and takes part in no further one.
func TestPlan_ResultsOfANode(t *testing.T) {
	w := newWorld(t, 1)
	kinds := []v1alpha1.OperationType{v1alpha1.OperationReboot, v1alpha1.OperationDrain, v1alpha1.OperationShutdown}
	for i := range 20 {
		w.set(fmt.Sprintf("s%02d", i), func(s *v1alpha1.NodeOperationSetSpec) {
			s.Template.Operation = kinds[i%3]
			s.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"only": fmt.Sprint(i)}}
		})
	}
	for i := range 20 {
		w.nodes["n1"].Labels["only"] = fmt.Sprint(i)
		w.finish()
	}
	w.expect("the sixteenth", "s15", "wave 1/1 done 0/0 running 0 offline 0 failed 0 refused 0: Complete")
	if len(w.created) != 16 {
		t.Errorf("%d operations were made", len(w.created))
	}
	w.expect("the twentieth", "s19", "wave 1/1 done 0/1 running 0 offline 0 failed 0 refused 1: FailureThreshold")
	w.sets = w.sets[1:]
	w.finish()
	w.expect("with room for it", "s19", "wave 1/1 done 1/1 running 0 offline 0 failed 0 refused 0: Complete")
}

// An annotation that can't be read is no reason to begin again.
func TestPlan_InvalidAnnotation(t *testing.T) {
	w := newWorld(t, 1)
	for _, text := range []string{"{", strings.Repeat(" ", 40<<10), "[" + strings.Repeat("{},", 16) + "{}]"} {
		w.nodes["n1"].Annotations[v1alpha1.OperationSetsAnnotation] = text
		w.sets = nil
		w.set("a", nil)
		w.steps()
		w.expect("unread", "a", "wave 1/1 done 0/1 running 0 offline 0 failed 0 refused 1: FailureThreshold")
	}
}

func TestPlan_TooManySets(t *testing.T) {
	w := newWorld(t, 1)
	for i := range v1alpha1.MaxOperationSets + 1 {
		w.set(fmt.Sprintf("s%d", i), func(s *v1alpha1.NodeOperationSetSpec) { s.NodePool, s.NodeSelector = "p", nil })
	}
	w.steps()
	w.expect("the last", fmt.Sprint("s", v1alpha1.MaxOperationSets-1), "wave 1/1 done 0/0 running 0 offline 0 failed 0 refused 0: Complete")
	w.expect("one too many", fmt.Sprint("s", v1alpha1.MaxOperationSets), "wave  done  running 0 offline 0 failed 0 refused 0: TooManySets")
}

// A plan that is made again, and one whose changes were made only in part, makes no operation twice
// and ends the same.
func TestPlan_LeaderIsLost(t *testing.T) {
	for seed := range 8 {
		r := rand.New(rand.NewPCG(uint64(seed), 1))
		w := newWorld(t, 20)
		w.set("a", func(s *v1alpha1.NodeOperationSetSpec) {
			canary(s)
			s.Waves[0].Soak = soak(time.Minute)
		})
		made := map[string]int{}
		for range 300 {
			before := len(w.created)
			w.step()
			for _, n := range w.created[before:] {
				made[n]++
			}
			if all := w.running(); len(all) > 0 && r.IntN(2) == 0 {
				n := all[r.IntN(len(all))]
				w.report(n, []string{"Waiting", "Running", "Booted"}[r.IntN(3)])
			}
			w.after(time.Duration(r.IntN(30)) * time.Second)
		}
		w.expect("the end", "a", "wave 3/3 done 20/20 running 0 offline 0 failed 0 refused 0: Complete")
		for n, times := range made {
			if times > 1 {
				t.Errorf("seed %d: node %s had %d operations", seed, n, times)
			}
		}
	}
}

func FuzzResultsOf(f *testing.F) {
	f.Add(`[{"set":"a","uid":"u","generation":1,"template":"t","wave":0,"result":"Done","at":"2026-11-27T12:00:00Z"}]`)
	f.Fuzz(func(t *testing.T, text string) {
		results, ok := operationset.ResultsOf(map[string]string{v1alpha1.OperationSetsAnnotation: text})
		if !ok && len(results) > 0 || len(results) > v1alpha1.MaxOperationSetResults {
			t.Errorf("%d results, %v", len(results), ok)
		}
	})
}

// A node away holds up its pool. The condition names the node that waits and the pool, for no
// operation runs that could end.
func TestNodeThatWaitsForItsPoolIsNamed(t *testing.T) {
	w := newWorld(t, 0)
	for _, name := range []string{"n1", "n2"} {
		w.node(name, map[string]string{v1alpha1.NodePoolLabel: "ferries"})
	}
	w.ready("n2", corev1.ConditionUnknown)
	s := w.set("a", nil)
	w.steps()
	const want = "node n1 waits for NodePool ferries, of which 1 nodes are unavailable (spec.maxUnavailablePerPool)"
	if c := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.SetReady); c == nil || !strings.Contains(c.Message, want) || len(w.created) > 0 {
		t.Errorf("operations on %v, condition %+v, want %q", w.created, c, want)
	}
	w.ready("n2", corev1.ConditionTrue)
	w.steps()
	if c := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.SetReady); c == nil || strings.Contains(c.Message, want) || len(w.created) != 1 {
		t.Errorf("operations on %v, condition %+v", w.created, c)
	}
}
