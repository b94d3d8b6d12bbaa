package operationset_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/tests/cluster"
)

// Scenario 21: of two sets that want the same node and kind, the older continues; the newer has
// Conflict, and the nodes that the older does not select.
func TestFleet_21_TwoSets(t *testing.T) {
	s := newSystem(t, all(3)...)
	s.apply("older", update("v1", func(spec *v1alpha1.NodeOperationSetSpec) {
		spec.NodeSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: corev1.LabelHostname, Operator: metav1.LabelSelectorOpIn, Values: []string{"edge1", "edge2"}}}
	}))
	cluster.Eventually(t, "a second of its own", func(ctx context.Context) error { // creation times are seconds
		set, err := s.get(ctx, "older")
		if err == nil && time.Since(set.CreationTimestamp.Time) < 2*time.Second {
			err = errors.New("not yet")
		}
		return err
	})
	s.apply("newer", update("v2", nil))
	s.lead()
	s.await("older", "Complete", func(set *v1alpha1.NodeOperationSet) bool { return set.Status.Done == 2 })
	newer := s.await("newer", "Complete", func(set *v1alpha1.NodeOperationSet) bool { return set.Status.Done == 1 })
	if c := meta.FindStatusCondition(newer.Status.Conditions, v1alpha1.SetConflict); c == nil || c.Status != metav1.ConditionTrue || !strings.Contains(c.Message, "on 2 nodes: older") {
		t.Errorf("the newer one's condition is %+v", c)
	}
	if ran := s.taken(); fmt.Sprint(ran) != "map[edge1:[v1] edge2:[v1] edge3:[v2]]" {
		t.Errorf("operations were %v", ran)
	}
	if err := s.sets.Delete(t.Context(), "older", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.await("newer", "Complete", func(set *v1alpha1.NodeOperationSet) bool { return set.Status.Done == 3 })
}
