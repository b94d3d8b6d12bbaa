package creationorder_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/edge/internal/pods/creationorder"
)

func at(hour int) time.Time { return time.Unix(0, 0).Add(time.Duration(hour) * time.Hour) }

// The clock of these is hours since 1970; the dead were created at 100.
func TestPlan(t *testing.T) {
	dead := func(id string, attempt uint32, hour int) creationorder.Container {
		return creationorder.Container{ID: id, Sandbox: "s" + id, Pod: "p", Name: "c", Attempt: attempt, Created: at(hour), Dead: true, ExitCode: 1}
	}
	alive := func(id string, attempt uint32, hour int) creationorder.Container {
		c := dead(id, attempt, hour)
		c.Dead = false
		return c
	}
	unproven := func(c creationorder.Container) creationorder.Container { c.Unproven = true; return c }
	success := func(c creationorder.Container) creationorder.Container { c.ExitCode = 0; return c }
	box := func(id string, attempt uint32, hour int, ready bool) creationorder.Sandbox {
		return creationorder.Sandbox{ID: id, Pod: "p", Attempt: attempt, Created: at(hour), Ready: ready}
	}
	always := creationorder.Pod{Policy: corev1.RestartPolicyAlways}
	onFailure := creationorder.Pod{Policy: corev1.RestartPolicyOnFailure, Init: []string{"init"}}
	type boxes = []creationorder.Sandbox
	type containers = []creationorder.Container
	tests := map[string]struct {
		now   int
		pod   *creationorder.Pod // nil: not known
		boxes boxes
		have  containers
		want  creationorder.Removal
	}{
		"the clock is right":         {200, &always, boxes{box("sa", 0, 100, false)}, containers{dead("a", 0, 100)}, creationorder.Removal{}},
		"a boot in the past":         {1, &always, boxes{box("sa", 0, 100, false)}, containers{dead("a", 0, 100)}, creationorder.Removal{Sandboxes: []string{"sa"}}},
		"a boot a moment too early":  {99, &always, boxes{box("sa", 0, 100, false)}, containers{dead("a", 0, 100)}, creationorder.Removal{Sandboxes: []string{"sa"}}},
		"what runs stays":            {1, &always, boxes{box("sa", 0, 100, true)}, containers{alive("a", 0, 100)}, creationorder.Removal{}},
		"it would not be probed":     {1, &always, boxes{box("sa", 0, 100, true)}, containers{unproven(alive("a", 0, 100))}, creationorder.Removal{Stops: []string{"a"}}},
		"it is about to be probed":   {100, &always, boxes{box("sa", 0, 100, true)}, containers{unproven(alive("a", 0, 100))}, creationorder.Removal{}},
		"one that runs once":         {1, &onFailure, boxes{box("sa", 0, 100, true)}, containers{unproven(alive("a", 0, 100))}, creationorder.Removal{}},
		"one died after a step back": {50, &always, boxes{box("sa", 0, 100, true)}, containers{dead("a", 0, 100)}, creationorder.Removal{Containers: []string{"a"}}},
		"the clock is right again, the kubelet wants the second a second time": {
			200, &always, boxes{box("sa", 0, 100, false), box("sb", 1, 1, true)}, containers{dead("a", 0, 100), alive("b", 1, 1)}, creationorder.Removal{Sandboxes: []string{"sa"}},
		},
		"in their order": {
			200, &always, boxes{box("sa", 0, 100, false), box("sb", 1, 101, true)}, containers{dead("a", 0, 100), alive("b", 1, 101)}, creationorder.Removal{},
		},
		"of one age": {
			200, &always, boxes{box("sa", 0, 100, false), box("sb", 1, 100, true)}, containers{dead("a", 0, 100), alive("b", 1, 100)}, creationorder.Removal{Sandboxes: []string{"sa"}},
		},
		"Never runs nothing again":   {1, &creationorder.Pod{Policy: corev1.RestartPolicyNever}, boxes{box("sa", 0, 100, false)}, containers{dead("a", 0, 100)}, creationorder.Removal{}},
		"a pod that ended":           {1, &creationorder.Pod{Policy: corev1.RestartPolicyAlways, Ended: true}, boxes{box("sa", 0, 100, false)}, containers{dead("a", 0, 100)}, creationorder.Removal{}},
		"a pod that is not known":    {1, nil, boxes{box("sa", 0, 100, false)}, containers{dead("a", 0, 100)}, creationorder.Removal{}},
		"OnFailure, which failed":    {1, &onFailure, boxes{box("sa", 0, 100, false)}, containers{dead("a", 0, 100)}, creationorder.Removal{Sandboxes: []string{"sa"}}},
		"OnFailure, which succeeded": {1, &onFailure, boxes{box("sa", 0, 100, false)}, containers{success(dead("a", 0, 100))}, creationorder.Removal{}},
		"OnFailure, one of two": {
			1, &onFailure, boxes{box("sa", 0, 100, false)},
			containers{success(dead("a", 0, 100)), {ID: "other", Sandbox: "sa", Pod: "p", Name: "d", Created: at(100), Dead: true, ExitCode: 2}},
			creationorder.Removal{Containers: []string{"other"}},
		},
		"OnFailure, the success of an init container": {
			1, &onFailure, boxes{box("sa", 0, 100, false)}, containers{{ID: "a", Sandbox: "sa", Pod: "p", Name: "init", Created: at(100), Dead: true}},
			creationorder.Removal{Sandboxes: []string{"sa"}},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := creationorder.State{Now: at(test.now), Sandboxes: test.boxes, Containers: test.have, Pods: map[types.UID]creationorder.Pod{}}
			if test.pod != nil {
				s.Pods["p"] = *test.pod
			}
			if diff := cmp.Diff(test.want, creationorder.Plan(s)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// A device that boots in 1970 stops no container that runs: its clock will be set.
func TestPlan_neverSet(t *testing.T) {
	s := creationorder.State{
		Now: at(1), Pods: map[types.UID]creationorder.Pod{"p": {Policy: corev1.RestartPolicyAlways}},
		Sandboxes:  []creationorder.Sandbox{{ID: "s", Pod: "p", Created: at(100), Ready: true}},
		Containers: []creationorder.Container{{ID: "a", Sandbox: "s", Pod: "p", Name: "c", Created: at(100), Unproven: true}},
	}
	for unset, want := range map[bool]int{false: 1, true: 0} {
		s.Unset = unset
		if got := creationorder.Plan(s); len(got.Stops) != want {
			t.Errorf("unset %t: %+v", unset, got)
		}
	}
}
