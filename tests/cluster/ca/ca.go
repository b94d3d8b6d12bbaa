// Package ca signs certificates with the CA of a control plane whose files are at hand.
//
// It is stateless; its functions may be called from any goroutine.
package ca

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/skerry-io/skerry/common/pki"
)

// Lifetime is how long the certificates are good.
const Lifetime = 30 * 24 * time.Hour

// New makes a CA: its certificate and key, both PEM.
func New(name string) (cert, key []byte, err error) {
	now := time.Now()
	ca, err := pki.NewAuthority(name, now.Add(-time.Hour), now.Add(Lifetime))
	if err != nil {
		return nil, nil, err
	}
	return ca.Encode()
}

// Client issues a client certificate and its key, both PEM, by the CA in two PEM files.
func Client(caFile, caKeyFile string, subject pkix.Name) (cert, key []byte, err error) {
	return issue(caFile, caKeyFile, &x509.Certificate{Subject: subject, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
}

// Server issues a serving certificate and its key for names and addresses, both PEM, by the CA
// in two PEM files.
func Server(caFile, caKeyFile string, subject pkix.Name, names []string, addrs ...netip.Addr) (cert, key []byte, err error) {
	tmpl := &x509.Certificate{Subject: subject, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, DNSNames: names}
	for _, a := range addrs {
		tmpl.IPAddresses = append(tmpl.IPAddresses, a.AsSlice())
	}
	return issue(caFile, caKeyFile, tmpl)
}

// issue completes a template and signs it for a new key.
func issue(caFile, caKeyFile string, tmpl *x509.Certificate) (cert, key []byte, err error) {
	caCert, err := os.ReadFile(caFile)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the cluster's CA: %w", err)
	}
	caKey, err := os.ReadFile(caKeyFile)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the cluster's CA: %w", err)
	}
	ca, err := pki.ParseAuthority(caCert, caKey)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the cluster's CA: %w", err)
	}
	now := time.Now()
	tmpl.NotBefore, tmpl.NotAfter = now.Add(-time.Minute), now.Add(Lifetime)
	leaf, private, err := ca.Leaf(tmpl)
	if err != nil {
		return nil, nil, err
	}
	if key, err = pki.EncodeKey(private); err != nil {
		return nil, nil, err
	}
	return pki.EncodeCertificates(leaf), key, nil
}
