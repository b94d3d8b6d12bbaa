package api

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/pki"
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

// openAuthority reads the authority, or makes it where there is none or it can't be read: it signs only
// what this process makes. One that can't be kept, on a full disk, serves until the process ends.
func openAuthority(ctx context.Context, state State) (pki.Authority, error) {
	if raw, err := state.Load(authorityKey); err == nil && raw != nil {
		if a, err := pki.ParseAuthority(raw, raw); err == nil {
			return a, nil
		}
	}
	a, err := pki.NewAuthority("skerry edge API", notBefore, notAfter)
	if err != nil {
		return pki.Authority{}, err
	}
	cert, key, err := a.Encode()
	if err != nil {
		return pki.Authority{}, err
	}
	if err := state.KeepSealed(ctx, authorityKey, append(cert, key...)); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot keep the certificate authority of the device's API: after a restart it will have another")
	}
	return a, nil
}

// leaf makes a certificate of the API with a new key.
func leaf(a pki.Authority, template *x509.Certificate) (*tls.Certificate, error) {
	template.NotBefore, template.NotAfter = notBefore, notAfter
	cert, key, err := a.Leaf(template)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert}, nil
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
	pair, err := leaf(a, template)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS12, // client libraries in pods are of any age
		Certificates: []tls.Certificate{*pair},
		ClientAuth:   tls.VerifyClientCertIfGiven,
		ClientCAs:    pki.Pool(a.Certificate),
		NextProtos:   []string{"http/1.1"},
	}, nil
}

// writeKubeconfig writes the admin's kubeconfig, for root alone.
func (s *Server) writeKubeconfig(address string) error {
	a, err := s.root()
	if err != nil {
		return err
	}
	pair, err := leaf(a, &x509.Certificate{
		Subject:     pkix.Name{CommonName: "skerry:device-admin"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return err
	}
	key, err := pki.EncodeKey(pair.PrivateKey)
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
	config.Clusters[name] = &clientcmdapi.Cluster{Server: "https://" + net.JoinHostPort(host, port), CertificateAuthorityData: pki.EncodeCertificates(a.Certificate)}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificateData: pki.EncodeCertificates(pair.Leaf), ClientKeyData: key}
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
