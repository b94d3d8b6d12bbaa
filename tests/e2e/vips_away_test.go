package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// tills is a Deployment with a pod on each edge, as an operator would write one: the pods tolerate
// a node's absence no longer than the cluster's default, and one that is asked to end continues to
// serve until that is known everywhere.
const tills = `apiVersion: apps/v1
kind: Deployment
metadata: {name: till}
spec:
  replicas: 2
  selector: {matchLabels: {app: till}}
  template:
    metadata: {labels: {app: till}}
    spec:
      dnsPolicy: Default
      terminationGracePeriodSeconds: 20
      affinity:
        podAntiAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
          - {topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: till}}}
      containers:
      - name: sample
        image: skerry.local/sample:1
        imagePullPolicy: IfNotPresent
        readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
        lifecycle: {preStop: {sleep: {seconds: 5}}}
`

// VIPs_20: the cloud is away for so long that it takes all nodes for dead, and evicts the
// Deployment's pod of the node that holds the address; it comes back. While it is away no client is
// affected and no address flaps. With it comes the eviction: the address is handed over, once, to
// the node whose pod stays, while clients are served; it stays there when the Deployment's new pod
// is ready. (Traps_16: the test without a Deployment, whose pods are never evicted, had proved
// less.)
func TestVIPs_20_Traps_16_NoFlapAfterALongCut(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	s.Apply(ns, tills)
	s.WaitPods(ns, "app=till", "", 2)
	s.makeShop(ns, "till")
	s.elected()
	s.waitShop(2)
	holder := s.waitShopAt("edge1", "edge2")
	other := otherEdge(holder)
	goes, stays := s.WaitPods(ns, "app=till", holder, 1)[0], s.WaitPods(ns, "app=till", other, 1)[0]
	s.optOut(holder)
	before := s.roles()
	containers := map[string][]string{holder: s.Containers(holder), other: s.Containers(other)}

	customers := s.shoppers()
	// One after the other: while every node is away Kubernetes takes itself for the broken part,
	// and evicts no pod.
	s.Cut(holder)
	s.WaitReady(holder, false)
	s.waitEvicted(ns, goes.Name)
	s.Cut(other)
	s.WaitReady(other, false)
	s.WaitFor("a pod in the place of the evicted one", func(ctx context.Context) error {
		pods, err := s.Client.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{LabelSelector: "app=till"})
		if err == nil && len(pods.Items) != 3 {
			err = fmt.Errorf("there are %d", len(pods.Items))
		}
		return err
	})
	s.lasts("nothing changes on the site", minutes(t, 10), func() error {
		if all := s.shopHolders(); !slices.Equal(all, []string{holder}) {
			return fmt.Errorf("held by %v, before by %s", all, holder)
		}
		return errors.Join(s.kept(ns, stays.Name), s.same(holder, containers[holder]), s.same(other, containers[other]))
	})
	if after := s.roles(); after != before {
		t.Errorf("while the cloud is away the nodes' roles went from\n%s\nto\n%s", before, after)
	}

	for _, node := range []string{"edge1", "edge2"} {
		s.Heal(node)
	}
	s.WaitFor("the evicted pod to be gone, and its address to be with "+other, func(ctx context.Context) error {
		if all := s.shopHolders(); !slices.Equal(all, []string{other}) {
			return fmt.Errorf("held by %v", all)
		}
		pods, err := s.Client.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{LabelSelector: "app=till"})
		if err == nil && len(pods.Items) != 2 {
			err = fmt.Errorf("there are %d pods", len(pods.Items))
		}
		return err
	})
	s.WaitPods(ns, "app=till", holder, 1)
	if s.waitShop(2) != other {
		t.Errorf("the address did not stay with %s", other)
	}
	moved := s.roles()
	s.lasts("the address stays where it went", minutes(t, 2), func() error {
		if all := s.shopHolders(); !slices.Equal(all, []string{other}) {
			return fmt.Errorf("held by %v, before by %s", all, other)
		}
		return nil
	})
	customers.end()
	if after := s.roles(); after != moved {
		t.Errorf("once it was handed over the nodes' roles went from\n%s\nto\n%s", moved, after)
	}
	if now := s.WaitPods(ns, "app=till", other, 1)[0]; now.UID != stays.UID {
		t.Errorf("the pod of %s is %s, and was %s", other, now.Name, stays.Name)
	}
	if len(customers.lost) > 0 {
		t.Errorf("%d of %d customers were not served: %v", len(customers.lost), customers.bought+len(customers.lost), customers.lost[0])
	}
	t.Logf("%d customers, %d lost", customers.bought+len(customers.lost), len(customers.lost))
}
