package operationset

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/cloud/internal/controllers/controller"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

const (
	// settle is the time for further changes before a plan: reports of a fleet come in waves.
	settle = 500 * time.Millisecond
	// retry is the first delay after a failure.
	retry = time.Second
	// syncTimeout bounds the requests of one plan.
	syncTimeout = time.Minute
)

// Controller carries the sets out.
func Controller() controller.Config {
	return controller.Config{Name: "nodeoperationsets", Settle: settle, RetryMin: retry, Timeout: syncTimeout, Start: start}
}

func start(_ context.Context, r *controller.Run) (controller.Work, error) {
	nodes, ours := corev1.SchemeGroupVersion.WithResource("nodes"), v1alpha1.Resource
	l := &leadership{
		setKind:       controller.Of[v1alpha1.NodeOperationSet](r, ours(v1alpha1.NodeOperationSets)),
		operationKind: controller.Of[v1alpha1.NodeOperation](r, ours(v1alpha1.NodeOperations)),
		nodeKind:      controller.Of[corev1.Node](r, nodes),
		written:       map[types.UID]time.Time{},
	}
	l.state = (&mirrors{
		sets:       controller.Mirror(r, ours(v1alpha1.NodeOperationSets), reader(l.setKind, NewSet), sameSet, r.Wake),
		operations: controller.Mirror(r, ours(v1alpha1.NodeOperations), reader(l.operationKind, NewOperation), nil, r.Wake),
		nodes:      controller.Mirror(r, nodes, l.node, sameNode, r.Wake),
		pools:      controller.Mirror(r, ours(v1alpha1.NodePools), reader(controller.Of[v1alpha1.NodePool](r, ours(v1alpha1.NodePools)), newPool), nil, r.Wake),
	}).state
	return controller.Level(l.sync), nil
}

// sync plans once and makes the changes.
func (l *leadership) sync(ctx context.Context) (again time.Duration, err error) {
	now := time.Now()
	s, err := l.state(now)
	if err != nil {
		return 0, err
	}
	changes := Plan(s)
	maps.DeleteFunc(l.written, func(uid types.UID, _ time.Time) bool {
		return !slices.ContainsFunc(s.Sets, func(set *Set) bool { return set.UID == uid })
	})
	more, err := l.apply(ctx, s, changes)
	for _, status := range changes.Status {
		wait, failed := l.report(ctx, status, now)
		err = errors.Join(err, failed)
		if wait > 0 {
			changes.again(now.Add(wait))
		}
	}
	switch {
	case err != nil:
		return 0, err
	case more:
		return time.Millisecond, nil
	case changes.Again.IsZero():
		return 0, nil
	}
	return max(time.Millisecond, time.Until(changes.Again)), nil
}
