package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Scenario 12 of the order campaign: a Node is deleted while its device is away. Once linked it
// comes back by itself, without a restart on the device, and gets its pods of the cloud's present
// state. So it does where another Node of that name is made in the meantime: that one stays, and no
// patch that waited for the old one hits it.
func TestOrder_12_ANodeDeletedWhileAwayComesBack(t *testing.T) {
	s := newSystem(t)
	nodes := s.Client.CoreV1().Nodes()
	gone := func() *corev1.Node {
		t.Helper()
		n, err := nodes.Get(t.Context(), "edge1", metav1.GetOptions{})
		s.Check(err)
		s.Cut("edge1")
		s.waitUnlinked("edge1")
		s.Check(nodes.Delete(t.Context(), "edge1", metav1.DeleteOptions{}))
		s.WaitFor("the Node to go", func(ctx context.Context) error {
			if _, err := nodes.Get(ctx, "edge1", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return fmt.Errorf("it is there: %v", err)
			}
			return nil
		})
		return n
	}
	back := func(not types.UID) *corev1.Node {
		t.Helper()
		s.Heal("edge1")
		s.WaitReady("edge1", true)
		n, err := nodes.Get(t.Context(), "edge1", metav1.GetOptions{})
		s.Check(err)
		if n.UID == not {
			t.Errorf("the Node is the old one, %s", n.UID)
		}
		s.WaitFor("what the Node has room for", func(ctx context.Context) error { // the kubelet's next status has it
			n, err := nodes.Get(ctx, "edge1", metav1.GetOptions{})
			if err == nil && n.Status.Allocatable.Pods().IsZero() {
				err = errors.New("no pods")
			}
			return err
		})
		return n
	}
	kubelet := s.startedAt("edge1")
	t.Run("deleted", func(t *testing.T) { back(gone().UID) })
	t.Run("and recreated", func(t *testing.T) {
		old := gone()
		made, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: "edge1", Labels: old.Labels, Annotations: map[string]string{"made-by": "administrator"}, // only they mark it as an edge
		}}, metav1.CreateOptions{})
		s.Check(err)
		if n := back(old.UID); n.UID != made.UID || n.Annotations["made-by"] != "administrator" {
			t.Errorf("the Node is another one: %s, want %s", n.UID, made.UID)
		}
	})
	ns := s.Namespace()
	s.Apply(ns, samplePod("after", "edge1"))
	s.WaitPods(ns, "app", "edge1", 1)
	if now := s.startedAt("edge1"); now != kubelet {
		t.Errorf("edgecore was started again: %s, was %s", now, kubelet)
	}
}

// startedAt distinguishes one run of edgecore from another.
func (s *system) startedAt(edge string) string {
	s.T.Helper()
	return s.metric(edge, "process_start_time_seconds")
}
