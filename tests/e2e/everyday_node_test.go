package e2e_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// label sets labels of a Node as its administrator; "" removes one.
func (s *system) label(node string, labels map[string]string) {
	s.T.Helper()
	var set []string
	for k, v := range labels {
		value := fmt.Sprintf("%q", v)
		if v == "" {
			value = "null"
		}
		set = append(set, fmt.Sprintf("%q:%s", k, value))
	}
	_, err := s.Client.CoreV1().Nodes().Patch(context.Background(), node, types.MergePatchType, []byte(`{"metadata":{"labels":{`+strings.Join(set, ",")+`}}}`), metav1.PatchOptions{})
	s.Check(err)
}

// TestEveryday_16: a Node is deleted while its device is away. It comes back with the label that a
// node may set, the taint and the range of its pods, which run on; pool and autonomy, which it may
// not choose, are named until an administrator has set them again.
func TestEveryday_16_ADeletedNodeComesBackAsItWas(t *testing.T) {
	const node = "edge1"
	s := newSystem(t)
	ns := s.Namespace()
	s.pod(ns, "stays", node)
	nodes := s.Client.CoreV1().Nodes()
	before, err := nodes.Get(t.Context(), node, metav1.GetOptions{})
	s.Check(err)
	pool := map[string]string{v1alpha1.NodePoolLabel: "plant", v1alpha1.AutonomyLabel: "false"}
	if p := before.Labels[v1alpha1.NodePoolLabel]; p != "" {
		pool[v1alpha1.NodePoolLabel] = p
	}
	taint := corev1.Taint{Key: "dedicated", Value: "x", Effect: corev1.TaintEffectPreferNoSchedule}
	t.Cleanup(func() {
		s.label(node, map[string]string{"team": "", v1alpha1.AutonomyLabel: "", v1alpha1.NodePoolLabel: before.Labels[v1alpha1.NodePoolLabel]})
		n, err := nodes.Get(context.Background(), node, metav1.GetOptions{})
		s.Check(err)
		n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == taint.Key })
		_, err = nodes.Update(context.Background(), n, metav1.UpdateOptions{})
		s.Check(err)
	})
	given := maps.Clone(pool)
	given["team"] = "blue"
	s.label(node, given)
	s.Kubectl("taint", "node", node, taint.ToString())
	s.WaitFor("the device to know its Node", func(ctx context.Context) error {
		n, err := s.device(node).CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err == nil && (n.Labels["team"] != "blue" || len(n.Spec.Taints) == 0 || len(n.Spec.PodCIDRs) == 0) {
			err = fmt.Errorf("it has labels %v, taints %v and ranges %v", n.Labels, n.Spec.Taints, n.Spec.PodCIDRs)
		}
		return err
	})
	before, err = nodes.Get(t.Context(), node, metav1.GetOptions{})
	s.Check(err)
	running := s.Containers(node)

	s.Cut(node)
	s.waitUnlinked(node)
	s.Check(nodes.Delete(t.Context(), node, metav1.DeleteOptions{}))
	s.Heal(node)
	s.WaitReady(node, true)
	lost := func(n *corev1.Node) (c corev1.NodeCondition) {
		for _, c := range n.Status.Conditions {
			if c.Type == "SkerryNodeSettingsLost" {
				return c
			}
		}
		return c
	}
	var after *corev1.Node
	s.WaitFor("what is missing to be named", func(ctx context.Context) error {
		if after, err = nodes.Get(ctx, node, metav1.GetOptions{}); err != nil {
			return err
		}
		c := lost(after)
		for k, v := range pool {
			if c.Status != corev1.ConditionTrue || !strings.Contains(c.Message, k+"="+v) {
				return fmt.Errorf("%s=%s is not named: %+v", k, v, c)
			}
		}
		return nil
	})
	if after.UID == before.UID {
		t.Error("the Node is the old one")
	}
	if diff := cmp.Diff(before.Spec.PodCIDRs, after.Spec.PodCIDRs); diff != "" {
		t.Errorf("the range of its pods (-before +after):\n%s", diff)
	}
	if m := lost(after).Message; strings.Contains(m, "team") || strings.Contains(m, "dedicated") || after.Labels["team"] != "blue" ||
		!slices.ContainsFunc(after.Spec.Taints, func(have corev1.Taint) bool { return have.ToString() == taint.ToString() }) {
		t.Errorf("labels %v, taints %v; it says %q", after.Labels, after.Spec.Taints, m)
	}
	events, err := s.device(node).CoreV1().Events(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{})
	s.Check(err)
	if !slices.ContainsFunc(events.Items, func(e corev1.Event) bool { return e.Reason == "NodeSettingsLost" }) {
		t.Error("the device has no event of it")
	}
	s.Check(s.same(node, running))

	s.label(node, pool)
	s.WaitFor("nothing to be missing", func(ctx context.Context) error {
		n, err := nodes.Get(ctx, node, metav1.GetOptions{})
		if c := lost(n); err == nil && c.Status != corev1.ConditionFalse {
			err = fmt.Errorf("%+v", c)
		}
		return err
	})
}
