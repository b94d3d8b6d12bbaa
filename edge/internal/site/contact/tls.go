package contact

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/edge/internal/site/peers"
)

// The ALPN protocols (RFC 7301): of the statuses, and of programs (program.go).
const (
	protocol        = "skerry-site/1"
	programProtocol = "skerry-program/1"
)

// Trust is this device's identity, and the CAs that it trusts.
type Trust struct {
	Certificate func() (*tls.Certificate, error)
	// Authorities sign the cluster's client certificates; nil: they are not known, and no
	// peer is trusted.
	Authorities func() *x509.CertPool
	// Linked reports whether there is a link to the cloud. Without one no certificate can be
	// renewed, so an expired one counts.
	Linked func() bool
	// Now is the best that is known of the time.
	Now func() time.Time
}

// admit judges the certificate of a peer: a node's client certificate, of the cluster's authority,
// of a device of the site, and not revoked.
func (t Trust) admit(certs []*x509.Certificate, s *peers.Site) (*peers.Member, error) {
	if len(certs) == 0 {
		return nil, errors.New("the peer has no certificate")
	}
	roots := t.Authorities()
	if roots == nil {
		return nil, errors.New("the authority of node certificates is not known here")
	}
	leaf := certs[0]
	options := x509.VerifyOptions{Roots: roots, Intermediates: pki.Pool(certs[1:]...), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, CurrentTime: t.Now()}
	if !t.Linked() {
		// The only clock may be one that is stuck in 1970, too. Not by its beginning: signers date
		// that back, to before their own.
		options.CurrentTime = leaf.NotAfter.Add(-time.Second)
	}
	if _, err := leaf.Verify(options); err != nil {
		return nil, fmt.Errorf("verifying the peer's certificate: %w", err)
	}
	if s == nil {
		return nil, errors.New("this device does not know its site yet")
	}
	return s.Admits(leaf)
}

// config is for both ends, which both show the certificate of a node. Sessions are not resumed:
// each connection is verified again. check gets the peer's member and the protocol, refused the
// reason why a certificate is not one of the site's.
func (t Trust) config(current func() *peers.Site, check func(m *peers.Member, protocol string) error, refused func(error), protocols ...string) *tls.Config {
	verify := func(cs tls.ConnectionState) error {
		m, err := t.admit(cs.PeerCertificates, current())
		if err != nil {
			refused(err)
			return err
		}
		return check(m, cs.NegotiatedProtocol)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: protocols, SessionTicketsDisabled: true,
		GetCertificate:       func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return t.Certificate() },
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return t.Certificate() },
		ClientAuth:           tls.RequireAnyClientCert,
		// A node's certificate has no host name and is not for servers: VerifyConnection verifies
		// it, on both ends and always.
		InsecureSkipVerify: true,
		VerifyConnection:   verify,
	}
}
