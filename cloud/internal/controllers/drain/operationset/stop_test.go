package operationset_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/tests/cluster"
)

// Scenario 20: a pause cancels waiting operations and lets running ones finish; abort cancels
// those; a deletion leaves no trace on any Node.
func TestFleet_20_PauseAbortAndDelete(t *testing.T) {
	s := newSystem(t, all(3)...)
	s.behave(func(o *v1alpha1.NodeOperation) string {
		switch {
		case o.Spec.Cancel:
			return "Cancelled"
		case o.Spec.NodeName == "edge1":
			return "Running"
		}
		return "Waiting"
	})
	s.lead()
	s.apply("a", update("v1", nil))
	s.await("a", "Progressing", func(set *v1alpha1.NodeOperationSet) bool { return set.Status.Running == 3 })
	left := func(want ...string) {
		t.Helper()
		cluster.Eventually(t, fmt.Sprintf("operations to be left on %v", want), func(ctx context.Context) error {
			list, err := s.operations.List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			var names []string
			for _, o := range list.Items {
				name, _, _ := unstructured.NestedString(o.Object, "spec", "nodeName")
				names = append(names, name)
			}
			if slices.Sort(names); !slices.Equal(names, want) {
				return fmt.Errorf("they are on %v", names)
			}
			return nil
		})
	}
	s.apply("a", update("v1", func(spec *v1alpha1.NodeOperationSetSpec) { spec.Paused = true }))
	s.await("a", "Paused", nil)
	left("edge1")
	s.apply("a", update("v1", func(spec *v1alpha1.NodeOperationSetSpec) { spec.Abort = true }))
	s.await("a", "Aborted", nil)
	left()
	s.behave(func(*v1alpha1.NodeOperation) string { return booted })
	s.apply("a", update("v1", nil))
	s.await("a", "Complete", func(set *v1alpha1.NodeOperationSet) bool { return set.Status.Done == 3 })
	if err := s.sets.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	left()
	cluster.Eventually(t, "nothing to be left on Nodes", func(ctx context.Context) error {
		list, err := s.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, n := range list.Items {
			if text, ok := n.Annotations[v1alpha1.OperationSetsAnnotation]; ok || n.Spec.Unschedulable {
				return fmt.Errorf("node %s has %q", n.Name, text)
			}
		}
		return nil
	})
}
