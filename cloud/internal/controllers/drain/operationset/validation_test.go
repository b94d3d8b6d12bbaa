package operationset_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/tests/cluster"
)

// Every example is accepted, and a bad one is refused with the field's name.
func TestOperationSet_Validation(t *testing.T) {
	plane := cluster.Shared(t)
	plane.Apply(t, "manifests/crds")
	admin, err := dynamic.NewForConfig(plane.Admin())
	if err != nil {
		t.Fatal(err)
	}
	sets := admin.Resource(v1alpha1.Resource(v1alpha1.NodeOperationSets))
	cluster.Eventually(t, "NodeOperationSets to be served", func(ctx context.Context) error {
		_, err := sets.List(ctx, metav1.ListOptions{})
		return err
	})
	plane.Apply(t, "manifests/examples/fleet")
	defer func() {
		if err := sets.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			t.Error(err)
		}
	}()
	for want, change := range map[string]func(spec map[string]any){
		"":                                func(map[string]any) {},
		"either nodeSelector or nodePool": func(spec map[string]any) { spec["nodePool"] = "p" },
		"spec.template.image":             func(spec map[string]any) { spec["template"].(map[string]any)["image"] = strings.Repeat("x", 1025) },
		"image is needed":                 func(spec map[string]any) { spec["template"].(map[string]any)["image"] = "x" },
		"upgrade is needed":               func(spec map[string]any) { spec["template"].(map[string]any)["operation"] = "Upgrade" },
		"spec.maxParallel":                func(spec map[string]any) { spec["maxParallel"] = "0%" },
		"spec.maxParallel: Invalid":       func(spec map[string]any) { spec["maxParallel"] = int64(501) },
		"spec.failureThreshold":           func(spec map[string]any) { spec["failureThreshold"] = "101%" },
		"spec.nodeDeadline":               func(spec map[string]any) { spec["nodeDeadline"] = "1s" },
		"spec.waves[0]":                   func(spec map[string]any) { spec["waves"] = []any{map[string]any{"soak": "1h"}} },
		"spec.waves: Too many": func(spec map[string]any) {
			spec["waves"] = slices.Repeat([]any{map[string]any{"percent": int64(1)}}, 9)
		},
		"spec.maxUnavailablePerPool": func(spec map[string]any) { spec["maxUnavailablePerPool"] = int64(0) },
	} {
		spec := map[string]any{"template": map[string]any{"operation": "Reboot"}, "nodeSelector": map[string]any{}}
		change(spec)
		_, err := sets.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "skerry.io/v1alpha1", "kind": "NodeOperationSet", "metadata": map[string]any{"name": "a"}, "spec": spec,
		}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
