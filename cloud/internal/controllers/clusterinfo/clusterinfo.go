// Package clusterinfo publishes the statistics of the cluster (ClusterInfo) while a device is
// elected their reporter.
//
// It owns the Lease of that election, as devices ask for it (Lease), and the status of the
// ClusterInfo (Controller). A device that holds the Lease has a link and its configuration; it
// needs no data of other devices for that. The statistics are those of cloudcore's informers. It
// refuses to publish without a holder: a released Lease removes the statistics, an expired one
// leaves them there with their age.
//
// Render and decide are pure. A Lease may be used by many goroutines; a Controller runs on one, on
// one replica at a time. Bounds: each list of the status has a greatest length (most...), and
// counts the omitted entries; at most one write in Interval, and one for each change of the holder.
package clusterinfo

import (
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// defaultInterval is the kind's own default, for an object that was made without it.
const defaultInterval = time.Minute

// The reasons of the condition Current.
const (
	reasonReporting = "Reporting"
	reasonNoLeader  = "NoLeader"     // the Lease was given back, or never taken
	reasonSilent    = "LeaderSilent" // the Lease has run out
	reasonNotChosen = "NotCandidate" // its holder is not selected any more
)

// holding is the Lease's holder and times.
type holding struct {
	holder  string
	renewed time.Time
	until   time.Time
}

func readLease(l *coordinationv1.Lease) (h holding) {
	if l == nil || l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity == "" || l.Spec.RenewTime == nil || l.Spec.LeaseDurationSeconds == nil {
		return h
	}
	h.holder, h.renewed = *l.Spec.HolderIdentity, l.Spec.RenewTime.Time
	h.until = h.renewed.Add(time.Duration(*l.Spec.LeaseDurationSeconds) * time.Second)
	return h
}

// valid reports whether there is a holder at a moment of cloudcore's clock, by which the Lease
// is renewed too.
func (h holding) valid(now time.Time) bool { return h.holder != "" && now.Before(h.until) }

// decide returns the status for now. collect is called where the statistics are to be collected.
// next is the time of the next decision without a change.
func decide(info *v1alpha1.ClusterInfo, h holding, candidate func(node string) bool, now time.Time, collect func() v1alpha1.ClusterInfoStatus) (status v1alpha1.ClusterInfoStatus, next time.Duration) {
	before := info.Status
	interval := defaultInterval
	if d := info.Spec.Interval; d != nil {
		interval = d.Duration
	}
	current := metav1.Condition{Type: v1alpha1.ClusterInfoCurrent, Status: metav1.ConditionFalse, ObservedGeneration: info.Generation, LastTransitionTime: at(now)}
	switch {
	case h.holder == "":
		current.Reason, current.Message = reasonNoLeader, "no device with a link and its configuration has offered to report"
	case !candidate(h.holder):
		current.Reason, current.Message = reasonNotChosen, fmt.Sprintf("%s holds the Lease, and is no candidate", h.holder)
	case !h.valid(now):
		status = *before.DeepCopy()
		status.Reporter = ""
		current.Reason = reasonSilent
		current.Message = fmt.Sprintf("%s has not renewed its Lease since %s, and no other device has taken its place: the statistics are of %s", h.holder, text(h.renewed), text(collected(before)))
	default:
		current.Status, current.Reason, current.Message = metav1.ConditionTrue, reasonReporting, h.holder+" reports"
		due := collected(before).Add(interval)
		if before.Reporter == h.holder && before.ObservedGeneration == info.Generation && now.Before(due) && !now.Before(collected(before)) {
			status, next = *before.DeepCopy(), due.Sub(now)
		} else {
			status, next = collect(), interval
			t := at(now)
			status.CollectTime = &t
		}
		status.Reporter = h.holder
		next = max(min(next, h.until.Sub(now)), time.Second)
	}
	status.ObservedGeneration = info.Generation
	status.Conditions = append([]metav1.Condition(nil), before.Conditions...)
	meta.SetStatusCondition(&status.Conditions, current)
	return status, next
}

func collected(s v1alpha1.ClusterInfoStatus) time.Time {
	if s.CollectTime == nil {
		return time.Time{}
	}
	return s.CollectTime.Time
}

func at(t time.Time) metav1.Time { return metav1.NewTime(t.UTC()).Rfc3339Copy() }

func text(t time.Time) string { return t.UTC().Format(time.RFC3339) }
