package linktest

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"testing"
	"time"

	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/pki"
)

// Authority signs certificates for a test.
type Authority struct{ pki.Authority }

// NewAuthority makes an authority with a key of its own. It outlives its certificates, as with
// Kubernetes' signers, however long a busy machine takes between the two.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	a, err := pki.NewAuthority("test authority", time.Now().Add(-time.Hour), time.Now().Add(48*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	return &Authority{a}
}

// Pool holds the authority alone.
func (a *Authority) Pool() *x509.CertPool { return pki.Pool(a.Certificate) }

// Node makes the client certificate of an edge node, as Kubernetes' signer for kubelets does.
func (a *Authority) Node(t testing.TB, name string) tls.Certificate {
	t.Helper()
	return a.issue(t, &x509.Certificate{
		Subject:     pkix.Name{Organization: []string{pki.NodesGroup}, CommonName: pki.NodeUserPrefix + name},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

// Expired makes the client certificate of an edge node that was good until a minute ago.
func (a *Authority) Expired(t testing.TB, name string) tls.Certificate {
	t.Helper()
	return a.issue(t, &x509.Certificate{
		Subject:     pkix.Name{Organization: []string{pki.NodesGroup}, CommonName: pki.NodeUserPrefix + name},
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

// issue makes a certificate like template with a new key, good for a day unless template has other
// times.
func (a *Authority) issue(t testing.TB, template *x509.Certificate) tls.Certificate {
	t.Helper()
	if template.NotAfter.IsZero() {
		template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	}
	leaf, key, err := a.Leaf(template)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}
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

// ServerTLS is the cloud's configuration.
func (s Site) ServerTLS() *tls.Config {
	return &tls.Config{Certificates: []tls.Certificate{s.Cloud}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: s.Authority.Pool()}
}

// ClientTLS is the edge's configuration.
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
