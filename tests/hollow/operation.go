package hollow

import (
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// Report sends a status of an operation up. It may be called by any goroutine.
type Report func(v1alpha1.NodeOperationStatus)

// Operate is a device's part of a NodeOperation: it is called with each version of an operation of
// the node's, and must not block.
type Operate func(node string, o *v1alpha1.NodeOperation, report Report)

// Ends is an Operate that ends each operation at once, with the result of the node: Done, or the
// reason of a failure.
func Ends(result func(node string, o *v1alpha1.NodeOperation) string) Operate {
	return func(node string, o *v1alpha1.NodeOperation, report Report) {
		if o.Status.CompletedAt == nil {
			report(Ended(result(node, o)))
		}
	}
}

// Done is the reason of an operation that was carried out.
const Done = "Done"

// Ended is the status of an operation that has ended.
func Ended(reason string) v1alpha1.NodeOperationStatus {
	s := Under(reason, "a hollow node does no more than report")
	s.CompletedAt = s.RequestedAt
	if reason == Done {
		s.Conditions[0].Status = metav1.ConditionTrue
	} else {
		failed := s.Conditions[0]
		failed.Type, failed.Status = v1alpha1.OperationFailed, metav1.ConditionTrue
		if reason == "Cancelled" {
			failed.Type = v1alpha1.OperationCancelled
		}
		s.Conditions = append(s.Conditions, failed)
	}
	return s
}

// Under is the status of an operation that has not ended: Waiting or Running.
func Under(reason, text string) v1alpha1.NodeOperationStatus {
	now := metav1.Now().Rfc3339Copy()
	return v1alpha1.NodeOperationStatus{
		Phase: v1alpha1.DrainNotRequested, RequestedAt: &now,
		Conditions: []metav1.Condition{{Type: v1alpha1.OperationDone, Status: metav1.ConditionFalse, Reason: reason, Message: text, LastTransitionTime: now}},
	}
}

// operationsOf is the interest in a node's operations.
func operationsOf(node string, id uint64) *topicpb.Interest {
	return &topicpb.Interest{
		Id: id, Resource: &topicpb.Resource{Group: v1alpha1.Group, Version: v1alpha1.Version, Resource: v1alpha1.NodeOperations}, FieldSelector: "spec.nodeName=" + node,
	}
}

// reports are a node's reports that cloudcore has not answered: they outlive a session, as a
// device's outbox does.
type reports struct {
	mu      sync.Mutex
	waiting map[uint64]message.Message
}

func (r *reports) put(id uint64, m message.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting == nil {
		r.waiting = map[uint64]message.Message{}
	}
	r.waiting[id] = m
}

func (r *reports) all() (all []message.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.waiting {
		all = append(all, m)
	}
	return all
}

func (r *reports) answered(id uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.waiting, id)
}
