package api

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/edge/internal/atomicfile"
)

// The certificates of the loopback listener are the device's own and never leave it. Their authority is made once and kept; the two leaves are made
// at each start. A device's clock may be years off (1970 after a reboot without a link), so all of them are valid from 1970 to far beyond: what ends
// their validity is that root of the device deletes the authority's file.
var (
	notBefore = time.Unix(0, 0)
	notAfter  = time.Date(2120, 1, 1, 0, 0, 0, 0, time.UTC)
)

// KubeconfigFile is the name of the admin's kubeconfig in the data directory.
const KubeconfigFile = "edge.kubeconfig"

type authority struct {
	certificate *x509.Certificate
	key         crypto.Signer
	pem         []byte // of the certificate
}

// openAuthority reads the authority, or makes it where there is none or it can't be read: it signs only
// what this process makes. One that can't be kept, on a full disk, serves until the process ends.
func openAuthority(ctx context.Context, state State) (*authority, error) {
	if raw, err := state.Load(authorityKey); err == nil && raw != nil {
		if a, err := parseAuthority(raw); err == nil {
			return a, nil
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making the API's certificate authority: %w", err)
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "skerry edge API"},
		NotBefore:             notBefore,
		NotAfter:              notAfter,
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := sign(template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("making the API's certificate authority: %w", err)
	}
	raw := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})...)
	if err := state.KeepSealed(ctx, authorityKey, raw); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot keep the certificate authority of the device's API: after a restart it will have another")
	}
	return parseAuthority(raw)
}

func parseAuthority(raw []byte) (*authority, error) {
	pair, err := tls.X509KeyPair(raw, raw)
	if err != nil {
		return nil, fmt.Errorf("parsing the API's certificate authority: %w", err)
	}
	signer, ok := pair.PrivateKey.(crypto.Signer)
	if !ok || !pair.Leaf.IsCA {
		return nil, fmt.Errorf("parsing the API's certificate authority: it is none")
	}
	return &authority{pair.Leaf, signer, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Leaf.Raw})}, nil
}

func sign(template, parent *x509.Certificate, public crypto.PublicKey, key crypto.Signer) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("signing a certificate of the API: %w", err)
	}
	template.SerialNumber = serial
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		return nil, fmt.Errorf("signing a certificate of the API: %w", err)
	}
	return der, nil
}

// leaf makes a certificate with a new key.
func (a *authority) leaf(template *x509.Certificate) (cert, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("making a certificate of the API: %w", err)
	}
	template.NotBefore, template.NotAfter = notBefore, notAfter
	template.KeyUsage = x509.KeyUsageDigitalSignature
	der, err := sign(template, a.certificate, private.Public(), a.key)
	if err != nil {
		return nil, nil, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, fmt.Errorf("making a certificate of the API: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), nil
}

// tlsConfig makes the TLS of the loopback listener. A client certificate is asked for and, where given, must be of our authority; a pod comes with a
// token.
func (s *Server) tlsConfig() (*tls.Config, error) {
	a, err := s.root()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "skerry edge API of " + s.config.NodeName},
		DNSNames:    append([]string{"localhost"}, kubernetesNames()...),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if host, _, err := net.SplitHostPort(s.config.Listen); err == nil {
		if ip := net.ParseIP(host); ip != nil && !ip.IsUnspecified() {
			template.IPAddresses = append(template.IPAddresses, ip)
		}
	}
	cert, key, err := a.leaf(template)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("making a certificate of the API: %w", err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(a.certificate)
	return &tls.Config{
		MinVersion:   tls.VersionTLS12, // client libraries in pods are of any age
		Certificates: []tls.Certificate{pair},
		ClientAuth:   tls.VerifyClientCertIfGiven,
		ClientCAs:    pool,
		NextProtos:   []string{"http/1.1"},
	}, nil
}

// writeKubeconfig writes the admin's kubeconfig, for root alone.
func (s *Server) writeKubeconfig(address string) error {
	a, err := s.root()
	if err != nil {
		return err
	}
	cert, key, err := a.leaf(&x509.Certificate{
		Subject:     pkix.Name{CommonName: "skerry:device-admin"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("writing %s: %w", KubeconfigFile, err)
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	config := clientcmdapi.NewConfig()
	const name = "edge"
	config.Clusters[name] = &clientcmdapi.Cluster{Server: "https://" + net.JoinHostPort(host, port), CertificateAuthorityData: a.pem}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	raw, err := clientcmd.Write(*config)
	if err != nil {
		return fmt.Errorf("writing %s: %w", KubeconfigFile, err)
	}
	if err := atomicfile.Write(filepath.Join(s.config.DataDir, KubeconfigFile), raw, 0o600); err != nil {
		return fmt.Errorf("writing %s: %w", KubeconfigFile, err)
	}
	return nil
}
