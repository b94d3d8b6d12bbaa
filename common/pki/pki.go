// Package pki is the identity of the two ends of a link: keys, certificate requests, join tokens,
// the TLS configurations made from them, and the clock they are judged by.
//
// It owns the form of a node's certificate request, of a printed token and of the bodies of a join,
// so that the device and the cloud can't disagree about them. It refuses a request that names
// anything but one node, a token that pins no CA, and every TLS version below 1.3. It keeps no
// files and opens no connections. Clock may be used by many goroutines at once; everything else is
// a value or a function.
package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

// The names that make a certificate a node's: Kubernetes' Node authorizer,
// https://kubernetes.io/docs/reference/access-authn-authz/node/.
const (
	NodeUserPrefix = "system:node:"
	NodesGroup     = "system:nodes"
)

// MaxCSR bounds a PEM certificate request. One with an RSA key of 8192 bits takes about 3 KiB.
const MaxCSR = 8 << 10

const (
	pemCertificate = "CERTIFICATE"
	pemRequest     = "CERTIFICATE REQUEST"
	pemKey         = "PRIVATE KEY"
)

// NewKey makes a key for a certificate.
func NewKey() (crypto.Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making a key: %w", err)
	}
	return key, nil
}

// EncodeKey is key as PEM, in PKCS #8.
func EncodeKey(key crypto.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encoding a key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: der}), nil
}

// ParseKey reads the output of EncodeKey.
func ParseKey(data []byte) (crypto.Signer, error) {
	block, _ := pem.Decode(data)
	if block == nil || block.Type != pemKey {
		return nil, errors.New("no PEM block PRIVATE KEY")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("parsing a key: %w", err)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("a key of type %T can't sign", key)
	}
	return signer, nil
}

// EncodeCertificates is certs as PEM, in order.
func EncodeCertificates(certs ...*x509.Certificate) []byte {
	var b bytes.Buffer
	for _, c := range certs {
		_ = pem.Encode(&b, &pem.Block{Type: pemCertificate, Bytes: c.Raw}) // a Buffer never fails
	}
	return b.Bytes()
}

// ParseCertificates reads one or more PEM certificates, and refuses other blocks.
func ParseCertificates(data []byte) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	for len(bytes.TrimSpace(data)) > 0 {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil || block.Type != pemCertificate {
			return nil, errors.New("not PEM certificates")
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("parsing a certificate: %w", err)
		}
		certs = append(certs, c)
	}
	if len(certs) == 0 {
		return nil, errors.New("no PEM block CERTIFICATE")
	}
	return certs, nil
}

// Pool is certs as the roots of a verification.
func Pool(certs ...*x509.Certificate) *x509.CertPool {
	pool := x509.NewCertPool()
	for _, c := range certs {
		pool.AddCert(c)
	}
	return pool
}

// Fingerprint is the SHA-256 of a whole certificate, in hex: the form of Kubernetes' credential ids
// (KEP-4193: X509SHA256=...).
func Fingerprint(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.Raw)
	return hex.EncodeToString(sum[:])
}

// NewNodeCSR asks for node's client certificate, as PEM.
func NewNodeCSR(key crypto.Signer, node types.NodeName) ([]byte, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: NodeUserPrefix + string(node), Organization: []string{NodesGroup}},
	}, key)
	if err != nil {
		return nil, fmt.Errorf("making a certificate request: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemRequest, Bytes: der}), nil
}

// ParseNodeCSR reads a certificate request that came from outside and returns the node that it asks
// for. It must be one PEM block, signed by its own key, of a key that is strong enough, with the
// subject of a node and without fields that would stand for another identity.
func ParseNodeCSR(data []byte) (*x509.CertificateRequest, types.NodeName, error) {
	if len(data) > MaxCSR {
		return nil, "", fmt.Errorf("the certificate request has %d bytes, more than %d", len(data), MaxCSR)
	}
	block, rest := pem.Decode(data)
	if block == nil || block.Type != pemRequest || len(bytes.TrimSpace(rest)) > 0 {
		return nil, "", errors.New("the certificate request is not one PEM block CERTIFICATE REQUEST")
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, "", fmt.Errorf("parsing the certificate request: %w", err)
	}
	if err := strongEnough(csr.PublicKey); err != nil { // before the signature: the cost of checking one grows with the key
		return nil, "", err
	}
	if err := csr.CheckSignature(); err != nil {
		return nil, "", fmt.Errorf("the certificate request isn't signed by its own key: %w", err)
	}
	if len(csr.DNSNames)+len(csr.EmailAddresses)+len(csr.IPAddresses)+len(csr.URIs) > 0 {
		return nil, "", errors.New("the certificate request must not have alternative names")
	}
	node, err := nodeOf(csr.Subject)
	if err != nil {
		return nil, "", fmt.Errorf("the certificate request is no node's: %w", err)
	}
	return csr, node, nil
}

// NodeOf is the node that a verified certificate speaks for.
func NodeOf(cert *x509.Certificate) (types.NodeName, error) {
	if !slices.Contains(cert.ExtKeyUsage, x509.ExtKeyUsageClientAuth) {
		return "", errors.New("the certificate is not for clients")
	}
	return nodeOf(cert.Subject)
}

func nodeOf(subject pkix.Name) (types.NodeName, error) {
	// One common name and one organization: a second group would be a second set of rights, and of
	// two common names readers may differ in which they take.
	if len(subject.Names) != 2 || !slices.Equal(subject.Organization, []string{NodesGroup}) {
		return "", fmt.Errorf("the subject is %q, not CN=%sNAME,O=%s", subject.String(), NodeUserPrefix, NodesGroup)
	}
	name, ok := strings.CutPrefix(subject.CommonName, NodeUserPrefix)
	if !ok {
		return "", fmt.Errorf("the common name %q does not begin with %s", subject.CommonName, NodeUserPrefix)
	}
	if err := ValidNodeName(types.NodeName(name)); err != nil {
		return "", err
	}
	return types.NodeName(name), nil
}

// ValidNodeName is Kubernetes' rule for the names of Nodes.
func ValidNodeName(node types.NodeName) error {
	if problems := validation.IsDNS1123Subdomain(string(node)); len(problems) > 0 {
		return fmt.Errorf("%q can't be the name of a node: %s", node, strings.Join(problems, "; "))
	}
	return nil
}

func strongEnough(public crypto.PublicKey) error {
	switch k := public.(type) {
	case *ecdsa.PublicKey:
		if k.Curve.Params().BitSize >= 256 {
			return nil
		}
	case *rsa.PublicKey:
		if n := k.N.BitLen(); n >= 2048 && n <= 8192 {
			return nil
		}
	case ed25519.PublicKey:
		return nil
	}
	return errors.New("the key of the certificate request must be ECDSA of 256 bits or more, Ed25519, or RSA of 2048 to 8192 bits")
}
