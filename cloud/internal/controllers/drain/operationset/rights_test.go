package operationset_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/tests/cluster"
)

// Rights: a set needs those of its operations; a node can't write results; cloudcore changes no
// other field of Nodes and no operations of others; the requester is known.
func TestFleet_16_SetNeedsTheRightsOfItsOperations(t *testing.T) {
	s := newSystem(t, "edge1")
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "sets"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{v1alpha1.Group}, Resources: []string{v1alpha1.NodeOperationSets, v1alpha1.NodeOperations}, Verbs: []string{"create", "get"}},
	}}
	if _, err := s.client.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.client.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "sets"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "sets"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "alice"}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	alice, err := dynamic.NewForConfig(s.plane.User(t, "alice"))
	if err != nil {
		t.Fatal(err)
	}
	set := func(name string, spec v1alpha1.NodeOperationSetSpec) *unstructured.Unstructured {
		object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&v1alpha1.NodeOperationSet{
			TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "NodeOperationSet"}, ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec,
		})
		if err != nil {
			t.Fatal(err)
		}
		delete(object, "status")
		return &unstructured.Unstructured{Object: object}
	}
	upgrade := update("", func(spec *v1alpha1.NodeOperationSetSpec) {
		spec.Template.Operation, spec.Template.Upgrade = v1alpha1.OperationUpgrade, &v1alpha1.UpgradeSpec{Version: "v9.0.0"}
	})
	sets := alice.Resource(v1alpha1.Resource(v1alpha1.NodeOperationSets))
	cluster.Eventually(t, "a set without the right to its operations to be refused", func(ctx context.Context) error {
		_, err := sets.Create(ctx, set("upgrade", upgrade), metav1.CreateOptions{})
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "nodeoperations/upgrade") {
			_ = s.sets.Delete(ctx, "upgrade", metav1.DeleteOptions{}) // the policy was not there yet
			return fmt.Errorf("it is %w", err)
		}
		return nil
	})
	cluster.Eventually(t, "a set to note who made it", func(ctx context.Context) error {
		made, err := sets.Create(ctx, set("update", update("v1", nil)), metav1.CreateOptions{})
		if err == nil && made.GetAnnotations()[v1alpha1.RequestedByAnnotation] != "alice" {
			err = errors.Join(errors.New("it does not"), s.sets.Delete(ctx, "update", metav1.DeleteOptions{}))
		}
		return err
	})
	s.lead()
	s.await("update", "Complete", nil)
	list, err := s.operations.List(t.Context(), metav1.ListOptions{LabelSelector: v1alpha1.OperationSetLabel + "=update"})
	if err != nil || len(list.Items) != 1 || list.Items[0].GetAnnotations()[v1alpha1.RequestedByAnnotation] != "alice" {
		t.Errorf("its operations are %v, %v", list, err)
	}
	edge := kubernetes.NewForConfigOrDie(s.plane.Node(t, "edge1"))
	own := kubernetes.NewForConfigOrDie(s.plane.ServiceAccount(t, "skerry-system", "cloudcore"))
	annotation := func(c kubernetes.Interface, key, value string) error {
		_, err := c.CoreV1().Nodes().Patch(t.Context(), "edge1", types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, key, value), metav1.PatchOptions{})
		return err
	}
	for name, err := range map[string]error{
		"a node's write of its results":         annotation(edge, v1alpha1.OperationSetsAnnotation, "[]"),
		"cloudcore's of another annotation":     annotation(own, v1alpha1.CordonAnnotation, "me"),
		"a node's operation of a set by itself": forged(t, s.plane, "edge1"),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := annotation(edge, "example.com/mine", "x"); err != nil {
		t.Errorf("a node's other annotation: %v", err)
	}
	manual := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "skerry.io/v1alpha1", "kind": "NodeOperation", "metadata": map[string]any{"name": "manual"}, "spec": map[string]any{"nodeName": "edge1", "operation": "Reboot"},
	}}
	if _, err := s.operations.Create(t.Context(), manual, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	cloudcore, err := dynamic.NewForConfig(s.plane.ServiceAccount(t, "skerry-system", "cloudcore"))
	if err != nil {
		t.Fatal(err)
	}
	if err := cloudcore.Resource(v1alpha1.Resource(v1alpha1.NodeOperations)).Delete(t.Context(), "manual", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("cloudcore's deletion of an operation that no set made: %v", err)
	}
}

func forged(t *testing.T, plane *cluster.ControlPlane, node string) error {
	t.Helper()
	c, err := dynamic.NewForConfig(plane.Node(t, node))
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Resource(v1alpha1.Resource(v1alpha1.NodeOperations)).Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "skerry.io/v1alpha1", "kind": "NodeOperation", "metadata": map[string]any{"name": "forged", "labels": map[string]any{v1alpha1.OperationSetLabel: "a"}},
		"spec": map[string]any{"nodeName": node, "operation": "Reboot"},
	}}, metav1.CreateOptions{})
	return err
}
