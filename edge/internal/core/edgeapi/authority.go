package edgeapi

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/netip"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/pki"
)

// The certificates of the loopback listener are the device's own and never leave it. Their
// authority is made once and kept; the two leaves are made at each start. A device's clock may be
// years off (1970 after a reboot without a link), so all of them are valid from 1970 to far beyond:
// they are revoked by root deleting the authority's file on the device.
var (
	notBefore = time.Unix(0, 0)
	notAfter  = time.Date(2120, 1, 1, 0, 0, 0, 0, time.UTC)
)

// kubernetesNames are the names of the API server for pods (RFC 1035 names that the cluster's DNS
// has).
func kubernetesNames() []string {
	return []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"}
}

// podsCertificate is the certificate for pods.
type podsCertificate struct {
	open      sync.Once
	authority pki.Authority
	err       error

	mu        sync.Mutex
	addresses []netip.Addr
	pair      *tls.Certificate
}

// openAuthority reads the authority, or creates it if it is missing or unreadable: it signs only
// this process's certificates. An authority that can't be stored, on a full disk, is used until the
// process ends.
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
		klog.FromContext(ctx).Error(err, "Failed to store the certificate authority of the device's API: it will be replaced after a restart")
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
