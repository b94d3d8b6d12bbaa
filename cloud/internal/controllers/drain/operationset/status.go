package operationset

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/cloud/internal/controllers/controller"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

const (
	// statusEvery is between two statuses of a set of which only the counts differ.
	statusEvery = 2 * time.Second
	// behind is the delay after a conflict, in which the watch brings the newer version.
	behind = time.Second
)

// report writes the status of a set where it differs. wait: it waits for further changes.
func (l *leadership) report(ctx context.Context, change Status, now time.Time) (wait time.Duration, err error) {
	s := change.Set
	status := Timed(change.Status, s.Status, now)
	if equality.Semantic.DeepEqual(status, s.Status) {
		return 0, nil
	}
	sameConditions := len(status.Conditions) == len(s.Status.Conditions)
	for i := range status.Conditions {
		sameConditions = sameConditions && status.Conditions[i].Status == s.Status.Conditions[i].Status && status.Conditions[i].Reason == s.Status.Conditions[i].Reason
	}
	if next := l.written[s.UID].Add(statusEvery); sameConditions && now.Before(next) {
		return next.Sub(now), nil
	}
	l.written[s.UID] = now
	o := s.DeepCopy()
	o.Status = status
	switch err = l.setKind.UpdateStatus(ctx, o); {
	case err == nil:
		l.event(s, status)
	case controller.ClassOf(err) == controller.Conflict:
		return behind, nil
	}
	return 0, err
}

// event records events about a set whose wave or conditions have changed.
func (l *leadership) event(s *Set, status v1alpha1.NodeOperationSetStatus) {
	if status.Wave != s.Status.Wave {
		l.setKind.Event(s.NodeOperationSet, corev1.EventTypeNormal, "WaveBegun", fmt.Sprintf("wave %s: %s", status.Wave, describe(s, "")))
	}
	for _, now := range status.Conditions {
		if now.Status != metav1.ConditionTrue || now.Type == v1alpha1.SetReconciling || same(now, s.Status.Conditions) {
			continue
		}
		kind := corev1.EventTypeWarning
		if now.Type == v1alpha1.SetReady {
			kind = corev1.EventTypeNormal
		}
		l.setKind.Event(s.NodeOperationSet, kind, now.Reason, cut(now.Message, 900))
	}
}

// same reports whether a condition was there with the same status and reason.
func same(c metav1.Condition, former []metav1.Condition) bool {
	return slices.ContainsFunc(former, func(old metav1.Condition) bool {
		return old.Type == c.Type && old.Status == c.Status && old.Reason == c.Reason
	})
}

// describe is the operation of a set and who requested it, for events. digest is of the program
// that a device found for an upgrade; "": unknown. A configuration is identified by its template.
func describe(s *Set, digest string) string {
	t := &s.Spec.Template
	text := string(t.Operation)
	if subject := subject(t); subject != "" {
		text += " " + subject
	}
	switch {
	case t.Operation == v1alpha1.OperationConfig:
		text += " of template " + s.Template
	case t.Upgrade != nil && t.Upgrade.Digest == "" && digest != "":
		text += " " + digest
	}
	if by := s.Annotations[v1alpha1.RequestedByAnnotation]; by != "" {
		text += ", requested by " + by
	}
	return cut(text, 400)
}
