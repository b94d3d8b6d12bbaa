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

// autonomyLabel is a patch that sets skerry.io/autonomy to a JSON value.
func autonomyLabel(value string) []byte {
	return fmt.Appendf(nil, `{"metadata":{"labels":{"skerry.io/autonomy":%s}}}`, value)
}

// optOut lets Kubernetes evict from a node, as from any that is no edge node, until the test's end.
func (s *system) optOut(node string) {
	s.T.Helper()
	nodes := s.Client.CoreV1().Nodes()
	_, err := nodes.Patch(s.T.Context(), node, types.MergePatchType, autonomyLabel(`"false"`), metav1.PatchOptions{})
	s.Check(err)
	s.T.Cleanup(func() {
		if _, err := nodes.Patch(context.Background(), node, types.MergePatchType, autonomyLabel("null"), metav1.PatchOptions{}); err != nil {
			s.T.Error(err)
		}
	})
}

// waitEvicted waits until a pod is being deleted.
func (s *system) waitEvicted(namespace, name string) {
	s.T.Helper()
	s.WaitFor("pod "+name+" to be evicted", func(ctx context.Context) error {
		p, err := s.Client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if err == nil && p.DeletionTimestamp == nil {
			err = errors.New("it is not")
		}
		return err
	})
}

// kept reports a pod that is being deleted.
func (s *system) kept(namespace, name string) error {
	p, err := s.Client.CoreV1().Pods(namespace).Get(s.T.Context(), name, metav1.GetOptions{})
	if err == nil && p.DeletionTimestamp != nil {
		err = fmt.Errorf("pod %s is evicted", name)
	}
	return err
}

// TestShip_13: without any labels, a device that is cut off for ten minutes keeps its pods: the
// control plane evicts none of them, the device restarts none. Of a device that opted out pods are
// evicted, except one with the label.
func TestShip_13_AutonomyIsTheDefault(t *testing.T) {
	s := newSystem(t)
	namespace := s.Namespace()
	s.Apply(namespace, samplePod("unlabelled", "edge2"))
	s.WaitPods(namespace, "app=unlabelled", "edge2", 1)
	before := s.Containers("edge2")
	s.Cut("edge2")
	s.WaitReady("edge2", false)
	s.lasts("no pod is evicted", max(minutes(t, 10), 2*evictAfter), func() error { return s.kept(namespace, "unlabelled") })
	s.Heal("edge2")
	s.WaitReady("edge2", true)
	s.Check(s.same("edge2", before))

	s.optOut("edge2")
	s.pod(namespace, "labelled", "edge2")
	s.Cut("edge2")
	s.waitEvicted(namespace, "unlabelled")
	s.Check(s.kept(namespace, "labelled"))
	s.Heal("edge2")
	s.WaitReady("edge2", true)
	s.WaitPods(namespace, "app=labelled", "edge2", 1)
}

// TestIsland_14: a node that opted out of autonomy is cut off. The control plane evicts its pods as
// usual, but for those that are labelled, or in a namespace that is. On the device no pod is
// touched before the link is back.
func TestIsland_14_AutonomyLabelKeepsPods(t *testing.T) {
	s := newSystem(t)
	s.optOut("edge2")
	plain, autonomous := s.Namespace(), s.Namespace()
	_, err := s.Client.CoreV1().Namespaces().Patch(t.Context(), autonomous, types.MergePatchType, autonomyLabel(`"true"`), metav1.PatchOptions{})
	s.Check(err)
	unlabelled := func(namespace, name string) {
		s.Apply(namespace, samplePod(name, "edge2"))
		s.WaitPods(namespace, "app="+name, "edge2", 1)
	}
	s.pod(plain, "stays", "edge2")
	unlabelled(plain, "goes")
	s.WaitFor("a pod in the labelled namespace to tolerate", func(ctx context.Context) error {
		// The policies see namespaces through a cache.
		p, err := s.Client.CoreV1().Pods(autonomous).Create(ctx, &corev1.Pod{
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
	before := s.Containers("edge2")

	s.Cut("edge2")
	s.waitEvicted(plain, "goes")
	s.lasts("the others stay", evictAfter/2, func() error { return errors.Join(s.kept(plain, "stays"), s.kept(autonomous, "among")) })
	s.Check(s.same("edge2", before))
	s.Heal("edge2")
	s.WaitReady("edge2", true)
	s.WaitFor("the evicted pod to end", func(ctx context.Context) error {
		_, err := s.Client.CoreV1().Pods(plain).Get(ctx, "goes", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, errors.New("it is there"))
	})
	s.WaitPods(plain, "app=stays", "edge2", 1)
}
