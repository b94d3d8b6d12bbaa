// Package autonomy_test shows the policies of manifests/autonomy in a real kube-apiserver.
package autonomy_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/tests/cluster"
)

const label = "skerry.io/autonomy"

func needPlane(t *testing.T) {
	t.Helper()
	plane := cluster.Shared(t)
	plane.Apply(t, "manifests/autonomy")
}

func pod(labels map[string]string, tolerations ...corev1.Toleration) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "pod-", Labels: labels},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "none:1"}}, Tolerations: tolerations},
	}
}

func tolerate(key string, seconds *int64) corev1.Toleration {
	return corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: seconds}
}

func TestPods(t *testing.T) {
	plane := cluster.Shared(t)
	needPlane(t)
	plain, autonomous := plane.Namespace(t), plane.Namespace(t)
	_, err := plane.Client().CoreV1().Namespaces().Patch(t.Context(), autonomous, types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"skerry.io/autonomy":"true"}}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// Policies reach the API server by a watch: wait until this one is in force.
	cluster.Eventually(t, "the policy", func(ctx context.Context) error {
		p, err := plane.Client().CoreV1().Pods(autonomous).Create(ctx, pod(nil), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil && p.Spec.Tolerations[0].TolerationSeconds != nil {
			err = errors.New("not in force yet")
		}
		return err
	})

	five, one := int64(300), int64(60)
	const notReady, unreachable = corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable
	limited := []corev1.Toleration{tolerate(notReady, &five), tolerate(unreachable, &five)}
	unlimited := []corev1.Toleration{tolerate(notReady, nil), tolerate(unreachable, nil)}
	other := corev1.Toleration{Key: "example.com/other", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &one}

	for name, c := range map[string]struct {
		namespace string
		pod       *corev1.Pod
		want      []corev1.Toleration
	}{
		"no label":                      {plain, pod(nil), limited},
		"label on the pod":              {plain, pod(map[string]string{label: "true"}), unlimited},
		"label on the namespace":        {autonomous, pod(nil), unlimited},
		"other labels on the pod":       {autonomous, pod(map[string]string{"app": "x"}), unlimited},
		"the pod's own label wins":      {autonomous, pod(map[string]string{label: "false"}), limited},
		"another toleration stays":      {autonomous, pod(nil, other), append([]corev1.Toleration{other}, unlimited...)},
		"a limit of the pod's goes":     {autonomous, pod(nil, tolerate(unreachable, &one)), []corev1.Toleration{tolerate(unreachable, nil), tolerate(notReady, nil)}},
		"a toleration of everything":    {autonomous, pod(nil, corev1.Toleration{Operator: corev1.TolerationOpExists}), append([]corev1.Toleration{{Operator: corev1.TolerationOpExists}}, unlimited...)},
		"an effect that does not evict": {autonomous, pod(nil, corev1.Toleration{Key: notReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}), append([]corev1.Toleration{{Key: notReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}}, unlimited...)},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := plane.Client().CoreV1().Pods(c.namespace).Create(t.Context(), c.pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got.Spec.Tolerations); diff != "" {
				t.Errorf("tolerations (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNodes(t *testing.T) {
	plane := cluster.Shared(t)
	needPlane(t)
	taints := []corev1.Taint{
		{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute},
		{Key: "example.com/other", Effect: corev1.TaintEffectNoExecute},
		{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoExecute},
		{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoSchedule},
	}
	kept := []corev1.Taint{taints[1], taints[3]}
	nodes := plane.Client().CoreV1().Nodes()
	const edge = "skerry.io/edge"
	type labels = map[string]string
	cases := map[string]struct {
		labels labels
		want   []corev1.Taint
	}{
		"edge":             {labels{edge: ""}, kept},
		"edge-opted-out":   {labels{edge: "", label: "false"}, taints},
		"edge-labelled":    {labels{edge: "", label: "true"}, kept},
		"edge-other-value": {labels{edge: "", label: "yes"}, kept},
		"cloud":            {nil, taints},
		"cloud-labelled":   {labels{label: "true"}, kept},
		"cloud-opted-out":  {labels{label: "false"}, taints},
	}
	for name, c := range cases {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: c.labels}}
		if _, err := nodes.Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := nodes.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	taint := func(ctx context.Context, name string) ([]corev1.Taint, error) {
		node, err := nodes.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		node.Spec.Taints = taints
		node, err = nodes.Update(ctx, node, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			return nil, err
		}
		return node.Spec.Taints, nil
	}
	cluster.Eventually(t, "the policy", func(ctx context.Context) error {
		got, err := taint(ctx, "edge-labelled")
		if err == nil && len(got) == len(taints) {
			err = errors.New("not in force yet")
		}
		return err
	})
	for name, c := range cases {
		cluster.Eventually(t, "an update without a conflict", func(ctx context.Context) error {
			got, err := taint(ctx, name)
			if err != nil {
				return err
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("taints of node %s (-want +got):\n%s", name, diff)
			}
			return nil
		})
	}
}
