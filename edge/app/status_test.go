package app_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/edge/app"
	"github.com/skerry-io/skerry/edge/internal/core/store"
	edgeconfig "github.com/skerry-io/skerry/edge/internal/setup/config"
)

// joined gives a device an identity.
func joined(t *testing.T, cfg *edgeconfig.Config) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ca, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "system:node:edge1", Organization: []string{"system:nodes"}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, ca.Public(), ca)
	must(err)
	cert, err := x509.ParseCertificate(der)
	must(err)
	key, err := pki.EncodeKey(ca)
	must(err)
	dir := app.IdentityDir(cfg)
	must(os.MkdirAll(dir, 0o700))
	for name, data := range map[string][]byte{
		"node.pem": append(pki.EncodeCertificates(cert), key...), "ca.crt": pki.EncodeCertificates(cert),
		"cluster.json": []byte(`{"node": "edge1", "server": "cloud.example", "protocol": 1}`),
	} {
		must(os.WriteFile(filepath.Join(dir, name), data, 0o600))
	}
}

// A suspended or slow edgecore is distinguished from one that does not run: it holds the store's
// lock.
func TestClaims_39_EdgecoreThatDoesNotAnswerRuns(t *testing.T) {
	cfg := edgeconfig.Default()
	cfg.DataDir = t.TempDir()
	joined(t, cfg)
	file, err := store.Open(t.Context(), store.Config{Path: filepath.Join(cfg.DataDir, "store.db"), KeyFile: filepath.Join(cfg.DataDir, "store.key")})
	if err != nil {
		t.Fatal(err)
	}
	s, err := app.StatusOfFiles(t.Context(), cfg)
	if !errors.Is(err, app.ErrUnresponsive) || !s.Unresponsive || s.Node != "edge1" || s.Identity == nil {
		t.Errorf("with one that has locked the store: %v, %+v", err, s)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	if s, err := app.StatusOfFiles(t.Context(), cfg); errors.Is(err, app.ErrUnresponsive) || s.Unresponsive {
		t.Errorf("where none runs: %v, %+v", err, s)
	}
}
