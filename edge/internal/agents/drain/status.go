package drain

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

const (
	maxReport      = 12 << 10 // bytes of a status; the cloud takes 16 KiB
	maxOutput      = 4096     // characters of a hook's output in a status
	maxConditionAt = 1024
)

// statusOf returns the NodeOperationStatus of an operation.
func statusOf(o Operation, drainMessage string) v1alpha1.NodeOperationStatus {
	s := v1alpha1.NodeOperationStatus{
		Phase: o.Phase, PhaseNumber: int32(o.Phase.Number()), RequestedBy: o.RequestedBy, RequestedAt: timeOf(o.RequestedAt), Attempts: int32(o.Attempts), BlockedPods: o.Blocked,
		BootIDBefore: o.BootBefore, BootIDAfter: o.BootAfter, Output: tailOf(o.Output, maxOutput), CompletedAt: timeOf(o.EndedAt),
	}
	if o.own() {
		s.ObservedRetry = o.Spec.Retry
	}
	if w := o.Work; w != nil {
		s.Upgrade, s.Checks, s.Images = w.Upgrade, w.Checks, w.Images
	}
	if o.ExitCode != nil {
		code := int32(*o.ExitCode)
		s.ExitCode = &code
	}
	done := metav1.Condition{
		Type: v1alpha1.OperationDone, Status: metav1.ConditionFalse, Reason: string(o.Stage), Message: o.Message, LastTransitionTime: metav1.NewTime(o.RequestedAt),
	}
	if o.Stage == Running && o.Work != nil && o.Work.Waits {
		done.Reason = string(Waiting)
	}
	if o.ended() {
		done.Reason, done.LastTransitionTime = o.Reason, metav1.NewTime(o.EndedAt)
	} else if o.Message == "" {
		done.Message = drainMessage
	}
	done.Message = headOf(done.Message, maxConditionAt)
	other := done
	other.Status = metav1.ConditionTrue
	switch o.Stage {
	case Done:
		done.Status = metav1.ConditionTrue
		s.Conditions = []metav1.Condition{done}
	case Failed:
		other.Type = v1alpha1.OperationFailed
		s.Conditions = []metav1.Condition{done, other}
	case Cancelled:
		other.Type = v1alpha1.OperationCancelled
		s.Conditions = []metav1.Condition{done, other}
	default:
		s.Conditions = []metav1.Condition{done}
	}
	return s
}

// reportOf encodes the status as JSON. If it is too long, the API's messages on pods are dropped
// first, then pods.
func reportOf(s v1alpha1.NodeOperationStatus) ([]byte, error) {
	for short := false; ; short = true {
		raw, err := json.Marshal(s)
		if err != nil {
			return nil, fmt.Errorf("writing a status: %w", err)
		}
		if len(raw) > maxReport && len(s.Images) > 0 { // healthy ones are dropped first
			s.Images = shorter(s.Images)
			continue
		}
		if len(raw) <= maxReport || len(s.BlockedPods) == 0 {
			return raw, nil
		}
		if !short {
			s.BlockedPods = append([]v1alpha1.BlockedPod(nil), s.BlockedPods...)
			for i := range s.BlockedPods {
				s.BlockedPods[i].Message = headOf(s.BlockedPods[i].Message, 64)
			}
			continue
		}
		s.BlockedPods = s.BlockedPods[:len(s.BlockedPods)/2]
	}
}

// timeOf is a time as the API has it, in whole seconds.
func timeOf(t time.Time) *metav1.Time {
	if t.IsZero() {
		return nil
	}
	m := metav1.NewTime(t).Rfc3339Copy()
	return &m
}

func headOf(s string, most int) string {
	r := []rune(s)
	return string(r[:min(len(r), most)])
}

func tailOf(s string, most int) string {
	r := []rune(s)
	return string(r[max(0, len(r)-most):])
}

// shorter leaves out the images that are on the device and kept, and then the last ones.
func shorter(images []v1alpha1.PulledImage) []v1alpha1.PulledImage {
	left := slices.DeleteFunc(slices.Clone(images), func(i v1alpha1.PulledImage) bool { return i.Pulled && i.Kept })
	if len(left) == len(images) {
		return left[:len(left)/2]
	}
	return left
}
