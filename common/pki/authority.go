package pki

import (
	"crypto"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"time"
)

// Authority is a certificate authority whose key is at hand. Its methods may be called by many
// goroutines at once.
type Authority struct {
	Certificate *x509.Certificate
	Key         crypto.Signer
}

// NewAuthority makes an authority with a new key. It signs leaves alone, no further authorities.
func NewAuthority(name string, notBefore, notAfter time.Time) (Authority, error) {
	key, err := NewKey()
	if err != nil {
		return Authority{}, err
	}
	template := &x509.Certificate{
		Subject:   pkix.Name{CommonName: name},
		NotBefore: notBefore, NotAfter: notAfter,
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	cert, err := Authority{Certificate: template, Key: key}.Issue(template, key.Public())
	if err != nil {
		return Authority{}, err
	}
	return Authority{Certificate: cert, Key: key}, nil
}

// ParseAuthority reads an authority's certificate and key, both PEM. An error describes the
// mistake.
func ParseAuthority(cert, key []byte) (Authority, error) {
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return Authority{}, err // crypto/tls describes the mistake
	}
	signer, ok := pair.PrivateKey.(crypto.Signer)
	if !ok || !pair.Leaf.IsCA || pair.Leaf.KeyUsage&x509.KeyUsageCertSign == 0 {
		return Authority{}, errors.New("its certificate is not a CA's")
	}
	return Authority{Certificate: pair.Leaf, Key: signer}, nil
}

// Encode returns the certificate and the key as PEM.
func (a Authority) Encode() (cert, key []byte, err error) {
	if key, err = EncodeKey(a.Key); err != nil {
		return nil, nil, err
	}
	return EncodeCertificates(a.Certificate), key, nil
}

// Issue signs a certificate for a public key. A template without a serial number gets a random one
// (RFC 5280, 4.1.2.2).
func (a Authority) Issue(template *x509.Certificate, public crypto.PublicKey) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, a.Certificate, public, a.Key)
	if err != nil {
		return nil, fmt.Errorf("signing the certificate of %s: %w", template.Subject.CommonName, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("signing the certificate of %s: %w", template.Subject.CommonName, err)
	}
	return cert, nil
}

// Leaf signs a certificate for a new key; its key usage is a digital signature.
func (a Authority) Leaf(template *x509.Certificate) (*x509.Certificate, crypto.Signer, error) {
	key, err := NewKey()
	if err != nil {
		return nil, nil, err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	cert, err := a.Issue(template, key.Public())
	if err != nil {
		return nil, nil, err
	}
	return cert, key, nil
}
