package drain

import (
	"encoding/json"

	corev1 "k8s.io/api/core/v1"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

const (
	owner        = "edgecore"       // the value of the annotation on a cordon of ours
	fieldManager = "edgecore-drain" // field manager of our cordon in the Node's managedFields
)

// ours reports whether a node's cordon was set by a drain of edgecore, and is still that one:
// a client that has removed it and set it again is in managedFields as the owner of
// spec.unschedulable. In a cluster that strips managedFields only the annotation shows it.
func ours(n *corev1.Node) bool {
	if !n.Spec.Unschedulable || n.Annotations[v1alpha1.CordonAnnotation] != owner {
		return false
	}
	for _, m := range n.ManagedFields {
		if m.Manager != fieldManager || m.Subresource != "" || m.FieldsV1 == nil {
			continue
		}
		var set struct {
			Spec map[string]json.RawMessage `json:"f:spec"`
		}
		if err := json.Unmarshal(m.FieldsV1.GetRawBytes(), &set); err != nil {
			continue
		}
		if _, sets := set.Spec["f:unschedulable"]; sets {
			return true
		}
	}
	return len(n.ManagedFields) == 0
}
