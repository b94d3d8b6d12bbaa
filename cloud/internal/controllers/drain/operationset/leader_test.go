package operationset_test

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// Scenario 19: the leader dies at its writes, before and after them, in each wave; no device has an
// operation twice, and no device is left out.
func TestFleet_19_LeaderIsKilledInEachWave(t *testing.T) {
	const nodes = 9
	s := newSystem(t, all(nodes)...)
	s.apply("a", update("v1", func(spec *v1alpha1.NodeOperationSetSpec) {
		spec.Waves = []v1alpha1.OperationWave{{Percent: percent(12), Soak: soak(2 * time.Second)}, {Percent: percent(33)}}
	}))
	killed := map[string]int{}
	for n := range 60 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		done := make(chan struct{})
		go func() { defer close(done); s.run(ctx, 1+n%4, n%2 == 0) }()
		<-done
		cancel()
		set, err := s.get(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		wave := map[bool]string{set.Status.Done < 2: "1", set.Status.Done >= 2 && set.Status.Done < 5: "2", set.Status.Done >= 5: "3"}[true]
		killed[wave]++
		if set.Status.Done == nodes {
			break
		}
	}
	s.lead()
	s.await("a", "Complete", func(set *v1alpha1.NodeOperationSet) bool { return set.Status.Done == nodes })
	if killed["1"] == 0 || killed["2"] == 0 || killed["3"] == 0 {
		t.Errorf("it was killed so often in the waves: %v", killed)
	}
	for node, ran := range s.taken() {
		if len(ran) != 1 {
			t.Errorf("%s had %d operations", node, len(ran))
		}
	}
	if ran := s.taken(); len(ran) != nodes {
		t.Errorf("operations ran on %v", slices.Sorted(maps.Keys(ran)))
	}
	t.Logf("killed in wave 1, 2, 3: %v", killed)
}
