package edgeapi

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"path/filepath"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/skerry-io/skerry/common/atomicfile"
	"github.com/skerry-io/skerry/common/pki"
)

// KubeconfigFile is the name of the admin's kubeconfig in the data directory.
const KubeconfigFile = "edge.kubeconfig"

// tlsConfig makes the TLS of the loopback listener. A client certificate is requested and, if
// given, must be signed by our authority; a pod authenticates by a token.
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
