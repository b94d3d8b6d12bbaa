package e2e_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/skerry-io/skerry/tests/cluster/binary"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

// useOther brings up a trial of the test's own, beside the one that all share, and takes it down with the test.
func useOther(t *testing.T, name string, o trial.Options) *system {
	t.Helper()
	if os.Getenv(inner) == "" {
		t.Skip("needs a trial: run as root, without -short")
	}
	root, err := binary.Root()
	if err != nil {
		t.Fatal(err)
	}
	s := &system{t: t, root: root, dir: filepath.Join(root, ".trial-"+name)}
	s.Trial, err = trial.Open(root, s.dir, &s.progress)
	if s.Trial == nil {
		t.Fatal(err)
	}
	s.check(s.Down(t.Context())) // what a killed run left behind
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(s.progress.String(), s.state())
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := s.Down(ctx); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), upTimeout)
	defer cancel()
	s.check(s.Up(ctx, o))
	s.cfg, err = s.Admin()
	s.check(err)
	s.client, err = kubernetes.NewForConfig(s.cfg)
	s.check(err)
	return s
}

// kube-apiserver knows nothing of cloudcore and prefers addresses, as a managed one may: what leads it to the kubelets is what the Nodes say.
func TestStreams_KubeAPIServerAsItIs(t *testing.T) {
	o := trial.DefaultOptions()
	o.Edges, o.Streams = 1, trial.StreamsEndpoint
	s := useOther(t, "endpoint", o)
	pod := s.waitPods("sample", "app=sample", "edge1", 1)[0]
	if out := s.kubectl("logs", "-n", "sample", pod.Name); !strings.Contains(out, "listening on") {
		t.Errorf("the log is %q", out)
	}
	if out := s.kubectl("exec", "-n", "sample", pod.Name, "--", "/app", "get", "http://127.0.0.1:8080/healthz"); out != "ok\n" {
		t.Errorf("exec says %q", out)
	}
	if out := s.kubectl("get", "--raw", "/api/v1/nodes/edge1/proxy/healthz"); out != "ok" {
		t.Errorf("the kubelet's /healthz says %q", out)
	}
	// The cloud sees no address to dial, the device sees its own.
	n, err := s.client.CoreV1().Nodes().Get(t.Context(), "edge1", metav1.GetOptions{})
	s.check(err)
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			t.Errorf("the Node says %v", n.Status.Addresses)
		}
	}
	if out := s.edgeKubectl("edge1", "get", "node", "edge1", "-o", `jsonpath={.status.addresses[?(@.type=="InternalIP")].address}`); out == "" {
		t.Error("the device does not see its own address")
	}
	// Without a link there is an error, at once, if not one that says why.
	s.cut("edge1")
	s.waitFor("an error without a link", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		_, err := s.run(ctx, "kubectl", "logs", "-n", "sample", pod.Name)
		if err == nil || !strings.Contains(err.Error(), "tls: internal error") {
			return fmt.Errorf("got %w", err)
		}
		return nil
	})
}
