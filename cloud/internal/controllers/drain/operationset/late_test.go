package operationset_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// Scenario 18: an away device and a new one get the newest template alone, long after the waves.
func TestFleet_18_LateAndNewDevicesGoStraightToTheNewest(t *testing.T) {
	s := newSystem(t, all(3)...)
	s.link("edge3", corev1.ConditionUnknown)
	s.lead()
	waves := func(spec *v1alpha1.NodeOperationSetSpec) {
		spec.Waves = []v1alpha1.OperationWave{{Percent: percent(30)}, {Percent: percent(30)}}
	}
	for i, image := range []string{"v1", "v2", "v3"} {
		s.apply("a", update(image, waves))
		set := s.await("a", "Complete", nil)
		if set.Status.Done != 2 || set.Status.Offline != 1 {
			t.Fatalf("template %d: %+v", i+1, set.Status)
		}
	}
	s.link("edge3", corev1.ConditionTrue)
	s.join("new", "")
	s.await("a", "Complete", func(set *v1alpha1.NodeOperationSet) bool { return set.Status.Done == 4 })
	ran := s.taken()
	if strings.Join(ran["edge3"], " ") != "v3" || strings.Join(ran["new"], " ") != "v3" || strings.Join(ran["edge1"], " ") != "v1 v2 v3" {
		t.Errorf("devices had %v", ran)
	}
}
