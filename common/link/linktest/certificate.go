package linktest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"testing"
	"time"

	"github.com/skerry-io/skerry/common/link"
)

// Authority signs certificates for a test.
type Authority struct {
	Certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// NewAuthority makes an authority with a key of its own.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{key: newKey(t)}
	a.Certificate = sign(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: "test authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, a, a.key)
	return a
}

// Pool holds the authority alone.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.Certificate)
	return pool
}

// Node makes the client certificate of an edge node, as Kubernetes' signer for kubelets does.
func (a *Authority) Node(t testing.TB, name string) tls.Certificate {
	t.Helper()
	return a.issue(t, &x509.Certificate{
		Subject:     pkix.Name{Organization: []string{"system:nodes"}, CommonName: "system:node:" + name},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

// Expired makes the client certificate of an edge node that was good until a minute ago.
func (a *Authority) Expired(t testing.TB, name string) tls.Certificate {
	t.Helper()
	return a.issue(t, &x509.Certificate{
		Subject:     pkix.Name{Organization: []string{"system:nodes"}, CommonName: "system:node:" + name},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		NotBefore:   time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Minute),
	})
}

// Server makes the serving certificate of a cloudcore on this machine.
func (a *Authority) Server(t testing.TB) tls.Certificate {
	t.Helper()
	return a.issue(t, &x509.Certificate{
		Subject:     pkix.Name{CommonName: "cloudcore"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:    []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	})
}

// issue makes a certificate like template with a new key.
func (a *Authority) issue(t testing.TB, template *x509.Certificate) tls.Certificate {
	t.Helper()
	key := newKey(t)
	leaf := sign(t, template, a, key)
	return tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func sign(t testing.TB, template *x509.Certificate, by *Authority, key *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber = serial
	if template.NotAfter.IsZero() {
		template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	}
	if !template.IsCA {
		template.KeyUsage = x509.KeyUsageDigitalSignature
	}
	parent := by.Certificate
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, by.key)
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Site is a cloud and an edge that trust one authority.
type Site struct {
	Authority   *Authority
	Edge, Cloud tls.Certificate
}

// NewSite makes a site with the node edge-1.
func NewSite(t testing.TB) Site {
	t.Helper()
	a := NewAuthority(t)
	return Site{a, a.Node(t, "edge-1"), a.Server(t)}
}

// ServerTLS is what the cloud listens with.
func (s Site) ServerTLS() *tls.Config {
	return &tls.Config{Certificates: []tls.Certificate{s.Cloud}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: s.Authority.Pool()}
}

// ClientTLS is what the edge dials with.
func (s Site) ClientTLS() *tls.Config {
	return &tls.Config{Certificates: []tls.Certificate{s.Edge}, RootCAs: s.Authority.Pool()}
}

// Ends makes the ends of a link of this site.
func (s Site) Ends(edge, cloud link.Conn) Ends {
	return Ends{Edge: edge, Cloud: cloud, EdgeCertificate: s.Edge.Leaf, CloudCertificate: s.Cloud.Leaf}
}

// Connect dials and accepts one link, and closes it when the test ends.
func Connect(t testing.TB, l link.Listener, d link.Dialer) (edge, cloud link.Conn) {
	t.Helper()
	edge, err := d.Dial(context.Background(), l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	cloud, err = l.Accept(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = edge.Close(link.CloseShutdown, "the test ended")
		_ = cloud.Close(link.CloseShutdown, "the test ended")
	})
	return edge, cloud
}
