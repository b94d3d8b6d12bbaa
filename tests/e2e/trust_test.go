package e2e_test

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/common/pki"
)

const (
	ownNamespace, caSecret = "skerry-system", "skerry-ca"
	trustedFile            = dataDir + "/identity/ca.crt"
)

// newCA is another CA for cloudcore, as PEM.
func newCA(t *testing.T) (certificate, key []byte) {
	t.Helper()
	k, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "skerry serving CA"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(20, 0, 0),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, k.Public(), k)
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	if key, err = pki.EncodeKey(k); err != nil {
		t.Fatal(err)
	}
	return pki.EncodeCertificates(c), key
}

// TestIsland_TrustIsRenewed: cloudcore's CA is replaced by another while two devices are joined, as
// in docs/dev/link.md: both stay linked through all of it, no device joins again, and in the end
// the old one is trusted no more.
func TestIsland_TrustIsRenewed(t *testing.T) {
	s := newSystem(t)
	devices := []string{"edge1", "edge2"}
	for _, d := range devices {
		s.waitLinked(d)
	}
	secrets := s.Client.CoreV1().Secrets(ownNamespace)
	have, err := secrets.Get(t.Context(), caSecret, metav1.GetOptions{})
	s.Check(err)
	oldCert, oldKey := have.Data[corev1.TLSCertKey], have.Data[corev1.TLSPrivateKeyKey]
	newCert, newKey := newCA(t)
	both := append(append([]byte{}, oldCert...), newCert...)
	replace := func(certificate, key, trusted []byte, want int) {
		t.Helper()
		before := map[string]uint64{}
		for _, d := range devices {
			st, err := s.deviceStatus(t.Context(), d)
			s.Check(err)
			before[d] = st.Link.Epoch
		}
		s.Check(secrets.Delete(t.Context(), caSecret, metav1.DeleteOptions{}))
		secret := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: caSecret, Namespace: ownNamespace}, Type: corev1.SecretTypeTLS,
			Data: map[string][]byte{corev1.TLSCertKey: certificate, corev1.TLSPrivateKeyKey: key},
		}
		if trusted != nil {
			secret.Data["ca.crt"] = trusted
		}
		_, err := secrets.Create(t.Context(), secret, metav1.CreateOptions{})
		s.Check(err)
		for _, replica := range options().Replicas() {
			s.Check(s.Trial.Stop(t.Context(), replica, "cloudcore"))
			s.Start(replica, "cloudcore")
		}
		for _, d := range devices {
			s.WaitFor(d+" to be linked again, and to trust whom it should", func(ctx context.Context) error {
				st, err := s.deviceStatus(ctx, d)
				if err != nil {
					return err
				}
				if !st.Link.Linked || st.Link.Epoch <= before[d] {
					return fmt.Errorf("linked: %t, session %d after %d", st.Link.Linked, st.Link.Epoch, before[d])
				}
				data, err := os.ReadFile(s.path(d, trustedFile))
				if err != nil {
					return err
				}
				certs, err := pki.ParseCertificates(data)
				if err == nil && len(certs) != want {
					err = fmt.Errorf("it trusts %d", len(certs))
				}
				return err
			})
		}
	}
	replace(oldCert, oldKey, both, 2)
	replace(newCert, newKey, both, 2)
	replace(newCert, newKey, nil, 1)
	// And back again: kube-apiserver's way to kubelets trusts the CA that it was started with.
	replace(newCert, newKey, both, 2)
	replace(oldCert, oldKey, both, 2)
	replace(oldCert, oldKey, nil, 1)
	for _, d := range devices {
		s.WaitReady(d, true)
	}
}
