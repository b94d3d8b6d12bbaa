package object_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/skerry-io/skerry/edge/internal/core/object"
)

func TestPodReady(t *testing.T) {
	const gate = corev1.PodConditionType("example.com/warm")
	tests := map[string]struct {
		true  []corev1.PodConditionType
		false []corev1.PodConditionType
		gates []corev1.PodReadinessGate
		want  bool
	}{
		"nothing is known":                       {},
		"its containers are":                     {true: []corev1.PodConditionType{corev1.ContainersReady, corev1.PodReady}, want: true},
		"the cloud had not heard of it":          {true: []corev1.PodConditionType{corev1.ContainersReady}, false: []corev1.PodConditionType{corev1.PodReady}, want: true},
		"the cloud has not heard that it is not": {true: []corev1.PodConditionType{corev1.PodReady}, false: []corev1.PodConditionType{corev1.ContainersReady}},
		"a gate is closed":                       {true: []corev1.PodConditionType{corev1.ContainersReady}, gates: []corev1.PodReadinessGate{{ConditionType: gate}}},
		"a gate is open":                         {true: []corev1.PodConditionType{corev1.ContainersReady, gate}, gates: []corev1.PodReadinessGate{{ConditionType: gate}}, want: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p := &corev1.Pod{Spec: corev1.PodSpec{ReadinessGates: tc.gates}}
			for _, c := range tc.true {
				p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: c, Status: corev1.ConditionTrue})
			}
			for _, c := range tc.false {
				p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: c, Status: corev1.ConditionFalse})
			}
			if got := object.PodReady(p); got != tc.want {
				t.Errorf("it is %t, want %t", got, tc.want)
			}
		})
	}
}
