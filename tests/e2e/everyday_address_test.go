package e2e_test

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/tests/cluster/lab"
)

// TestEveryday_19: the device boots with another address than before. Its pods run again without a
// link; with one the cluster has the new address, and reaches the pods' logs.
func TestEveryday_19_AnotherAddressAtTheStart(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	pod := s.pod(ns, "bare", "edge1")
	s.Cut("edge1")
	s.lease("edge1", lab.Lease{Last: 77})
	address := "10.10.1.77"
	s.Reboot("edge1", true)
	s.waitRunsAgain("edge1", *pod)
	s.Heal("edge1")
	s.waitLinked("edge1")
	s.WaitReady("edge1", true)
	s.WaitFor("the cluster to have the new address", func(ctx context.Context) error {
		node, err := s.Client.CoreV1().Nodes().Get(ctx, "edge1", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, a := range node.Status.Addresses {
			if a.Type == corev1.NodeInternalIP && a.Address == address {
				return nil
			}
		}
		return fmt.Errorf("it has %v, want %s", node.Status.Addresses, address)
	})
	s.WaitFor("the pod's log by way of the cluster", func(ctx context.Context) error {
		_, err := s.Client.CoreV1().Pods(ns).GetLogs(pod.Name, &corev1.PodLogOptions{}).DoRaw(ctx)
		return err
	})
}
