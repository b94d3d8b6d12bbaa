package shutdown

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// steps are the steps of a shutdown, in their order.
type steps struct {
	mu  sync.Mutex
	all []string
}

func (s *steps) add(step string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, step)
}

// Stop implements the Kubelet of a Config.
func (s *steps) Stop() { s.add("kubelet stops") }

// A shutdown stops the kubelet before virtual IPs and containers: it would report the end of
// containers as that of pods, and start them again. The Node is not Ready, in the kubelet's words.
func TestPrepare(t *testing.T) {
	var done steps
	client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "edge1"}})
	patches := make(chan string, 1)
	client.PrependReactor("patch", "nodes", func(a clienttesting.Action) (bool, apiruntime.Object, error) {
		patches <- string(a.(clienttesting.PatchAction).GetPatch())
		return true, &corev1.Node{}, nil
	})
	client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, apiruntime.Object, error) {
		done.add("containers end")
		return true, &corev1.PodList{}, nil
	})
	m := &Module{Config{
		NodeName: "edge1", Periods: []Period{{0, time.Second}}, Kubelet: &done, Runtime: "unix://" + filepath.Join(t.TempDir(), "none"),
		Announced: func(context.Context) { done.add("announced") },
		Leave:     func(context.Context) error { done.add("virtual IPs leave"); return nil },
	}, client}
	if err := m.prepare(t.Context()); err == nil || !strings.Contains(err.Error(), "container runtime") {
		t.Errorf("without a runtime: %v", err)
	}
	if diff := cmp.Diff([]string{"announced", "kubelet stops", "virtual IPs leave", "containers end"}, done.all); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	var patch string
	select {
	case patch = <-patches:
	case <-time.After(10 * time.Second):
		t.Fatal("the Node was not patched")
	}
	if wants := []string{`"type":"Ready"`, `"status":"False"`, "node is shutting down"}; slices.ContainsFunc(wants, func(want string) bool { return !strings.Contains(patch, want) }) {
		t.Errorf("the Node: %s", patch)
	}
}
