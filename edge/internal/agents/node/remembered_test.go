package node_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/agents/node"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
	"github.com/skerry-io/skerry/edge/internal/core/object"
)

func aNode(uid types.UID, labels map[string]string, taints ...corev1.Taint) *corev1.Node {
	return &corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: "edge1", UID: uid, Labels: labels}, Spec: corev1.NodeSpec{Taints: taints},
	}
}

var dedicated = corev1.Taint{Key: "dedicated", Value: "x", Effect: corev1.TaintEffectNoSchedule}

// labelled is a Node as its administrator has it.
func labelled() *corev1.Node {
	n := aNode("one", map[string]string{
		"team": "blue", "example.org/rack": "7", "skerry.io/edge": "", "node-role.kubernetes.io/edge": "", "kubernetes.io/hostname": "edge1",
		"skerry.io/node-pool": "plant", "skerry.io/autonomy": "false", "topology.kubernetes.io/zone": "north", "node-role.kubernetes.io/camera": "",
		"x.node-restriction.kubernetes.io/secret": "yes",
	}, dedicated, corev1.Taint{Key: "node.kubernetes.io/unreachable", Effect: corev1.TaintEffectNoExecute})
	n.Spec.PodCIDR, n.Spec.PodCIDRs = "10.1.2.0/24", []string{"10.1.2.0/24"}
	n.Spec.Unschedulable, n.Annotations = true, map[string]string{v1alpha1.CordonAnnotation: "op", "note": "a"}
	return n
}

// Settings that a node may set itself are restored with its registration, and the kubelet's own
// values take precedence.
func TestRememberedAmend(t *testing.T) {
	known := node.Remembered{}.Follow(labelled())
	n := aNode("", map[string]string{"team": "of the kubelet", "skerry.io/edge": ""}, dedicated)
	known.Amend(n, true)
	want := aNode("", map[string]string{"team": "of the kubelet", "skerry.io/edge": "", "example.org/rack": "7", "topology.kubernetes.io/zone": "north"}, dedicated)
	want.Spec.PodCIDR, want.Spec.PodCIDRs = "10.1.2.0/24", []string{"10.1.2.0/24"}
	want.Spec.Unschedulable, want.Annotations = true, map[string]string{v1alpha1.CordonAnnotation: "op"}
	if diff := cmp.Diff(want, n); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	n = aNode("", nil)
	known.Amend(n, false)
	if len(n.Labels) != 0 || len(n.Spec.Taints) != 1 || n.Spec.PodCIDR == "" {
		t.Errorf("without labels: %v, %v", n.Labels, n.Spec)
	}
	n = aNode("", nil)
	node.Remembered{}.Amend(n, true)
	if diff := cmp.Diff(aNode("", map[string]string{}), n); diff != "" {
		t.Errorf("of a device's first registration (-want +got):\n%s", diff)
	}
}

// Missing settings of the previous Node are reported until they are set to any value, or an
// administrator waives them.
func TestRememberedProblem(t *testing.T) {
	known := node.Remembered{}.Follow(labelled())
	if p := known.Problem("edge1"); p != "" {
		t.Errorf("of a Node that was never deleted: %s", p)
	}
	lost := func(step string, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, known.Lost); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step, diff)
		}
	}
	n := aNode("two", map[string]string{"team": "blue", "example.org/rack": "7", "topology.kubernetes.io/zone": "north"})
	known = known.Follow(n)
	lost("another Node", "node-role.kubernetes.io/camera=", "skerry.io/autonomy=false", "skerry.io/node-pool=plant", "taint dedicated=x:NoSchedule", "x.node-restriction.kubernetes.io/secret=yes")
	if p := known.Problem("edge1"); !strings.Contains(p, "skerry.io/node-pool=plant, taint dedicated=x:NoSchedule") {
		t.Error(p)
	}
	delete(n.Labels, "team") // by the administrator, now: it is not lost
	n.Labels["skerry.io/node-pool"], n.Spec.Taints = "another", []corev1.Taint{dedicated}
	known = known.Follow(n)
	lost("some are set again", "node-role.kubernetes.io/camera=", "skerry.io/autonomy=false", "x.node-restriction.kubernetes.io/secret=yes")
	known = known.Follow(aNode("three", nil))
	lost("once more", "example.org/rack=7", "node-role.kubernetes.io/camera=", "skerry.io/autonomy=false", "skerry.io/node-pool=another", "taint dedicated=x:NoSchedule", "topology.kubernetes.io/zone=north",
		"x.node-restriction.kubernetes.io/secret=yes")
	n = aNode("three", nil)
	n.Annotations = map[string]string{v1alpha1.LostSettingsAnnotation: "accepted"}
	known = known.Follow(n)
	lost("accepted")
}

// A registration is retried without the previous labels if they are refused; the remembered
// settings survive edgecore's restart.
func TestKeeper_Refused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &device{events: make(chan metamanager.Event), held: true, linked: true}
		m := memory{}
		ctx, cancel := context.WithCancel(t.Context())
		k := node.NewRegistration(d, "edge1", m, func() {})
		done := make(chan error, 1)
		go func() { done <- k.Keep(ctx) }()
		o, err := object.FromObject(schema.GroupVersionResource{Version: "v1", Resource: "nodes"}, labelled())
		if err != nil {
			t.Fatal(err)
		}
		d.events <- metamanager.Event{Type: watch.Added, Object: o}
		synctest.Wait()
		cancel()
		close(d.events)
		if err := <-done; err != nil {
			t.Error(err)
		}

		k = node.NewRegistration(d, "edge1", m, func() {})
		if err := k.Load(); err != nil {
			t.Fatal(err)
		}
		d.refuses = "example.org/rack"
		body, err := object.JSON(aNode("", map[string]string{"skerry.io/edge": ""}))
		if err != nil {
			t.Fatal(err)
		}
		result, err := k.Register(t.Context(), metamanager.Write{Verb: "create", Body: body})
		if err != nil || result.Code != http.StatusCreated || d.count() != 1 {
			t.Fatalf("%v, %d; wrote %q", err, result.Code, d.written)
		}
		for text, want := range map[string]bool{"example.org/rack": false, `"skerry.io/edge"`: true, `"10.1.2.0/24"`: true, `"dedicated"`: true} {
			if strings.Contains(d.written[0], text) != want {
				t.Errorf("%s: want %t in %s", text, want, d.written[0])
			}
		}
	})
}
