package v1alpha1

import (
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// NodePoolAnnotation of a StaticRoute with nodePool has, as JSON, the members of that pool
// (PoolMembers). cloudcore writes it; nodes use it also when they have no link.
const NodePoolAnnotation = "skerry.io/node-pool-members"

// RouteCoversAnnotation of a StaticRoute names the node whose pods its subnet overlaps:
// "10.244.3.0/24, the pods of node edge7". cloudcore writes it, because a node does not have the
// other nodes' pod ranges; the nodes refuse the route then.
const RouteCoversAnnotation = "skerry.io/route-covers"

// PoolMembers lists the members of a NodePool.
type PoolMembers struct {
	// Pool is its name.
	Pool string `json:"pool"`
	// NodeSelector is the NodePool's. Empty where the NodePool has no selector, or does not exist.
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`
}

// Selector decides by the labels of a Node whether it is in the pool: by nodeSelector, or without
// it, by the label that names the node's pool.
func (m PoolMembers) Selector() (func(labels.Set) bool, error) {
	if m.NodeSelector != nil {
		selector, err := metav1.LabelSelectorAsSelector(m.NodeSelector)
		if err != nil {
			return nil, fmt.Errorf("nodeSelector of NodePool %s: %w", m.Pool, err)
		}
		return func(l labels.Set) bool { return selector.Matches(l) }, nil
	}
	return func(l labels.Set) bool {
		if own, ok := l[NodePoolLabel]; ok {
			return own == m.Pool
		}
		return l[OpenYurtNodePoolLabel] == m.Pool
	}, nil
}

// PoolMembers reads the members of the pool of a StaticRoute. known is false until it is recorded
// for the pool that the route names now.
func (r *StaticRoute) PoolMembers() (members PoolMembers, known bool) {
	if err := json.Unmarshal([]byte(r.Annotations[NodePoolAnnotation]), &members); err != nil || members.Pool != r.Spec.NodePool {
		return PoolMembers{}, false
	}
	return members, true
}
