package app

import (
	"encoding/json"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// Objects of a bundle have no annotations of others than Kubernetes and Skerry, and EdgeApps no
// template; the cached object stays unchanged.
func TestWithoutSecrets(t *testing.T) {
	annotations := func() map[string]string {
		return map[string]string{
			corev1.LastAppliedConfigAnnotation: "s3cret", "note": "s3cret", "example.com/kubernetes.io": "s3cret", "notkubernetes.io/a": "s3cret",
			"skerry.io/nodepool-labelselector": "kept", "service.kubernetes.io/topology-mode": "kept",
		}
	}
	app := &unstructured.Unstructured{Object: map[string]any{"kind": "EdgeApp", "spec": map[string]any{"designatedNode": "kept", "template": map[string]any{"env": "s3cret"}}}}
	app.SetAnnotations(annotations())
	for kind, o := range map[string]runtime.Object{
		"Service": &corev1.Service{ObjectMeta: metav1.ObjectMeta{Annotations: annotations()}, Spec: corev1.ServiceSpec{ExternalName: "kept"}},
		"EdgeApp": app,
	} {
		raw, err := json.Marshal(withoutSecrets(o))
		if text := string(raw); err != nil || strings.Contains(text, "s3cret") || strings.Count(text, "kept") != 3 {
			t.Errorf("%s: %s, %v", kind, raw, err)
		}
		if raw, err := json.Marshal(o); err != nil || !strings.Contains(string(raw), "s3cret") {
			t.Errorf("the cached %s has changed: %s, %v", kind, raw, err)
		}
	}
}
