package join_test

import (
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/skerry-io/skerry/cloud/internal/join"
	"github.com/skerry-io/skerry/common/pki"
)

// TestLoadCA needs only that a name can be created once, which the fake holds to.
func TestLoadCA(t *testing.T) {
	t.Run("replicas that start together agree", func(t *testing.T) {
		client := fake.NewClientset()
		pins := make([]pki.Pin, 8)
		var g errgroup.Group
		for i := range pins {
			g.Go(func() error {
				ca, err := join.LoadCA(t.Context(), client)
				if err == nil {
					pins[i] = ca.Pin()
				}
				return err
			})
		}
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
		for _, p := range pins {
			if p != pins[0] {
				t.Fatalf("two CAs: %s and %s", p, pins[0])
			}
		}
	})
	t.Run("a Secret that is no CA", func(t *testing.T) {
		client := fake.NewClientset(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: join.Namespace, Name: "skerry-ca"}})
		if _, err := join.LoadCA(t.Context(), client); err == nil || !strings.Contains(err.Error(), "delete it") {
			t.Errorf("got %v", err)
		}
	})
}
