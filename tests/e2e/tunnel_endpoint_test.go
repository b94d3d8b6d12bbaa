package e2e_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/tests/cluster/suite"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

// kube-apiserver is not configured for cloudcore and prefers addresses, as a managed one may: it
// reaches the kubelets by the Nodes' own data.
func TestStreams_KubeAPIServerAsItIs(t *testing.T) {
	o := trial.DefaultOptions()
	o.Edges, o.Streams = 1, trial.StreamsEndpoint
	s := suite.UseOther(t, "endpoint", o)
	pod := s.WaitPods("sample", "app=sample", "edge1", 1)[0]
	// A Node is Ready before its kubelet has the certificate for its server, which it asks the
	// cluster for when it starts: until then it ends every handshake.
	s.WaitFor("the pod's log, by the kubelet's server", func(ctx context.Context) error {
		out, err := s.Run(ctx, "kubectl", "logs", "-n", "sample", pod.Name)
		if err == nil && !strings.Contains(out, "listening on") {
			err = fmt.Errorf("the log is %q", out)
		}
		return err
	})
	if out := s.Kubectl("exec", "-n", "sample", pod.Name, "--", "/app", "get", "http://127.0.0.1:8080/healthz"); out != "ok\n" {
		t.Errorf("exec says %q", out)
	}
	if out := s.Kubectl("get", "--raw", "/api/v1/nodes/edge1/proxy/healthz"); out != "ok" {
		t.Errorf("the kubelet's /healthz says %q", out)
	}
	// The cloud sees no address to dial, the device sees its own.
	n, err := s.Client.CoreV1().Nodes().Get(t.Context(), "edge1", metav1.GetOptions{})
	s.Check(err)
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			t.Errorf("the Node says %v", n.Status.Addresses)
		}
	}
	if out := s.EdgeKubectl("edge1", "get", "node", "edge1", "-o", `jsonpath={.status.addresses[?(@.type=="InternalIP")].address}`); out == "" {
		t.Error("the device does not see its own address")
	}
	// Without a link there is an error, at once, if not one that gives the reason.
	s.Cut("edge1")
	s.WaitFor("an error without a link", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		_, err := s.Run(ctx, "kubectl", "logs", "-n", "sample", pod.Name)
		if err == nil || !strings.Contains(err.Error(), "tls: internal error") {
			return fmt.Errorf("got %w", err)
		}
		return nil
	})
}
