package drain

import (
	"context"
	"errors"
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/cloud/internal/controllers/controller"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// Expired deletes NodeOperations that ended spec.ttlSecondsAfterFinished ago. Those of a
// NodeOperationSet are the set's to delete, and a drain that holds its node has not ended.
func Expired() controller.Config {
	return controller.Config{Name: "nodeoperations-ttl", Settle: settle, RetryMin: retry, RetryMax: time.Minute, Start: func(_ context.Context, r *controller.Run) (controller.Work, error) {
		resource := v1alpha1.Resource(v1alpha1.NodeOperations)
		operations, kind := controller.Watch[v1alpha1.NodeOperation](r, resource, r.Any), controller.Of[v1alpha1.NodeOperation](r, resource)
		seen := ends{}
		return controller.Level(func(ctx context.Context) (time.Duration, error) {
			all, err := operations.List()
			return seen.expire(all, time.Now(), func(o *v1alpha1.NodeOperation) error { return kind.DeleteUnchanged(ctx, o) }, err) // not if a retry was asked for since
		}), nil
	}}
}

// ends are the times at which this leader first saw the ends of operations that devices report by a
// clock which is wrong by years.
type ends map[types.UID]time.Time

// expire deletes the operations whose time has come, and returns when the next one's will.
func (e ends) expire(all []*v1alpha1.NodeOperation, now time.Time, remove func(*v1alpha1.NodeOperation) error, err error) (time.Duration, error) {
	errs := []error{err}
	var next time.Duration
	known := maps.Clone(e)
	clear(e)
	for _, o := range all {
		end, ok := e.expiry(o, known, now)
		switch left := end.Sub(now); {
		case !ok:
		case left <= 0:
			errs = append(errs, remove(o))
		case next == 0 || left < next:
			next = left
		}
	}
	return next, errors.Join(errs...)
}

// expiry is when an operation is to be deleted; false: not as it is. completedAt is by the device's
// clock: where it is before the operation was created, as in 1970, or in the future, the time is
// counted from when the end was first seen.
func (e ends) expiry(o *v1alpha1.NodeOperation, known ends, now time.Time) (time.Time, bool) {
	ttl, ended := o.Spec.TTLSecondsAfterFinished, o.Status.CompletedAt
	switch {
	case ttl == nil || ended == nil || o.DeletionTimestamp != nil, o.Labels[v1alpha1.OperationSetLabel] != "", again(o), holds(o):
		return time.Time{}, false
	}
	at := ended.Time
	if ended.Before(&o.CreationTimestamp) || at.After(now) {
		first, ok := known[o.UID]
		if !ok {
			first = now
		}
		at, e[o.UID] = first, first
	}
	return at.Add(time.Duration(*ttl) * time.Second), true
}

// again reports whether a device will try an operation again.
func again(o *v1alpha1.NodeOperation) bool {
	return v1alpha1.RightOf(o.Spec.Operation) != "" && o.Spec.Retry > o.Status.ObservedRetry
}

// holds reports whether an operation that was done keeps its node drained until it is cancelled or
// deleted.
func holds(o *v1alpha1.NodeOperation) bool {
	return o.Spec.Operation == v1alpha1.OperationDrain && !o.Spec.Cancel && o.Status.Phase == v1alpha1.DrainComplete && o.Status.BootIDAfter == ""
}
