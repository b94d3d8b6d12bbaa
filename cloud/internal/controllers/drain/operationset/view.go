package operationset

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// reasonNotReady is that of a node which became NotReady after its operation.
const reasonNotReady = "NotReady"

// member is a node of a set.
type member struct {
	node   *Node
	linked bool   // or it is rescued, and the set upgrades
	rank   uint64 // the order of nodes, another one for each set
	wave   int
	op     *Operation // the set's, as it is now; nil: absent
	busy   bool       // an operation for an earlier state of the set still runs
	result *v1alpha1.OperationSetResult
	// begun: the node had an operation for the template; of wave was, then.
	begun bool
	was   int
	// unsettled: it has done it, and is not Ready since; gone: for longer than the deadline.
	unsettled, gone bool
}

func (m *member) done() bool {
	return m.result != nil && m.result.Result == v1alpha1.ResultDone && !m.gone
}

// failed reports whether the operation failed or was refused.
func (m *member) failed() bool { return m.result != nil && !m.done() }

// running reports whether an operation is under way. One that the device had not begun when it went
// offline is not: its window, for example, may open long before it is back.
func (m *member) running() bool {
	return m.busy || m.result == nil && m.op != nil && m.op.Stage != Ended && (m.op.Stage == Running || m.linked)
}

func (m *member) offline() bool { return m.result == nil && !m.running() && !m.linked }

// pending reports whether the operation is to begin, once its turn has come.
func (m *member) pending() bool { return m.result == nil && !m.running() && m.linked }

// view is a set and its members.
type view struct {
	set       *Set
	members   []*member // by rank
	waves     int
	wave      int    // the current one, from 0
	holds     string // the reason that the next wave does not begin; "": it may begin, or it has begun
	full      string // the reason that a node of the current wave waits for its pool
	complete  bool   // the last wave is over
	stall     string // the reason that no more operations begin; "": they do
	conflicts []string
	conflict1 int // nodes that older sets have
}

func (v *view) conflict(owner *Set) {
	v.conflict1++
	if !slices.Contains(v.conflicts, owner.Name) {
		v.conflicts = append(v.conflicts, owner.Name)
	}
}

func (v *view) soak(wave int) time.Duration {
	if w := v.set.Spec.Waves; wave < len(w) && w[wave].Soak != nil {
		return w[wave].Soak.Duration
	}
	return 0
}

// assign divides the members by waves. A wave of a percentage keeps its members while others come
// and go, and takes linked ones first: an offline canary is no test.
func (v *view) assign() error {
	waves := v.set.Spec.Waves
	rest := slices.Clone(v.members)
	for i, w := range waves {
		chosen := func(m *member) bool { return false }
		if w.Percent != nil {
			chosen = v.share(rest, i, (int(*w.Percent)*len(v.members)+99)/100)
		} else {
			selector, err := metav1.LabelSelectorAsSelector(w.Selector)
			if err != nil {
				return fmt.Errorf("spec.waves[%d].selector: %w", i, err)
			}
			chosen = func(m *member) bool { return selector.Matches(labels.Set(m.node.Labels)) }
		}
		rest = slices.DeleteFunc(rest, func(m *member) bool {
			if !chosen(m) {
				return false
			}
			m.wave = i
			return true
		})
	}
	v.waves = len(waves)
	for _, m := range rest {
		m.wave = len(waves)
	}
	if len(rest) > 0 || v.waves == 0 {
		v.waves++
	}
	return nil
}

// share chooses the members of a wave of so many: those that it had already, those that have begun
// in another one, those with a link, then all.
func (v *view) share(rest []*member, wave, quota int) func(*member) bool {
	chosen := map[*member]bool{}
	for _, which := range []func(*member) bool{
		func(m *member) bool { return m.begun && m.was == wave },
		func(m *member) bool { return m.begun },
		func(m *member) bool { return m.linked },
		func(*member) bool { return true },
	} {
		for _, m := range rest {
			if len(chosen) < quota && which(m) {
				chosen[m] = true
			}
		}
	}
	return func(m *member) bool { return chosen[m] }
}

// advance finds the current wave: the last one that has begun, or a later one where those before
// are over. Late nodes of an earlier wave don't hold it up.
func (v *view) advance(now time.Time, c *Changes) {
	for _, m := range v.members {
		if m.begun {
			v.wave = max(v.wave, min(m.was, v.waves-1))
		}
	}
	for ; ; v.wave++ {
		if v.holds = v.over(v.wave, now, c); v.holds != "" {
			return
		}
		if v.wave == v.waves-1 {
			v.complete = true
			return
		}
	}
}

// over returns the reason that a wave is not over; "": it is.
func (v *view) over(wave int, now time.Time, c *Changes) string {
	var last time.Time
	open, proven, members := 0, false, false
	unsettled := ""
	for _, m := range v.members {
		if m.wave <= wave {
			members = true
			proven = proven || m.done()
		}
		if m.wave != wave {
			continue
		}
		switch {
		case m.running(), m.pending():
			open++
		case m.unsettled && !m.gone:
			unsettled = m.node.Name
		}
		if r := m.result; r != nil {
			if r.At.After(last) {
				last = r.At.Time
			}
			if since := m.node.since(now); m.done() && m.node.ready() && since.After(last) {
				last = since // it was NotReady in the meantime
			}
		}
	}
	end := last.Add(v.soak(wave))
	switch {
	case open > 0:
		return fmt.Sprintf("%d linked nodes of wave %d have not ended their operations", open, wave+1)
	case unsettled != "":
		return fmt.Sprintf("node %s of wave %d is NotReady after its operation", unsettled, wave+1)
	case !members && !proven && len(v.members) > 0: // as with a canary whose label is missing
		return fmt.Sprintf("no node is in wave %d: label one as spec.waves[%d] selects it, or change that", wave+1, wave)
	case members && !proven:
		return fmt.Sprintf("no node up to wave %d has done the operation, or none of them is linked", wave+1)
	case now.Before(end) && wave < v.waves-1:
		c.again(end)
		return fmt.Sprintf("wave %d soaks until %s", wave+1, end.UTC().Format(time.RFC3339))
	}
	return ""
}

// judge finds whether too many have failed.
func (v *view) judge() {
	failed, tried := 0, 0
	for _, m := range v.members {
		if m.result != nil {
			tried++
		}
		if m.failed() {
			failed++
		}
	}
	most := 0
	if t := v.set.Spec.FailureThreshold; t != nil {
		if n, err := intstr.GetScaledValueFromIntOrPercent(t, tried, false); err == nil {
			most = n
		}
	}
	switch {
	case v.set.Spec.Abort:
		v.stall = "Aborted"
	case failed > most:
		v.stall = "FailureThreshold"
	}
}

// parallel is how many operations may run at once.
func (v *view) parallel() int {
	most := intstr.FromString("10%")
	if p := v.set.Spec.MaxParallel; p != nil {
		most = *p
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(&most, len(v.members), true)
	if err != nil {
		return 1
	}
	return min(max(1, n), v1alpha1.MaxOperationsAtOnce)
}

// status is the set's.
func (v *view) status() v1alpha1.NodeOperationSetStatus {
	s := v1alpha1.NodeOperationSetStatus{ObservedGeneration: v.set.Generation, Matched: int32(len(v.members)), Wave: fmt.Sprintf("%d/%d", v.wave+1, v.waves)}
	for _, m := range v.members {
		switch {
		case m.done():
			s.Done++
		case m.failed():
			f := v1alpha1.NodeFailure{Node: m.node.Name, Result: m.result.Result, Reason: m.result.Reason, Message: m.result.Message}
			if m.gone {
				f.Result, f.Reason, f.Message = v1alpha1.ResultFailed, reasonNotReady, "the node has been NotReady since its operation"
			}
			if f.Result == v1alpha1.ResultRefused {
				s.Refused++
			} else {
				s.Failed++
			}
			s.Failures = append(s.Failures, f)
		case m.running():
			s.Running++
		case m.offline():
			s.Offline++
		}
	}
	slices.SortFunc(s.Failures, func(a, b v1alpha1.NodeFailure) int { return strings.Compare(a.Node, b.Node) })
	s.Failures = s.Failures[:min(len(s.Failures), v1alpha1.MaxOperationSetFails)]
	s.Progress = fmt.Sprintf("%d/%d", s.Done, s.Matched)
	v.conditions(&s)
	return s
}

// conditions are those of kstatus, and Ready, which sums them up.
func (v *view) conditions(s *v1alpha1.NodeOperationSetStatus) {
	spec := v.set.Spec
	switch {
	case len(v.members) == 0 && len(v.conflicts) > 0:
		set(s, v.set, false, "Conflict", v.conflictMessage())
		setStalled(s, v.set, "Conflict", v.conflictMessage())
	case v.stall == "Aborted":
		message := fmt.Sprintf("spec.abort is set: no more operations begin, %d still run", s.Running)
		set(s, v.set, false, "Aborted", message)
		setStalled(s, v.set, "Aborted", message)
	case v.stall != "":
		message := fmt.Sprintf("%d nodes failed and %d refused, which is above spec.failureThreshold", s.Failed, s.Refused)
		if len(s.Failures) > 0 {
			f := s.Failures[0]
			message += fmt.Sprintf("; the first: %s (%s: %s)", f.Node, f.Reason, f.Message)
		}
		set(s, v.set, false, v.stall, message+". Change spec.template, raise spec.retry, or raise the threshold")
		setStalled(s, v.set, v.stall, message)
	case spec.Paused:
		set(s, v.set, false, "Paused", fmt.Sprintf("spec.paused is set: no more operations begin, %d still run", s.Running))
		setReconciling(s, v.set, "Paused", "spec.paused is set")
	case v.complete:
		set(s, v.set, true, "Complete", v.completed(s))
	default:
		holds := v.holds
		if v.full != "" && s.Running == 0 { // while some run, their ends change it often
			holds += ": " + v.full
		}
		set(s, v.set, false, "Progressing", holds)
		setReconciling(s, v.set, "Progressing", holds)
	}
	if len(v.conflicts) > 0 {
		condition(s, v.set, v1alpha1.SetConflict, true, "OlderSet", v.conflictMessage())
	}
}

func (v *view) completed(s *v1alpha1.NodeOperationSetStatus) string {
	if s.Matched == 0 {
		field := "spec.nodeSelector"
		if pool := v.set.Spec.NodePool; pool != "" {
			field = "spec.nodePool " + pool
		}
		return field + " selects no edge node"
	}
	text := fmt.Sprintf("%d of %d nodes have done it", s.Done, s.Matched)
	if n := s.Failed + s.Refused; n > 0 {
		text += fmt.Sprintf(", %d failed or refused", n)
	}
	if s.Offline > 0 {
		text += fmt.Sprintf("; %d are offline and get it when they are back", s.Offline)
	}
	return text
}

func (v *view) conflictMessage() string {
	slices.Sort(v.conflicts)
	named := v.conflicts[:min(len(v.conflicts), 5)]
	return fmt.Sprintf("older sets have the operation %s on %d nodes: %s", v.set.Spec.Template.Operation, v.conflict1, strings.Join(named, ", "))
}

// stalled is the status of a set that can't be planned.
func stalled(s *Set, reason, message string) v1alpha1.NodeOperationSetStatus {
	status := s.Status
	status.Conditions = nil
	status.ObservedGeneration = s.Generation
	set(&status, s, false, reason, message)
	setStalled(&status, s, reason, message)
	return status
}

func set(status *v1alpha1.NodeOperationSetStatus, s *Set, ready bool, reason, message string) {
	condition(status, s, v1alpha1.SetReady, ready, reason, message)
	condition(status, s, v1alpha1.SetReconciling, false, reason, "")
	condition(status, s, v1alpha1.SetStalled, false, reason, "")
	condition(status, s, v1alpha1.SetConflict, false, "NoConflict", "")
}

func setStalled(status *v1alpha1.NodeOperationSetStatus, s *Set, reason, message string) {
	condition(status, s, v1alpha1.SetStalled, true, reason, message)
}

func setReconciling(status *v1alpha1.NodeOperationSetStatus, s *Set, reason, message string) {
	condition(status, s, v1alpha1.SetReconciling, true, reason, message)
}

// condition sets a condition, without a time.
func condition(status *v1alpha1.NodeOperationSetStatus, s *Set, kind string, is bool, reason, message string) {
	c := metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: cut(message, 1024), ObservedGeneration: s.Generation}
	if is {
		c.Status = metav1.ConditionTrue
	}
	if old := meta.FindStatusCondition(status.Conditions, kind); old != nil {
		*old = c
	} else {
		status.Conditions = append(status.Conditions, c)
	}
}

// Timed gives the conditions of a status their times: those of the former ones where those had the
// same status.
func Timed(status, former v1alpha1.NodeOperationSetStatus, now time.Time) v1alpha1.NodeOperationSetStatus {
	status.Conditions = slices.Clone(status.Conditions)
	for i := range status.Conditions {
		c := &status.Conditions[i]
		c.LastTransitionTime = metav1.NewTime(now).Rfc3339Copy()
		if old := meta.FindStatusCondition(former.Conditions, c.Type); old != nil && old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
	}
	return status
}
