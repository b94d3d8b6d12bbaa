package manifests_test

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/tests/cluster"
)

// digest is one of a program that nobody has.
var digest = "sha256:" + strings.Repeat("0", 64)

// operation is a NodeOperation of edge1 with that spec besides.
func operation(name, kind string, spec map[string]any) *unstructured.Unstructured {
	all := map[string]any{"nodeName": "edge1", "operation": kind}
	for k, v := range spec {
		all[k] = v
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.SchemeGroupVersion.String(), "kind": "NodeOperation", "metadata": map[string]any{"name": name}, "spec": all,
	}}
}

// fleetSpecs are valid specs of the operations that need a right of their own.
func fleetSpecs() map[string]map[string]any {
	return map[string]map[string]any{
		"Upgrade":   {"upgrade": map[string]any{"version": "v1.4.0", "digest": digest}, "healthTimeout": "5m", "window": map[string]any{"days": []any{"Sat"}, "start": "22:00", "end": "04:00", "timeZone": "Europe/Berlin"}},
		"Config":    {"config": map[string]any{"patch": "log: {verbosity: 2}"}},
		"ImagePull": {"imagePull": map[string]any{"images": []any{"registry.example.com:5000/shop/till@" + digest}, "pullSecret": map[string]any{"namespace": "shop", "name": "registry"}}},
	}
}

// A user that may create NodeOperations, and has not the right for this kind, gets a 403 that names
// the verb; with that right the operation is made. A retry needs it again, a cancellation does not.
func TestFleet_16_MissingRightIsNamed(t *testing.T) {
	plane := cluster.Shared(t)
	plane.Apply(t, "manifests/crds")
	scene(t)
	grant(t, plane, "fleet-reboots", rbacv1.PolicyRule{APIGroups: []string{"skerry.io"}, Resources: []string{"nodeoperations"}, Verbs: []string{"create", "update", "delete"}}, "reboots")
	resource := v1alpha1.Resource(v1alpha1.NodeOperations)
	as := func(cfg *rest.Config) dynamic.ResourceInterface {
		return dynamic.NewForConfigOrDie(cfg).Resource(resource)
	}
	little := as(plane.User(t, "reboots"))
	plane.Namespace(t)
	cluster.Eventually(t, "a reboot by the user", func(ctx context.Context) error {
		_, err := little.Create(ctx, operation("fleet-16-reboot", "Reboot", nil), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	})
	for kind, spec := range fleetSpecs() {
		t.Run(kind, func(t *testing.T) {
			name, right := "fleet-16-"+strings.ToLower(kind), v1alpha1.RightOf(v1alpha1.OperationType(kind))
			want := "verb create on nodeoperations/" + right
			var refusal error
			cluster.Eventually(t, "a refusal", func(ctx context.Context) error { // the policy takes a moment to be in force
				if _, refusal = little.Create(ctx, operation(name, kind, spec), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); refusal == nil {
					return fmt.Errorf("%s was created", name)
				}
				return nil
			})
			if !apierrors.IsForbidden(refusal) || !strings.Contains(refusal.Error(), want) {
				t.Errorf("want Forbidden with %q, got %v", want, refusal)
			}
			user := "fleet-" + right
			grant(t, plane, user, rbacv1.PolicyRule{APIGroups: []string{"skerry.io"}, Resources: []string{"nodeoperations", "nodeoperations/" + right}, Verbs: []string{"create"}}, user)
			able := as(plane.User(t, user))
			cluster.Eventually(t, "the operation", func(ctx context.Context) error {
				_, err := able.Create(ctx, operation(name, kind, spec), metav1.CreateOptions{})
				return err
			})
			made, err := as(plane.Admin()).Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = as(plane.Admin()).Delete(context.Background(), name, metav1.DeleteOptions{}) })
			again := made.DeepCopy()
			_ = unstructured.SetNestedField(again.Object, int64(1), "spec", "retry")
			if _, err := little.Update(t.Context(), again, metav1.UpdateOptions{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), want) {
				t.Errorf("a retry without the right: want Forbidden with %q, got %v", want, err)
			}
			_ = unstructured.SetNestedField(made.Object, true, "spec", "cancel")
			if _, err := little.Update(t.Context(), made, metav1.UpdateOptions{}); err != nil {
				t.Errorf("a cancellation: %v", err)
			}
		})
	}
}

func grant(t *testing.T, plane *cluster.ControlPlane, name string, rule rbacv1.PolicyRule, user string) {
	t.Helper()
	rbac := plane.Client().RbacV1()
	_, err := rbac.ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{rule}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = rbac.ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = rbac.ClusterRoles().Delete(context.Background(), name, metav1.DeleteOptions{})
		_ = rbac.ClusterRoleBindings().Delete(context.Background(), name, metav1.DeleteOptions{})
	})
}

// No field of the operations, nor of a set's template, accepts text that a shell, a path or a
// command line would interpret. config.patch is free text by design: the device's strict reader
// judges it.
func TestFleet_09_FormatsAreClosed(t *testing.T) {
	plane := cluster.Shared(t)
	plane.Apply(t, "manifests/crds")
	scene(t)
	client := dynamic.NewForConfigOrDie(plane.Admin())
	create := func(resource string, object *unstructured.Unstructured) error {
		_, err := client.Resource(v1alpha1.Resource(resource)).Create(t.Context(), object, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	for name, try := range map[string]func(kind string, spec map[string]any) error{
		"NodeOperation": func(kind string, spec map[string]any) error {
			return create(v1alpha1.NodeOperations, operation("fleet-09", kind, spec))
		},
		"NodeOperationSet": func(kind string, spec map[string]any) error {
			template := maps.Clone(spec)
			template["operation"] = kind
			return create(v1alpha1.NodeOperationSets, &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": v1alpha1.SchemeGroupVersion.String(), "kind": "NodeOperationSet", "metadata": map[string]any{"name": "fleet-09"},
				"spec": map[string]any{"nodeSelector": map[string]any{}, "template": template},
			}})
		},
	} {
		t.Run(name, func(t *testing.T) { closedFormats(t, try) })
	}
}

// closedFormats tries values for each field. try creates an object whose operation has a kind and
// a spec.
func closedFormats(t *testing.T, try func(kind string, spec map[string]any) error) {
	t.Helper()
	for kind, spec := range fleetSpecs() {
		if err := try(kind, spec); err != nil {
			t.Fatalf("%s as it should be: %v", kind, err)
		}
	}
	fields := map[string]func(value string) (kind string, spec map[string]any){
		"upgrade.version": func(v string) (string, map[string]any) {
			return "Upgrade", map[string]any{"upgrade": map[string]any{"version": v}}
		},
		"upgrade.digest": func(v string) (string, map[string]any) {
			return "Upgrade", map[string]any{"upgrade": map[string]any{"version": "v1.4.0", "digest": v}}
		},
		"imagePull.images": func(v string) (string, map[string]any) {
			return "ImagePull", map[string]any{"imagePull": map[string]any{"images": []any{v}}}
		},
		"imagePull.pullSecret.name": func(v string) (string, map[string]any) {
			return "ImagePull", map[string]any{"imagePull": map[string]any{"images": []any{"a:1"}, "pullSecret": map[string]any{"namespace": "shop", "name": v}}}
		},
		"imagePull.pullSecret.namespace": func(v string) (string, map[string]any) {
			return "ImagePull", map[string]any{"imagePull": map[string]any{"images": []any{"a:1"}, "pullSecret": map[string]any{"namespace": v, "name": "registry"}}}
		},
		"window.start": func(v string) (string, map[string]any) {
			return "ImagePull", map[string]any{"imagePull": map[string]any{"images": []any{"a:1"}}, "window": map[string]any{"start": v, "end": "05:00"}}
		},
		"window.end": func(v string) (string, map[string]any) {
			return "ImagePull", map[string]any{"imagePull": map[string]any{"images": []any{"a:1"}}, "window": map[string]any{"start": "04:00", "end": v}}
		},
		"window.timeZone": func(v string) (string, map[string]any) {
			return "ImagePull", map[string]any{"imagePull": map[string]any{"images": []any{"a:1"}}, "window": map[string]any{"start": "04:00", "end": "05:00", "timeZone": v}}
		},
		"window.days": func(v string) (string, map[string]any) {
			return "ImagePull", map[string]any{"imagePull": map[string]any{"images": []any{"a:1"}}, "window": map[string]any{"start": "04:00", "end": "05:00", "days": []any{v}}}
		},
		"healthTimeout": func(v string) (string, map[string]any) {
			return "Upgrade", map[string]any{"upgrade": map[string]any{"version": "v1.4.0"}, "healthTimeout": v}
		},
		"drainTimeout": func(v string) (string, map[string]any) {
			return "Reboot", map[string]any{"drainTimeout": v}
		},
		"drain": func(v string) (string, map[string]any) { return "Reboot", map[string]any{"drain": v} },
		"whenUnreachable": func(v string) (string, map[string]any) {
			return "Reboot", map[string]any{"whenUnreachable": v}
		},
		"operation": func(v string) (string, map[string]any) { return v, map[string]any{} },
	}
	for field, spec := range fields {
		for _, value := range []string{"$(x)", "../x", "v1.4.0/../x", "v1.4.0\nx", "v1.4.0\n", `v1.4.0"`, "v1.4.0'", "v1.4.0;x", "v1.4.0 x", "`x`", "-x", "v1.4.0\x00"} {
			if err := try(spec(value)); !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) {
				t.Errorf("%s %q: want Invalid, got %v", field, value, err)
			}
		}
	}
	for what, bad := range map[string]map[string]any{
		"an upgrade without upgrade":          {"healthTimeout": "5m"},
		"an upgrade with a patch":             {"upgrade": map[string]any{"version": "v1.4.0"}, "config": map[string]any{"patch": "{}"}},
		"a timeout below the least":           {"upgrade": map[string]any{"version": "v1.4.0"}, "healthTimeout": "1s"},
		"a window without a time in between":  {"upgrade": map[string]any{"version": "v1.4.0"}, "window": map[string]any{"start": "04:00", "end": "04:00"}},
		"a version that is no version at all": {"upgrade": map[string]any{"version": ""}},
	} {
		if err := try("Upgrade", bad); !apierrors.IsInvalid(err) {
			t.Errorf("%s: want Invalid, got %v", what, err)
		}
	}
}
