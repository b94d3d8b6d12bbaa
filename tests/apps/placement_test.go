package apps_test

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestClaims_08_RequiredAppIsNotDrawnByALabel: a device labels itself with another's
// kubernetes.io/hostname, which Kubernetes lets it, and an application that requires that other
// device waits for it. Its device is cordoned in the meantime, so that the scheduler has no third
// choice.
func TestClaims_08_RequiredAppIsNotDrawnByALabel(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	asNode := []string{"--as", "system:node:edge2", "--as-group", "system:nodes"}
	again := func(args ...string) func() {
		return func() {
			if out, err := s.Run(context.Background(), append([]string{"kubectl"}, args...)...); err != nil {
				t.Error(out, err)
			}
		}
	}
	t.Cleanup(again("label", "node", "edge2", "--overwrite", corev1.LabelHostname+"=edge2"))
	s.Kubectl(append([]string{"label", "node", "edge2", "--overwrite", corev1.LabelHostname + "=edge1"}, asNode...)...)
	t.Cleanup(again("uncordon", "edge1"))
	s.Kubectl("cordon", "edge1")

	s.create(ns, appYAML("vault", "edge1", "  affinity: Required"))
	s.WaitFor("the scheduler to have judged the pod", func(context.Context) error {
		pods := s.pods(ns, "vault")
		if len(pods) != 1 {
			return fmt.Errorf("there are %d pods", len(pods))
		}
		if node := pods[0].Spec.NodeName; node != "" {
			t.Fatalf("the application was bound to %s, which calls itself edge1", node)
		}
		for _, c := range pods[0].Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable {
				return nil
			}
		}
		return errNot
	})
	s.Kubectl("uncordon", "edge1")
	s.waitOn(ns, "vault", "edge1")
}
