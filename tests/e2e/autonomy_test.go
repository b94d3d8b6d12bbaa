package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// evictAfter is how long the trial's control plane lets a pod tolerate that its node is away.
const evictAfter = 10 * time.Second

// TestIsland_14: a node is cut off. The control plane evicts its pods as usual, but for those that are labelled, or in a namespace that is; and none when the
// node is. On the device nothing is touched before the link is back.
func TestIsland_14_Autonomy(t *testing.T) {
	s := use(t)
	plain, autonomous := s.namespace(), s.namespace()
	const label = `{"metadata":{"labels":{"skerry.io/autonomy":%s}}}`
	_, err := s.client.CoreV1().Namespaces().Patch(t.Context(), autonomous, types.MergePatchType, fmt.Appendf(nil, label, `"true"`), metav1.PatchOptions{})
	s.check(err)
	unlabelled := func(namespace, name string) {
		s.apply(namespace, samplePod(name, "edge2"))
		s.waitPods(namespace, "app="+name, "edge2", 1)
	}
	s.pod(plain, "stays", "edge2")
	unlabelled(plain, "goes")
	s.waitFor("a pod in the labelled namespace to tolerate", func(ctx context.Context) error {
		// The policies see namespaces through a cache.
		p, err := s.client.CoreV1().Pods(autonomous).Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "probe"},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "none:1"}}},
		}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			return err
		}
		for _, tol := range p.Spec.Tolerations {
			if tol.Key == corev1.TaintNodeUnreachable && tol.TolerationSeconds == nil {
				return nil
			}
		}
		return errors.New("not yet")
	})
	unlabelled(autonomous, "among")
	before := s.containers("edge2")

	s.cut("edge2")
	s.waitFor("the pod without a label to be evicted", func(ctx context.Context) error {
		p, err := s.client.CoreV1().Pods(plain).Get(ctx, "goes", metav1.GetOptions{})
		if err == nil && p.DeletionTimestamp == nil {
			err = errors.New("it is not")
		}
		return err
	})
	kept := func(namespace, name string) error {
		p, err := s.client.CoreV1().Pods(namespace).Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && p.DeletionTimestamp != nil {
			err = fmt.Errorf("pod %s is evicted", name)
		}
		return err
	}
	s.lasts("the others stay", evictAfter/2, func() error { return errors.Join(kept(plain, "stays"), kept(autonomous, "among")) })
	s.check(s.same("edge2", before))
	s.heal("edge2")
	s.waitReady("edge2", true)
	s.waitFor("the evicted pod to end", func(ctx context.Context) error {
		_, err := s.client.CoreV1().Pods(plain).Get(ctx, "goes", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, errors.New("it is there"))
	})
	s.waitPods(plain, "app=stays", "edge2", 1)

	// A whole node.
	nodes := s.client.CoreV1().Nodes()
	_, err = nodes.Patch(t.Context(), "edge2", types.MergePatchType, fmt.Appendf(nil, label, `"true"`), metav1.PatchOptions{})
	s.check(err)
	t.Cleanup(func() {
		if _, err := nodes.Patch(context.Background(), "edge2", types.MergePatchType, fmt.Appendf(nil, label, "null"), metav1.PatchOptions{}); err != nil {
			t.Error(err)
		}
	})
	unlabelled(plain, "unlabelled")
	before = s.containers("edge2")
	s.cut("edge2")
	s.waitReady("edge2", false)
	s.lasts("no pod of the labelled node is evicted", evictAfter*3/2, func() error { return kept(plain, "unlabelled") })
	s.heal("edge2")
	s.waitReady("edge2", true)
	s.check(s.same("edge2", before))
}
