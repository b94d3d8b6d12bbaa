package edgeapi

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/skerry-io/skerry/common/pki"
)

const (
	// rootConfigMap is in every namespace; the kubelet projects it into pods next to their token.
	rootConfigMap, rootKey = "kube-root-ca.crt", "ca.crt"
)

// root is the authority of all certificates of this API.
func (s *Server) root() (pki.Authority, error) {
	p := &s.pods
	// The first caller has it made for all: no caller's context ends that.
	p.open.Do(func() { p.authority, p.err = openAuthority(context.Background(), s.config.State) })
	return p.authority, p.err
}

// ServePods adds these addresses to the certificate for pods, which also has the names of the
// cluster's API. It may be called at any time.
func (s *Server) ServePods(addresses []netip.Addr) error {
	a, err := s.root()
	if err != nil {
		return err
	}
	p := &s.pods
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pair != nil && (len(addresses) == 0 || slices.Equal(p.addresses, addresses)) {
		return nil
	}
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "skerry edge API of " + s.config.NodeName},
		DNSNames:    kubernetesNames(),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if at, err := netip.ParseAddrPort(s.config.Pods); err == nil {
		template.IPAddresses = append(template.IPAddresses, at.Addr().AsSlice())
	}
	for _, ip := range addresses {
		template.IPAddresses = append(template.IPAddresses, net.IP(ip.AsSlice()))
	}
	pair, err := leaf(a, template)
	if err != nil {
		return err
	}
	p.addresses, p.pair = slices.Clone(addresses), pair
	return nil
}

// PodSources reports whether an address is this device's, or of one of its pods. It is for servers
// of pods at an address of the loopback interface, like this package's.
func (s *Server) PodSources() func(ctx context.Context, source netip.Addr) bool {
	return s.sources.allows
}

// podsTLS asks for no client certificate: a pod authenticates by a token, and from this device.
func (s *Server) podsTLS() *tls.Config {
	return &tls.Config{
		GetConfigForClient: s.sources.check,
		MinVersion:         tls.VersionTLS12, // client libraries in pods are of any age
		NextProtos:         []string{"http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			s.pods.mu.Lock()
			defer s.pods.mu.Unlock()
			if s.pods.pair == nil {
				return nil, errors.New("there is no certificate for pods yet")
			}
			return s.pods.pair, nil
		},
	}
}

// adapt changes an unshared object for its reader: pods on this device have to trust its API's
// certificates like the cluster's.
func (s *Server) adapt(identity Identity, o runtime.Object) error {
	m, ok := o.(*corev1.ConfigMap)
	if !ok || s.config.Pods == "" || !identity.Kubelet || m.Name != rootConfigMap || m.Data[rootKey] == "" {
		return nil
	}
	a, err := s.root()
	if err != nil {
		return err
	}
	m.Data[rootKey] = strings.TrimRight(m.Data[rootKey], "\n") + "\n" + string(pki.EncodeCertificates(a.Certificate))
	return nil
}

// freebind allows listening before the device has the address (IP_FREEBIND, ip(7)).
func freebind(_, _ string, c syscall.RawConn) error {
	var err error
	if controlErr := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_FREEBIND, 1) }); controlErr != nil {
		return controlErr
	}
	return err
}
