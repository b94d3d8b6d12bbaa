package drain

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// An operation is deleted at its time, unless it has not ended, begins again, holds its node, or is
// a set's.
func TestExpire(t *testing.T) {
	now := time.Date(2026, 11, 28, 1, 0, 0, 0, time.UTC)
	const minute int32 = 60
	operation := func(name string, ttl *int32, ago time.Duration, change func(*v1alpha1.NodeOperation)) *v1alpha1.NodeOperation {
		o := &v1alpha1.NodeOperation{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
		o.Spec.Operation, o.Spec.TTLSecondsAfterFinished = v1alpha1.OperationUpgrade, ttl
		if ago != 0 {
			at := metav1.NewTime(now.Add(-ago))
			o.Status.CompletedAt = &at
		}
		if change != nil {
			change(o)
		}
		return o
	}
	of := func(operation v1alpha1.OperationType) func(*v1alpha1.NodeOperation) {
		return func(o *v1alpha1.NodeOperation) {
			o.Spec.Operation, o.Status.Phase = operation, v1alpha1.DrainComplete
		}
	}
	all := []*v1alpha1.NodeOperation{
		operation("over", new(minute), time.Hour, nil),
		operation("at-once", new(int32(0)), time.Millisecond, nil),
		operation("soon", new(minute), 40*time.Second, nil),
		operation("later", new(minute), 10*time.Second, nil),
		operation("by-a-clock-of-1970", new(minute), 50*365*24*time.Hour, func(o *v1alpha1.NodeOperation) { o.CreationTimestamp = metav1.NewTime(now.Add(-30 * time.Second)) }),
		operation("by-a-clock-of-2060", new(minute), -34*365*24*time.Hour, nil),
		operation("stays", nil, time.Hour, nil),
		operation("running", new(minute), 0, nil),
		operation("again", new(minute), time.Hour, func(o *v1alpha1.NodeOperation) { o.Spec.Retry = 1 }),
		operation("tried-again", new(minute), time.Hour, func(o *v1alpha1.NodeOperation) { o.Spec.Retry, o.Status.ObservedRetry = 1, 1 }),
		operation("of-a-set", new(minute), time.Hour, func(o *v1alpha1.NodeOperation) { o.Labels = map[string]string{v1alpha1.OperationSetLabel: "x"} }),
		operation("goes-already", new(minute), time.Hour, func(o *v1alpha1.NodeOperation) { o.DeletionTimestamp = &metav1.Time{Time: now} }),
		operation("drained", new(minute), time.Hour, of(v1alpha1.OperationDrain)),
		operation("image", new(minute), time.Hour, of(v1alpha1.OperationImageUpdate)),
		operation("rebooted", new(minute), time.Hour, of(v1alpha1.OperationReboot)),
		operation("undrained", new(minute), time.Hour, func(o *v1alpha1.NodeOperation) { of(v1alpha1.OperationDrain)(o); o.Spec.Cancel = true }),
	}
	refused := errors.New("refused")
	var gone []string
	seen := ends{}
	next, err := seen.expire(all, now, func(o *v1alpha1.NodeOperation) error {
		gone = append(gone, o.Name)
		if o.Name == "rebooted" {
			return refused
		}
		return nil
	}, nil)
	if want := []string{"over", "at-once", "tried-again", "image", "rebooted", "undrained"}; !slices.Equal(gone, want) {
		t.Errorf("deleted %v, want %v", gone, want)
	}
	if next != 20*time.Second || !errors.Is(err, refused) {
		t.Errorf("next in %v, error %v", next, err)
	}
	gone = nil
	remove := func(o *v1alpha1.NodeOperation) error {
		gone = append(gone, o.Name)
		return nil
	}
	wrong := slices.DeleteFunc(all, func(o *v1alpha1.NodeOperation) bool { return !strings.HasPrefix(o.Name, "by-a-clock-of-") })
	if next, err := seen.expire(wrong, now.Add(59*time.Second), remove, nil); len(gone) > 0 || next != time.Second || err != nil {
		t.Errorf("of devices with wrong clocks, after 59 s: deleted %v, next in %v, error %v", gone, next, err)
	}
	if _, err := seen.expire(wrong, now.Add(60*time.Second), remove, nil); len(gone) != 2 || err != nil {
		t.Errorf("of devices with wrong clocks, after 60 s: deleted %v, error %v", gone, err)
	}
	if _, _ = seen.expire(nil, now, remove, nil); len(seen) > 0 {
		t.Errorf("it remembers deleted operations: %v", seen)
	}
}
