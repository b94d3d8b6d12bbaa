package join_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/edge/internal/setup/join"
)

// A CA takes another's place while the device is joined: it trusts both, then only the new one; a
// sender that its own bundle would not trust is ignored.
func TestTrust_IsRenewed(t *testing.T) {
	now := time.Now()
	clock := pki.NewClock(time.Time{}, nil)
	id, old, dir := joined(t, clock, now.Add(-time.Hour), year)
	next, clients := newAuthority(t, now.Add(-time.Minute)), newAuthority(t, now.Add(-time.Minute))
	oldServer, newServer := old.server(t, now), next.server(t, now)
	trusts := func(server *x509.Certificate) bool {
		_, err := server.Verify(x509.VerifyOptions{Roots: id.TLS().RootCAs, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
		return err == nil
	}
	first := id.TrustSum()
	both := pki.EncodeCertificates(old.cert, next.cert)
	for name, bad := range map[string]struct {
		teller   *x509.Certificate
		ca, want string
	}{
		"the teller would not be trusted": {oldServer, string(pki.EncodeCertificates(next.cert)), "would end the trust in the cloud itself"},
		"no sender":                       {nil, string(both), "has shown no certificate"},
		"no PEM":                          {oldServer, "x", "reading the authorities"},
		"none at all":                     {oldServer, "", "reading the authorities"},
		"a server's certificate":          {oldServer, string(pki.EncodeCertificates(old.cert, oldServer)), "but is not one"},
	} {
		if err := id.Renew(bad.teller, []byte(bad.ca), nil); err == nil || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if !trusts(oldServer) || trusts(newServer) || !bytes.Equal(id.TrustSum(), first) || id.ClientCAFile() != "" {
		t.Error("what was refused has changed something")
	}

	roots := id.Roots()
	if err := id.Renew(oldServer, both, pki.EncodeCertificates(clients.cert)); err != nil {
		t.Fatal(err)
	}
	if !trusts(oldServer) || !trusts(newServer) || id.Roots() == roots {
		t.Error("both are not trusted")
	}
	if want := pki.TrustSum([]*x509.Certificate{old.cert, next.cert}, []*x509.Certificate{clients.cert}); !bytes.Equal(id.TrustSum(), want) {
		t.Error("the sum is another than the cloud's")
	}
	if data, err := os.ReadFile(filepath.Join(dir, "client-ca.crt")); err != nil || !bytes.Equal(data, pki.EncodeCertificates(clients.cert)) {
		t.Errorf("client-ca.crt: %q, %v", data, err)
	}
	if err := id.Renew(newServer, pki.EncodeCertificates(next.cert), nil); err != nil {
		t.Fatal(err)
	}
	again, err := join.Load(dir, nil, clock) // after a restart
	if err != nil {
		t.Fatal(err)
	}
	id = again
	if trusts(oldServer) || !trusts(newServer) || id.ClientCAFile() == "" {
		t.Error("after a restart another is trusted")
	}
	if c, err := id.Certificate(); err != nil || c == (*tls.Certificate)(nil) {
		t.Errorf("the device's own certificate is gone: %v", err)
	}
}
