package edgeapi_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/kubectl/pkg/cmd"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"

	"github.com/skerry-io/skerry/edge/internal/core/edgeapi"
)

// serve runs the listeners as on a device and returns the path of the admin's kubeconfig
// and of the socket.
func serve(t *testing.T, b edgeapi.Backend) (kubeconfig, socket string) {
	t.Helper()
	dir := t.TempDir()
	socket = filepath.Join(dir, "edge.sock")
	s := edgeapi.New(edgeapi.Config{NodeName: node, Backend: b, DataDir: dir, Socket: socket, Listen: "127.0.0.1:0"})
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- s.Serve(ctx, func() { close(ready) }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serving: %v", err)
		}
		if _, err := os.Stat(socket); err == nil {
			t.Error("the socket is left behind")
		}
	})
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	return filepath.Join(dir, edgeapi.KubeconfigFile), socket
}

// kubectl runs the real one in this process, until it ends or seen returns true for its output.
func kubectl(t *testing.T, kubeconfig string, seen func(string) bool, args ...string) (stdout, stderr string) {
	t.Helper()
	flags := genericclioptions.NewConfigFlags(false)
	cacheDir, err := os.MkdirTemp("", "kubectl-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(cacheDir) }) // a kubectl that still watches may be writing there
	flags.KubeConfig, flags.CacheDir = &kubeconfig, &cacheDir
	out := &output{seen: seen, enough: make(chan struct{})}
	var errs bytes.Buffer
	c := cmd.NewKubectlCommand(cmd.KubectlOptions{
		ConfigFlags: flags,
		IOStreams:   genericiooptions.IOStreams{In: strings.NewReader(""), Out: out, ErrOut: &errs},
		Arguments:   append([]string{"kubectl"}, args...),
	})
	c.SetArgs(args)
	c.SetOut(out)
	c.SetErr(&errs)
	done := make(chan struct{})
	cmdutil.BehaviorOnFatal(func(message string, _ int) { panic(fatal(message)) })
	go func() {
		defer close(done)
		defer func() {
			if f, ok := recover().(fatal); ok {
				errs.WriteString(string(f))
			}
		}()
		if err := c.ExecuteContext(t.Context()); err != nil {
			errs.WriteString(err.Error())
		}
	}()
	select {
	case <-done:
		return out.String(), errs.String()
	case <-out.enough: // it watches; it ends with the server
		return out.String(), ""
	case <-t.Context().Done():
		t.Fatalf("kubectl %v: %s%s", args, out.String(), errs.String())
	}
	return "", ""
}

type fatal string

// output collects kubectl's output, and calls seen with all of it after each line.
type output struct {
	seen   func(string) bool
	enough chan struct{}

	mu   sync.Mutex
	text bytes.Buffer
	full bool
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text.Write(p)
	if o.seen != nil && !o.full && o.seen(o.text.String()) {
		o.full = true
		close(o.enough)
	}
	return len(p), nil
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

func offlineDevice(t *testing.T) *fakeBackend {
	b := newFakeBackend(t)
	b.sync(pods, "spec.nodeName="+node)
	b.sync(nodes, "metadata.name="+node)
	b.sync(configMaps, "metadata.name=settings,metadata.namespace=default")
	b.sync(events)
	b.sync(leases)
	b.sync(csiNodes)
	b.set(leases, &coordinationv1.Lease{
		TypeMeta:   metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-node-lease", Name: node, UID: "uid-lease"},
	})
	b.set(pods, pod("web"))
	b.set(nodes, &corev1.Node{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: node, UID: "uid-node"},
		Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			NodeInfo:   corev1.NodeSystemInfo{KubeletVersion: "v1.37.1"},
		},
	})
	b.set(configMaps, configMap("settings"))
	b.set(events, &corev1.Event{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Event"}, ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web.1", UID: "uid-event"},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "web", UID: "uid-web", APIVersion: "v1"},
		Reason:         "Pulled", Message: "Container image is there", Type: corev1.EventTypeNormal,
		Source: corev1.EventSource{Component: "kubelet", Host: node}, Count: 3,
	})
	return b
}

// TestIsland_13_KubectlReadsOffline is kubectl on a device without a link.
func TestIsland_13_KubectlReadsOffline(t *testing.T) {
	b := offlineDevice(t)
	b.setLinked(false)
	kubeconfig, _ := serve(t, b)
	if _, err := clientcmd.LoadFromFile(kubeconfig); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		args []string
		want []string
	}{
		{[]string{"get", "pods"}, []string{"NAME", "READY", "STATUS", "web", "Running"}},
		{[]string{"get", "po", "-A", "-o", "wide"}, []string{"NAMESPACE", "default", "10.0.0.7", node}},
		{[]string{"get", "pod", "web", "-o", "yaml"}, []string{"kind: Pod", "uid: uid-web", "phase: Running"}},
		{[]string{"get", "nodes", "-o", "wide"}, []string{node, "Ready", "v1.37.1"}},
		{[]string{"get", "cm", "settings", "-o", "jsonpath={.data.key}"}, []string{"value of settings"}},
		{[]string{"get", "pods", "-l", "app=none"}, nil},
		{[]string{"get", "events"}, []string{"LAST SEEN", "Normal", "Pulled", "pod/web", "Container image is there"}},
		{[]string{"describe", "pod", "web"}, []string{"Name:", "web", "Status:", "Running", "Events:", "Pulled", "x3"}},
		{[]string{"describe", "node", node}, []string{"Name:", node, "Non-terminated Pods:", "web"}},
		{[]string{"api-resources"}, []string{"pods", "po", "deployments", "daemonsets"}},
		{[]string{"get", "--raw", "/version"}, []string{"gitVersion"}},
	}
	for _, test := range tests {
		t.Run(strings.Join(test.args, " "), func(t *testing.T) {
			out, errs := kubectl(t, kubeconfig, nil, test.args...)
			for _, want := range test.want {
				if !strings.Contains(out, want) {
					t.Errorf("no %q in\n%s%s", want, out, errs)
				}
			}
			if strings.Contains(strings.ToLower(errs), "error") {
				t.Errorf("stderr: %s", errs)
			}
		})
	}
	t.Run("what isn't held", func(t *testing.T) {
		out, errs := kubectl(t, kubeconfig, nil, "get", "deployments")
		if strings.Contains(out+errs, "No resources found") || !strings.Contains(errs, "not synced yet") {
			t.Errorf("got %s%s, want the reason", out, errs)
		}
	})
	t.Run("get -w", func(t *testing.T) {
		b.set(pods, pod("later"))
		out, _ := kubectl(t, kubeconfig, func(s string) bool {
			if strings.Contains(s, "later") && !strings.Contains(s, "Succeeded") {
				b.set(pods, pod("later", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }))
			}
			return strings.Contains(s, "Succeeded") || strings.Contains(s, "Completed")
		}, "get", "pods", "-A", "-w")
		if !strings.Contains(out, "later") {
			t.Errorf("got\n%s", out)
		}
	})
}
