package statusserver

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/skerry-io/skerry/common/pki"
)

// Trust is this device's identity, and the CAs that it trusts.
type Trust struct {
	Certificate func() (*tls.Certificate, error)
	// Authorities sign the cluster's client certificates; nil: they are not known, and no client is
	// accepted.
	Authorities func() *x509.CertPool
	// Admits judges the certificate of a node, which is not of this device's site or was revoked;
	// nil, or nil returned: it may ask.
	Admits func(certificate *x509.Certificate) error
	// Now is the best that is known of the time.
	Now func() time.Time
}

// verify judges a client certificate of the cluster.
func (t Trust) verify(certs []*x509.Certificate) error {
	if len(certs) == 0 {
		return errors.New("no certificate was shown")
	}
	roots := t.Authorities()
	if roots == nil {
		return errors.New("the authority of the cluster's client certificates is not known here")
	}
	_, err := certs[0].Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: pki.Pool(certs[1:]...), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, CurrentTime: t.Now(),
	})
	if err != nil {
		return fmt.Errorf("verifying the certificate: %w", err)
	}
	if _, err := pki.NodeOf(certs[0]); err == nil && t.Admits != nil {
		return t.Admits(certs[0])
	}
	return nil
}

// server asks for a client certificate and shows the node's own, which is a client certificate too:
// a device has no other that peers could verify.
func (t Trust) server() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, SessionTicketsDisabled: true, ClientAuth: tls.RequireAnyClientCert, Time: t.Now,
		GetCertificate:   func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return t.Certificate() },
		VerifyConnection: func(cs tls.ConnectionState) error { return t.verify(cs.PeerCertificates) },
	}
}

// client asks a peer, which must be a node of the cluster.
func (t Trust) client() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Time: t.Now,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return t.Certificate() },
		// A node's certificate has no host name and is not for servers: VerifyConnection, which is
		// always called, is right for one.
		InsecureSkipVerify: true,
		VerifyConnection: func(cs tls.ConnectionState) error {
			if err := t.verify(cs.PeerCertificates); err != nil {
				return err
			}
			if _, err := pki.NodeOf(cs.PeerCertificates[0]); err != nil {
				return fmt.Errorf("the peer is no node: %w", err)
			}
			return nil
		},
	}
}

// administrators is the group whose members have all permissions in Kubernetes.
const administrators = "system:masters"

// known reports whether a verified certificate is a node's or an administrator's.
func known(certs []*x509.Certificate) bool {
	if len(certs) == 0 {
		return false
	}
	_, err := pki.NodeOf(certs[0])
	return err == nil || slices.Contains(certs[0].Subject.Organization, administrators)
}
