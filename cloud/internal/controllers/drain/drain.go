// Package drain is the cloud's side of NodeOperations: a node's report of one becomes its status.
//
// It is stateless. It refuses a report of another node's operation, and an invalid one. It makes no
// decisions either: the device decides when it may reboot, with or without a cloud. Its functions
// may be called from any goroutine.
package drain

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/skerry-io/skerry/cloud/internal/controllers/reports"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// Kind is NodeOperations as the aggregation of reports needs them. An operation of a node that was
// deleted stays as it is: the device may come back.
func Kind() reports.Kind {
	return reports.Of(v1alpha1.Resource(v1alpha1.NodeOperations), merge, func(*v1alpha1.NodeOperation, func(string) bool) {})
}

// Merge replaces the status by the report of the operation's node.
func Merge(o *v1alpha1.NodeOperation, node string, status []byte) error {
	return merge(o, map[string][]byte{node: status})[node]
}

// merge puts what the operation's own node reports in the place of the status. It comes from one
// node, in order, so the newest is the whole truth.
func merge(o *v1alpha1.NodeOperation, reports map[string][]byte) (refused map[string]error) {
	refused = map[string]error{}
	for node, body := range reports {
		if node != o.Spec.NodeName {
			refused[node] = fmt.Errorf("the operation is for node %s", o.Spec.NodeName)
			continue
		}
		var s v1alpha1.NodeOperationStatus
		if body == nil {
			refused[node] = errors.New("the status of an operation can't be taken back")
			continue
		}
		if err := json.Unmarshal(body, &s); err != nil {
			refused[node] = fmt.Errorf("the report is no status of a NodeOperation: %w", err)
			continue
		}
		if s.Phase != "" && !slices.Contains(v1alpha1.DrainPhases(), s.Phase) {
			refused[node] = fmt.Errorf("the report has phase %q", s.Phase)
			continue
		}
		s.PhaseNumber = int32(s.Phase.Number())
		s.RequestedBy = o.Annotations[v1alpha1.RequestedByAnnotation] // as kube-apiserver's admission wrote it, and not as the device reports it
		o.Status = s
	}
	return refused
}
