package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func sorted() cmp.Option { return cmpopts.SortSlices(func(a, b string) bool { return a < b }) }

// TestUp: both nodes are Ready in the version of the kubelet that is built in, and the sample runs
// on both with its ConfigMap, Secret and token.
func TestUp(t *testing.T) {
	s := newSystem(t)
	for _, n := range []string{"edge1", "edge2"} {
		s.WaitReady(n, true)
		node, err := s.Client.CoreV1().Nodes().Get(t.Context(), n, metav1.GetOptions{})
		s.Check(err)
		server, err := s.Client.Discovery().ServerVersion()
		s.Check(err)
		if got := node.Status.NodeInfo.KubeletVersion; got != server.GitVersion {
			t.Errorf("node %s has version %s, the cluster %s", n, got, server.GitVersion)
		}
		pod := s.WaitPods("sample", "app=sample", n, 1)[0]
		page, err := s.Page(t.Context(), pod)
		s.Check(err)
		for _, want := range []string{"on node " + n, "config greeting = hello from the cloud", "secret password = open sesame", "token: system:serviceaccount:sample:sample until "} {
			if !strings.Contains(page, want) {
				t.Errorf("the page of %s lacks %q:\n%s", pod.Name, want, page)
			}
		}
	}
}

// TestIsland_03: edgecore is killed and started again while the link is cut; its containers are the
// same as before.
func TestIsland_03_EdgecoreRestartWhileCutTouchesNoPod(t *testing.T) {
	s := newSystem(t)
	before := s.Containers("edge1")
	if len(before) == 0 {
		t.Fatal("nothing runs on edge1")
	}
	s.Cut("edge1")
	s.Kill("edge1", "edgecore")
	s.Start("edge1", "edgecore")
	s.WaitFor("the device's own API", func(ctx context.Context) error {
		out, err := s.TryEdgeKubectl(ctx, "edge1", "get", "pods", "-n", "sample", "-l", "app=sample", "-o", "jsonpath={.items[*].status.phase}")
		if err == nil && out != "Running" {
			err = fmt.Errorf("phases: %q", out)
		}
		return err
	})
	if diff := cmp.Diff(before, s.Containers("edge1"), sorted()); diff != "" {
		t.Errorf("containers changed (-before +after):\n%s", diff)
	}
	s.Heal("edge1")
	s.WaitReady("edge1", true)
	if diff := cmp.Diff(before, s.Containers("edge1"), sorted()); diff != "" {
		t.Errorf("containers changed when the link came back (-before +after):\n%s", diff)
	}
}

// TestIsland_04: power cut and reboot without a link: the same pod comes back, with its ConfigMap,
// Secret and token.
func TestIsland_04_RebootWhileCutBringsPodsBack(t *testing.T) {
	s := newSystem(t)
	pod := s.WaitPods("sample", "app=sample", "edge1", 1)[0]
	s.Reboot("edge1", true)
	s.WaitFor("the pod to serve again, without a link", func(ctx context.Context) error {
		out, err := s.TryEdgeKubectl(ctx, "edge1", "get", "pod", "-n", "sample", pod.Name, "-o", "jsonpath={.metadata.uid} {.status.podIP} {.status.containerStatuses[0].ready}")
		if err != nil {
			return err
		}
		fields := strings.Fields(out)
		if len(fields) != 3 || fields[0] != string(pod.UID) || fields[2] != "true" {
			return fmt.Errorf("uid, address and readiness are %q", out)
		}
		again := pod
		again.Status.PodIP = fields[1]
		page, err := s.Page(ctx, again)
		if err != nil {
			return err
		}
		for _, want := range []string{"config greeting = hello from the cloud", "secret password = open sesame", "token: system:serviceaccount:sample:sample until "} {
			if !strings.Contains(page, want) {
				return fmt.Errorf("the page lacks %q:\n%s", want, page)
			}
		}
		return nil
	})
	before := s.Containers("edge1")
	s.Heal("edge1")
	s.WaitReady("edge1", true)
	got := s.WaitPods("sample", "app=sample", "edge1", 1)[0]
	if got.UID != pod.UID {
		t.Errorf("the pod was replaced: uid %s, was %s", got.UID, pod.UID)
	}
	if diff := cmp.Diff(before, s.Containers("edge1"), sorted()); diff != "" {
		t.Errorf("containers changed when the link came back (-before +after):\n%s", diff)
	}
}

// TestIsland_05: while the link is cut, one pod is deleted in the cloud and another is changed;
// after it is back the node applies the cloud's state, and leaves the others alone.
func TestIsland_05_PodChangesWhileCutConverge(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	for _, name := range []string{"stays", "changes", "goes"} {
		s.Apply(ns, samplePod(name, "edge1"))
	}
	s.WaitPods(ns, "app", "edge1", 3)
	stays, err := s.Client.CoreV1().Pods(ns).Get(t.Context(), "stays", metav1.GetOptions{})
	s.Check(err)
	s.Cut("edge1")
	s.Check(s.Client.CoreV1().Pods(ns).Delete(t.Context(), "goes", metav1.DeleteOptions{}))
	_, err = s.Client.CoreV1().Pods(ns).Patch(t.Context(), "changes", types.MergePatchType, []byte(`{"metadata":{"labels":{"changed":"yes"}}}`), metav1.PatchOptions{})
	s.Check(err)
	s.Heal("edge1")
	s.WaitFor("the deleted pod to go", func(ctx context.Context) error {
		list, err := s.Client.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
		if err == nil && len(list.Items) != 2 {
			err = fmt.Errorf("%d pods are left", len(list.Items))
		}
		return err
	})
	s.WaitFor("the change to arrive", func(ctx context.Context) error {
		out, err := s.TryEdgeKubectl(ctx, "edge1", "get", "pod", "-n", ns, "changes", "-o", "jsonpath={.metadata.labels.changed}")
		if err == nil && out != "yes" {
			err = fmt.Errorf("the label is %q", out)
		}
		return err
	})
	after, err := s.Client.CoreV1().Pods(ns).Get(t.Context(), "stays", metav1.GetOptions{})
	s.Check(err)
	if diff := cmp.Diff(stays.Status.ContainerStatuses, after.Status.ContainerStatuses); diff != "" {
		t.Errorf("the other pod's containers changed (-before +after):\n%s", diff)
	}
}

// TestIsland_10: packets vanish without a word; the node becomes NotReady as Kubernetes means it,
// and Ready again.
func TestIsland_10_SilentCutIsNoticedByBothSides(t *testing.T) {
	s := newSystem(t)
	before := s.Containers("edge1")
	s.CutSilently("edge1")
	s.WaitReady("edge1", false)
	s.WaitFor("the device to notice", func(ctx context.Context) error {
		status, err := s.Trial.Status(ctx)
		if err != nil {
			return err
		}
		for _, n := range status.Nodes {
			if n.Name == "edge1" && strings.Contains(string(n.Edge), `"linked": true`) {
				return errors.New("it believes in its link still")
			}
		}
		return nil
	})
	s.Heal("edge1")
	s.WaitReady("edge1", true)
	if diff := cmp.Diff(before, s.Containers("edge1"), sorted()); diff != "" {
		t.Errorf("containers changed (-before +after):\n%s", diff)
	}
}

// TestKillCloud: cloudcore and the whole control plane die; no pod on the edges is affected, and
// everything works when they are back.
func TestKillCloud(t *testing.T) {
	s := newSystem(t)
	before := map[string][]string{"edge1": s.Containers("edge1"), "edge2": s.Containers("edge2")}
	for _, program := range []string{"cloudcore", "kubeplane"} {
		s.Kill("cloud", program)
		s.Start("cloud", program)
	}
	ns := s.Namespace()
	s.Apply(ns, samplePod("new", "edge2"))
	s.WaitPods(ns, "app=new", "edge2", 1)
	for node, containers := range before {
		after := s.Containers(node)
		for _, c := range containers {
			if !slices.Contains(after, c) {
				t.Errorf("container %s of %s is gone", c, node)
			}
		}
	}
}

// samplePod is the sample application in a pod of its own, bound to a node.
func samplePod(name, node string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata:
  name: %[1]s
  labels: {app: %[1]s}
spec:
  nodeName: %[2]s
  dnsPolicy: Default
  terminationGracePeriodSeconds: 1
  containers:
  - name: sample
    image: skerry.local/sample:1
    imagePullPolicy: IfNotPresent
`, name, node)
}
