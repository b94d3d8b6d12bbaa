package operationset_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// Scenario 23: never two devices of a pool at once.
func TestFleet_23_NeverTwoDevicesOfAPoolAtOnce(t *testing.T) {
	s := newSystem(t)
	for i := range 9 {
		s.join(fmt.Sprintf("edge%d", i+1), fmt.Sprintf("pool%d", i%3))
	}
	s.link("edge1", corev1.ConditionFalse) // pool0 has one that is unavailable: it alone gets an operation, until it is back
	s.behave(func(o *v1alpha1.NodeOperation) string {
		if time.Since(o.CreationTimestamp.Time) < time.Second {
			return "Running"
		}
		return booted
	})
	s.apply("a", update("v1", nil))
	s.lead()
	s.await("a", "Progressing", func(set *v1alpha1.NodeOperationSet) bool { // 3 + 3 + edge1
		c := meta.FindStatusCondition(set.Status.Conditions, v1alpha1.SetReady)
		return set.Status.Done == 7 && strings.Contains(c.Message, "waits for NodePool pool0, of which 1 nodes are unavailable")
	})
	if ran := s.taken(); len(ran["edge4"])+len(ran["edge7"]) > 0 || len(ran["edge1"]) != 1 {
		t.Errorf("while edge1 is NotReady operations began on %v", slices.Sorted(maps.Keys(ran)))
	}
	s.link("edge1", corev1.ConditionTrue)
	s.await("a", "Complete", func(set *v1alpha1.NodeOperationSet) bool { return set.Status.Done == 9 })
	s.mu.Lock()
	defer s.mu.Unlock()
	for pool, n := range s.atOnce {
		if n != 1 {
			t.Errorf("%d devices of %s had an operation at once", n, pool)
		}
	}
}
