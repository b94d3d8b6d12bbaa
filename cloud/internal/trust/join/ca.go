package join

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/skerry-io/skerry/common/pki"
)

// trustedKey of the CA's Secret has more certificates that devices are to trust, for the time in
// which one CA takes another's place.
const trustedKey = "ca.crt"

const (
	// caLifetime is long because every device pins the CA's key: replacing it means joining again.
	caLifetime      = 20 * 365 * 24 * time.Hour
	servingLifetime = 90 * 24 * time.Hour
	caBackdate      = time.Hour // for devices whose clocks are a little behind
)

// CA signs the certificates by which cloudcore shows itself to devices. It is not the cluster's CA
// and signs no client but cloudcore's replicas, for each other.
type CA struct {
	pki.Authority
	// Trusted are all that devices are to trust: the certificate above, and those that are about to
	// take its place, or have just left it (ca.crt in the Secret).
	Trusted []*x509.Certificate
}

// Pin is the CA's pin, as in tokens.
func (c *CA) Pin() pki.Pin { return pki.PinOf(c.Certificate) }

// PEM is the CA's certificate.
func (c *CA) PEM() []byte { return pki.EncodeCertificates(c.Certificate) }

// LoadCA reads the CA from its Secret, creating it if absent. Of several that make one at the same
// time, one wins and all return its.
func LoadCA(ctx context.Context, client kubernetes.Interface) (*CA, error) {
	secrets := client.CoreV1().Secrets(Namespace)
	secret, err := secrets.Get(ctx, caSecret, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		if secret, err = newCASecret(time.Now()); err != nil {
			return nil, err
		}
		secret, err = secrets.Create(ctx, secret, metav1.CreateOptions{})
		switch {
		case apierrors.IsAlreadyExists(err):
			secret, err = secrets.Get(ctx, caSecret, metav1.GetOptions{})
		case apierrors.IsNotFound(err):
			return nil, fmt.Errorf("the namespace %s does not exist; apply the output of `cloudcore install`: %w", Namespace, err)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("reading or making the Secret %s/%s: %w", Namespace, caSecret, err)
	}
	ca, err := parseCASecret(secret)
	if err != nil {
		return nil, fmt.Errorf("the Secret %s/%s holds no usable CA (delete it to have a new one made; every device must then join again): %w",
			Namespace, caSecret, err)
	}
	return ca, nil
}

func newCASecret(now time.Time) (*corev1.Secret, error) {
	ca, err := pki.NewAuthority("skerry serving CA", now.Add(-caBackdate), now.Add(caLifetime))
	if err != nil {
		return nil, err
	}
	cert, key, err := ca.Encode()
	if err != nil {
		return nil, err
	}
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: caSecret, Namespace: Namespace},
		Type:       corev1.SecretTypeTLS,
		Immutable:  new(true),
		Data:       map[string][]byte{corev1.TLSCertKey: cert, corev1.TLSPrivateKeyKey: key},
	}, nil
}

func parseCASecret(secret *corev1.Secret) (*CA, error) {
	authority, err := pki.ParseAuthority(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return nil, err
	}
	ca := &CA{Authority: authority, Trusted: []*x509.Certificate{authority.Certificate}}
	if more := secret.Data[trustedKey]; len(more) > 0 {
		others, err := pki.ParseCertificates(more)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", trustedKey, err)
		}
		for _, c := range others {
			if !c.IsCA {
				return nil, fmt.Errorf("%s: %s is not a CA's certificate", trustedKey, c.Subject)
			}
			if !c.Equal(ca.Certificate) {
				ca.Trusted = append(ca.Trusted, c)
			}
		}
	}
	return ca, nil
}

// Serving is a serving certificate that is made in memory when it is first needed, and renewed when
// a third of its life is left. One that ends with the CA is not: another would end then, too.
type Serving struct {
	// Set by CA.Serving, never changed.
	ca    *CA
	name  string // the common name
	hosts []string
	usage x509.ExtKeyUsage
	now   func() time.Time

	mu      sync.Mutex
	cert    *tls.Certificate
	renewAt time.Time
}

// Serving is a certificate for hosts: the names and addresses by which devices reach this replica.
func (c *CA) Serving(hosts []string) (*Serving, error) {
	if len(hosts) == 0 {
		return nil, errors.New("no advertised name or address: devices could not verify this cloudcore")
	}
	s := &Serving{ca: c, name: "cloudcore", hosts: hosts, usage: x509.ExtKeyUsageServerAuth, now: time.Now}
	if _, err := s.Certificate(); err != nil {
		return nil, err
	}
	return s, nil
}

// Peer is a client certificate by which replicas of cloudcore authenticate each other; it is
// renewed as a serving certificate is.
func (c *CA) Peer(name string) *Serving {
	return &Serving{ca: c, name: name, usage: x509.ExtKeyUsageClientAuth, now: time.Now}
}

// Certificate is the current one, followed by the CA's own: a device that joins needs to see it.
func (s *Serving) Certificate() (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	if s.cert != nil && now.Before(s.renewAt) {
		return s.cert, nil
	}
	cert, err := s.issue(now)
	if err != nil {
		return nil, err
	}
	s.cert, s.renewAt = cert, now.Add(servingLifetime*2/3)
	if end := s.ca.Certificate.NotAfter; !cert.Leaf.NotAfter.Before(end) {
		s.renewAt = end
	}
	return cert, nil
}

func (s *Serving) issue(now time.Time) (*tls.Certificate, error) {
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: s.name},
		// As old as the CA: a device whose clock is at its last known time must not take the
		// certificate for one of the future. It joined after the CA was made, so its last known
		// time is later than this.
		NotBefore:   s.ca.Certificate.NotBefore,
		NotAfter:    now.Add(servingLifetime),
		ExtKeyUsage: []x509.ExtKeyUsage{s.usage},
	}
	for _, host := range s.hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	if template.NotAfter.After(s.ca.Certificate.NotAfter) {
		template.NotAfter = s.ca.Certificate.NotAfter
	}
	leaf, key, err := s.ca.Leaf(template)
	if err != nil {
		return nil, fmt.Errorf("making a serving certificate: %w", err)
	}
	return &tls.Certificate{Certificate: [][]byte{leaf.Raw, s.ca.Certificate.Raw}, PrivateKey: key, Leaf: leaf}, nil
}
