package drain

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/cloud/internal/controllers/controller"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

const (
	// settle is how long further changes are waited for: operations for a whole fleet come
	// in waves.
	settle = 250 * time.Millisecond
	// retry is the delay after a failure.
	retry = 10 * time.Second
)

// Unknown reports in the status of a NodeOperation that no device will take it up: the cluster has
// no edge node of that name. It touches no operation that a device has reported of.
func Unknown() controller.Config {
	return controller.Config{Name: "nodeoperations", Settle: settle, RetryMin: retry, RetryMax: retry, Start: start}
}

func start(_ context.Context, r *controller.Run) (controller.Work, error) {
	u := &unknown{operations: controller.Watch[v1alpha1.NodeOperation](r, v1alpha1.Resource(v1alpha1.NodeOperations), r.Any)}
	u.nodes = controller.Watch[corev1.Node](r, corev1.SchemeGroupVersion.WithResource("nodes"), func(old, now *kube.Object) {
		if old == nil || now == nil || edge(old) != edge(now) {
			r.Wake()
		}
	})
	return controller.Level(u.sync), nil
}

func edge(o *kube.Object) bool { return v1alpha1.IsEdge(o.Labels) }

// unknown is one leadership.
type unknown struct {
	operations *controller.Collection[v1alpha1.NodeOperation]
	nodes      *controller.Collection[corev1.Node]
}

// sync goes through all operations, and writes those whose word about the node is not true.
func (u *unknown) sync(ctx context.Context) (time.Duration, error) {
	edges, others := map[string]bool{}, map[string]bool{}
	u.nodes.Each(func(n *kube.Object) bool {
		if edge(n) {
			edges[n.Name] = true
		} else {
			others[n.Name] = true
		}
		return true
	})
	operations, err := u.operations.List()
	errs := []error{err}
	for _, o := range operations {
		why := ""
		switch name := o.Spec.NodeName; {
		case others[name]:
			why = fmt.Sprintf("node %s is no edge node: no device will take the operation up", name)
		case !edges[name]:
			why = fmt.Sprintf("the cluster has no node %s: no device will take the operation up", name)
		}
		if !reported(o) && unknownReason(o) != why {
			errs = append(errs, u.write(ctx, o, why))
		}
	}
	return 0, errors.Join(errs...)
}

// reported tells whether a device has reported an operation: it sets the time at which it took it.
func reported(o *v1alpha1.NodeOperation) bool {
	return o.Status.RequestedAt != nil || o.Status.Phase != ""
}

// unknownReason is the reason why the node is unknown in the status; "" if it is known.
func unknownReason(o *v1alpha1.NodeOperation) string {
	if c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.OperationDone); c != nil && c.Reason == v1alpha1.OperationNodeUnknown {
		return c.Message
	}
	return ""
}

// write sets or removes the condition, on condition that the operation is the version that was
// read.
func (u *unknown) write(ctx context.Context, o *v1alpha1.NodeOperation, why string) error {
	if why == "" {
		meta.RemoveStatusCondition(&o.Status.Conditions, v1alpha1.OperationDone)
	} else {
		meta.SetStatusCondition(&o.Status.Conditions, metav1.Condition{
			Type: v1alpha1.OperationDone, Status: metav1.ConditionFalse, Reason: v1alpha1.OperationNodeUnknown, Message: why, ObservedGeneration: o.Generation,
		})
	}
	return u.operations.UpdateStatus(ctx, o)
}
