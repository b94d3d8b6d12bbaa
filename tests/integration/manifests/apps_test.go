package manifests_test

import (
	"context"
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/skerry-io/skerry/tests/cluster"
)

// replicaSet is one with the labels of an application's.
func replicaSet(name string, edge bool) *appsv1.ReplicaSet {
	yes, none := true, int32(0)
	labels := map[string]string{"skerry.io/edge-app": name}
	set := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels, OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "skerry.io/v1alpha1", Kind: "EdgeApp", Name: name, UID: "made-up", Controller: &yes},
		}},
		Spec: appsv1.ReplicaSetSpec{Replicas: &none, Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "none:1"}}},
		}},
	}
	if edge {
		set.Spec.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "skerry.io/edge", Operator: corev1.NodeSelectorOpExists}}}},
		}}}
	}
	return set
}

// cloudcore has its rights for applications for them alone: in namespaces that an administrator has
// enabled, on edge nodes. With its token no client starts pods elsewhere, or touches those of
// others.
func TestCloudcoreTouchesOnlyApplications(t *testing.T) {
	plane := cluster.Shared(t)
	ns, cfg := scene(t)
	admin, self := plane.Client(), kubernetes.NewForConfigOrDie(cfg)
	closed := plane.Namespace(t)
	n, err := admin.CoreV1().Namespaces().Get(t.Context(), ns, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n.Labels["skerry.io/edge-apps"] = "enabled"
	if _, err := admin.CoreV1().Namespaces().Update(t.Context(), n, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	foreign, err := admin.CoreV1().Pods(ns).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "foreign"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "none:1"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	other := replicaSet("other", true)
	other.OwnerReferences, other.Labels = nil, nil
	if _, err := admin.AppsV1().ReplicaSets(ns).Create(t.Context(), other, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	make := func(where, name string, edge bool) func(context.Context) error {
		return func(ctx context.Context) error {
			err := ignore(self.AppsV1().ReplicaSets(where).Create(ctx, replicaSet(name, edge), metav1.CreateOptions{}))
			if apierrors.IsAlreadyExists(err) {
				return nil
			}
			return err
		}
	}
	// Policies are in force from some moment after they were applied.
	cluster.Eventually(t, "the policy about applications is in force", func(ctx context.Context) error {
		if err := self.CoreV1().Pods(ns).Delete(ctx, "foreign", metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}); !apierrors.IsForbidden(err) {
			return fmt.Errorf("got %v", err)
		}
		return nil
	})
	judge(t, []attempt{
		{"a ReplicaSet of an application", make(ns, "a", true), true},
		{"in a namespace that is not enabled", make(closed, "a", true), false},
		{"in kube-system", make("kube-system", "a", true), false},
		{"for other nodes", make(ns, "b", false), false},
		{"a ReplicaSet of another owner, made an application's", func(ctx context.Context) error {
			set := replicaSet("other", true)
			set.ResourceVersion = "" // the newest
			return ignore(self.AppsV1().ReplicaSets(ns).Update(ctx, set, metav1.UpdateOptions{}))
		}, false},
		{"a pod of its own", func(ctx context.Context) error {
			return ignore(self.CoreV1().Pods(ns).Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: foreign.Spec}, metav1.CreateOptions{}))
		}, false},
		{"a change of a pod of another owner", func(ctx context.Context) error {
			pod := foreign.DeepCopy()
			pod.ResourceVersion = ""
			pod.Labels = map[string]string{"skerry.io/edge-app": "a"}
			return ignore(self.CoreV1().Pods(ns).Update(ctx, pod, metav1.UpdateOptions{}))
		}, false},
		{"a claim without an owner", func(ctx context.Context) error {
			return ignore(self.CoreV1().PersistentVolumeClaims(ns).Create(ctx, &corev1.PersistentVolumeClaim{
				ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: corev1.PersistentVolumeClaimSpec{
					AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
					Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
				},
			}, metav1.CreateOptions{}))
		}, false},
		{"the removal of a pod of another owner", func(ctx context.Context) error {
			return self.CoreV1().Pods(ns).Delete(ctx, "foreign", metav1.DeleteOptions{})
		}, false},
	})
}
