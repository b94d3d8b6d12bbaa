package cluster_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/skerry-io/skerry/tests/cluster"
)

func TestControlPlane(t *testing.T) {
	audit := filepath.Join(t.TempDir(), "audit.log")
	c := cluster.Own(t, "--audit="+audit)
	ns := c.Namespace(t)
	node := c.AddNode(t, "edge1")

	t.Run("a node may change itself and no other", func(t *testing.T) {
		if _, err := node.CoreV1().Nodes().Get(t.Context(), "edge1", metav1.GetOptions{}); err != nil {
			t.Errorf("get of its own Node: %v", err)
		}
		_, err := kubernetes.NewForConfigOrDie(c.Node(t, "edge2")).CoreV1().Nodes().Patch(t.Context(), "edge1", "application/merge-patch+json",
			[]byte(`{"metadata":{"labels":{"mine":"yes"}}}`), metav1.PatchOptions{})
		if !apierrors.IsForbidden(err) {
			t.Errorf("patch by another node: want Forbidden, got %v", err)
		}
	})

	t.Run("a ServiceAccount may do nothing at first", func(t *testing.T) {
		account := kubernetes.NewForConfigOrDie(c.ServiceAccount(t, ns, "someone"))
		if _, err := account.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("list of pods: want Forbidden, got %v", err)
		}
	})

	t.Run("what was written survives a crash", func(t *testing.T) {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kept"}, Data: map[string]string{"key": "value"}}
		if _, err := c.Client().CoreV1().ConfigMaps(ns).Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		server := c.Server
		if err := c.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Client().CoreV1().ConfigMaps(ns).Get(t.Context(), "kept", metav1.GetOptions{}); err == nil {
			t.Error("the control plane answers after its end")
		}
		if err := c.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if c.Server != server {
			t.Errorf("the address changed from %s to %s", server, c.Server)
		}
		cluster.Eventually(t, "the ConfigMap", func(ctx context.Context) error {
			got, err := c.Client().CoreV1().ConfigMaps(ns).Get(ctx, "kept", metav1.GetOptions{})
			if err == nil && got.Data["key"] != "value" {
				return fmt.Errorf("data is %v", got.Data)
			}
			return err
		})
	})

	t.Run("an older copy is what there was then", func(t *testing.T) {
		maps := c.Client().CoreV1().ConfigMaps(ns)
		create := func(name string) *corev1.ConfigMap {
			cm, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return cm
		}
		create("before")
		b, err := c.Backup(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // it may be used again
			create("lost")
			if err := c.Restore(t.Context(), b); err != nil {
				t.Fatal(err)
			}
			if _, err := maps.Get(t.Context(), "before", metav1.GetOptions{}); err != nil {
				t.Error(err)
			}
			if _, err := maps.Get(t.Context(), "lost", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				t.Errorf("what came after the copy: want NotFound, got %v", err)
			}
		}
	})

	t.Run("the audit log counts writes", func(t *testing.T) {
		writes := cluster.ReadAudit(t, audit, func(r cluster.Request) bool { return r.Write() && r.ObjectRef.Name == "kept" })
		if len(writes) != 1 || writes[0].ResponseStatus.Code != 201 {
			t.Errorf("want one create with code 201, got %+v", writes)
		}
	})
}
