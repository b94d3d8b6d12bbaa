package operationset

import (
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/cloud/internal/controllers/controller"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// leadership is one run.
type leadership struct {
	setKind       *controller.Kind[v1alpha1.NodeOperationSet]
	operationKind *controller.Kind[v1alpha1.NodeOperation]
	nodeKind      *controller.Kind[corev1.Node]
	// state reads the shared copies.
	state   func(now time.Time) (State, error)
	written map[types.UID]time.Time // statuses
}

// mirrors are the collections that a plan is made from.
type mirrors struct {
	sets       *kube.Mirror[Set]
	operations *kube.Mirror[Operation]
	nodes      *kube.Mirror[Node]
	pools      *kube.Mirror[Pool]
}

// reader makes the function of a mirror that keeps the fields that convert takes from an object.
func reader[T, M any](kind *controller.Kind[T], convert func(*T) *M) func(*kube.Object) (*M, error) {
	return func(o *kube.Object) (*M, error) {
		object, err := kind.Read(o)
		if err != nil {
			return nil, err
		}
		return convert(object), nil
	}
}

// node reads a node of the shared copy, and shares its metadata: there may be thousands.
func (l *leadership) node(o *kube.Object) (*Node, error) {
	n, err := reader(l.nodeKind, NewNode)(o)
	if err != nil {
		return nil, err
	}
	n.Name, n.UID, n.Labels = o.Name, o.UID, o.Labels
	return n, nil
}

// sameSet reports whether all but the status is the same.
func sameSet(old, now *Set) bool {
	return old.UID == now.UID && old.Generation == now.Generation && maps.Equal(old.Annotations, now.Annotations)
}

func sameNode(old, now *Node) bool {
	return old.UID == now.UID && old.Machine == now.Machine && old.Ready == now.Ready && old.Since.Equal(now.Since) && old.Unread == now.Unread && old.Rescued.Equal(now.Rescued) &&
		maps.Equal(old.Labels, now.Labels) && equality.Semantic.DeepEqual(old.Results, now.Results)
}

func newPool(p *v1alpha1.NodePool) *Pool {
	matches, err := v1alpha1.PoolMembers{Pool: p.Name, NodeSelector: p.Spec.NodeSelector}.Selector()
	if err != nil {
		matches = func(labels.Set) bool { return false } // its own status reports that
	}
	return &Pool{p.Name, matches}
}

func (m *mirrors) state(now time.Time) (s State, err error) {
	s.Now = now
	if s.Sets, err = m.sets.List(); err != nil {
		return s, err
	}
	if s.Operations, err = m.operations.List(); err != nil {
		return s, err
	}
	nodes, err := m.nodes.List()
	if err != nil {
		return s, err
	}
	for _, n := range nodes {
		if v1alpha1.IsEdge(n.Labels) {
			s.Nodes = append(s.Nodes, n)
		}
	}
	pools, err := m.pools.List()
	for _, p := range pools {
		s.Pools = append(s.Pools, *p)
	}
	return s, err
}
