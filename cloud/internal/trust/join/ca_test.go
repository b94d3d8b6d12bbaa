package join_test

import (
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/skerry-io/skerry/cloud/internal/trust/join"
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
	t.Run("while one CA takes another's place both are trusted", func(t *testing.T) {
		client, other := fake.NewClientset(), fake.NewClientset()
		next, err := join.LoadCA(t.Context(), other)
		if err != nil {
			t.Fatal(err)
		}
		ca, err := join.LoadCA(t.Context(), client)
		if err != nil {
			t.Fatal(err)
		}
		if len(ca.Trusted) != 1 || !ca.Trusted[0].Equal(ca.Certificate) {
			t.Errorf("at first %d are trusted", len(ca.Trusted))
		}
		secrets := client.CoreV1().Secrets(join.Namespace)
		for name, test := range map[string]struct {
			more []byte
			want int // 0: refused
		}{
			"both, as they are written": {pki.EncodeCertificates(ca.Certificate, next.Certificate), 2},
			"the other alone":           {pki.EncodeCertificates(next.Certificate), 2},
			"not certificates":          {[]byte("x"), 0},
			"a certificate that is no CA": {func() []byte {
				s, err := ca.Serving([]string{"cloud.example"})
				if err != nil {
					t.Fatal(err)
				}
				c, err := s.Certificate()
				if err != nil {
					t.Fatal(err)
				}
				return pki.EncodeCertificates(c.Leaf)
			}(), 0},
		} {
			secret, err := secrets.Get(t.Context(), "skerry-ca", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			secret.Data["ca.crt"] = test.more
			if _, err := secrets.Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			got, err := join.LoadCA(t.Context(), client)
			switch {
			case test.want == 0:
				if err == nil || !strings.Contains(err.Error(), "ca.crt") {
					t.Errorf("%s: %v", name, err)
				}
			case err != nil || len(got.Trusted) != test.want || got.Pin() != ca.Pin():
				t.Errorf("%s: %v, %v", name, got, err)
			}
		}
	})
}
