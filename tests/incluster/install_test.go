package incluster_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/tests/cluster/binary"
	"github.com/skerry-io/skerry/tests/cluster/suite"
)

const greeter = `apiVersion: v1
kind: ConfigMap
metadata: {name: greeter}
data: {greeting: hello from the Deployment}
---
apiVersion: v1
kind: Pod
metadata: {name: greeter, labels: {app: greeter}}
spec:
  nodeName: edge1
  terminationGracePeriodSeconds: 1
  containers:
  - name: greeter
    image: skerry.local/sample:1
    volumeMounts: [{name: config, mountPath: /config}]
  volumes: [{name: config, configMap: {name: greeter}}]
`

// The output of `cloudcore install` runs on ordinary nodes, and devices have joined through its
// load balancer: their pods run with the objects that they refer to, and their logs are read, also
// as in a cluster whose kube-apiserver is not configured for Skerry.
func TestShip_07_InClusterJoinPodsLogs(t *testing.T) {
	s := newSystem(t)
	printed, err := os.ReadFile(filepath.Join(s.Dir, "install.yaml"))
	s.Check(err)
	nodes := map[string]bool{}
	pods, err := s.pods(t.Context())
	s.Check(err)
	for name, p := range pods {
		nodes[p.Spec.NodeName] = true
		if image := p.Spec.Containers[0].Image; !strings.Contains(image, "@sha256:") || !strings.Contains(string(printed), "image: "+image+"\n") {
			t.Errorf("%s runs %s, which is not what was printed", name, image)
		}
		if p.Spec.ServiceAccountName != "cloudcore" {
			t.Errorf("%s runs as %s", name, p.Spec.ServiceAccountName)
		}
	}
	if !nodes["plain1"] || !nodes["plain2"] || len(nodes) != 2 {
		t.Errorf("cloudcore runs on %v", nodes)
	}
	for _, node := range []string{"edge1", "edge2"} {
		replica := s.waitReplicaOf(node)
		e, err := s.edge(t.Context(), node)
		s.Check(err)
		if e.Link.Server != "198.51.100.100:443" {
			t.Errorf("%s has linked to %s by %s, not by port 443 of the load balancer", node, replica.Name, e.Link.Server)
		}
	}

	namespace := s.Namespace()
	s.Apply(namespace, greeter)
	pod := s.WaitPods(namespace, "app=greeter", "edge1", 1)[0]
	page := s.Must(s.Page(t.Context(), pod))
	if !strings.Contains(page, "greeting = hello from the Deployment") {
		t.Errorf("the pod has no ConfigMap:\n%s", page)
	}
	// Whichever replica kube-apiserver asks, it leads to the one that has the link: by the
	// aggregated API, and by the egress.
	_, err = binary.Build(t.Context(), s.Root, "kubectl-skerry") // which `trial kubectl` finds
	s.Check(err)
	for range 4 {
		for _, plugin := range [][]string{{"skerry"}, nil} {
			if log := s.Kubectl(append(plugin, "logs", "-n", namespace, "greeter")...); !strings.Contains(log, "GET / from") {
				t.Errorf("the log by kubectl %s is %q", plugin, log)
			}
		}
	}
	s.reports("edge1")
}

// The load balancer obeys the health checks: it sends no connection to a node without a replica.
func TestLoadBalancerFollowsHealth(t *testing.T) {
	s := newSystem(t)
	s.Kubectl("-n", systemNamespace, "scale", "deployment", deployment, "--replicas=1")
	s.waitRolledOut(deployment)
	var left corev1.Pod
	s.WaitFor("one replica to be left", func(ctx context.Context) error {
		list, err := s.Client.CoreV1().Pods(systemNamespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			return err
		}
		if len(list.Items) != 1 || !suite.PodReady(list.Items[0]) {
			return fmt.Errorf("there are %d pods", len(list.Items))
		}
		left = list.Items[0]
		return nil
	})
	address := map[string]string{"plain1": "10.10.51.2", "plain2": "10.10.52.2"}
	s.WaitFor("the load balancer to leave out the other node", func(ctx context.Context) error {
		out, err := s.on(ctx, "router", "iptables -t nat -S TRIAL-LB")
		if err != nil {
			return err
		}
		for node, a := range address {
			if strings.Contains(out, "--to-destination "+a) != (node == left.Spec.NodeName) {
				return errors.New(out)
			}
		}
		return nil
	})
	for _, node := range []string{"edge1", "edge2"} {
		if p := s.waitReplicaOf(node); p.Name != left.Name {
			t.Errorf("%s is linked to %s", node, p.Name)
		}
		s.reports(node)
	}
}
