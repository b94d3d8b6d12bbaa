package join

import (
	"crypto/x509"
	"errors"
	"fmt"

	"github.com/skerry-io/skerry/common/pki"
)

// trust has the trusted CAs of the device. It is never changed, only replaced.
type trust struct {
	ca, clientCA []*x509.Certificate
	roots        *x509.CertPool
	clientRoots  *x509.CertPool // nil: not known
	sum          []byte
}

func newTrust(ca, clientCA []*x509.Certificate) *trust {
	t := &trust{ca: ca, clientCA: clientCA, roots: pki.Pool(ca...), sum: pki.TrustSum(ca, clientCA)}
	if len(clientCA) > 0 {
		t.clientRoots = pki.Pool(clientCA...)
	}
	return t
}

// ClientRoots are the authorities of the cluster's client certificates, which nodes have too; nil
// if the cloud did not send them.
func (i *Identity) ClientRoots() *x509.CertPool { return i.trust.Load().clientRoots }

// Roots are the authorities of cloudcore's certificates. The same pointer is returned
// until they change.
func (i *Identity) Roots() *x509.CertPool { return i.trust.Load().roots }

// TrustSum returns the digest of this device's trust.
func (i *Identity) TrustSum() []byte { return i.trust.Load().sum }

// Renew adopts the CAs that the cloud wants this device to trust, as PEM, once they are on the
// disk. Without clientCA those of the cluster's clients stay. A bundle that would end the trust in
// its own sender is refused: the device could never connect again.
func (i *Identity) Renew(teller *x509.Certificate, ca, clientCA []byte) error {
	roots, err := pki.ParseCertificates(ca)
	if err != nil {
		return fmt.Errorf("reading the authorities that the cloud names: %w", err)
	}
	for _, c := range roots {
		if !c.IsCA {
			return fmt.Errorf("%s is listed as a certificate authority, but is not one", c.Subject)
		}
	}
	have := i.trust.Load()
	next := newTrust(roots, have.clientCA)
	if len(clientCA) > 0 {
		clients, err := pki.ParseCertificates(clientCA)
		if err != nil {
			return fmt.Errorf("reading the authorities of the cluster's clients: %w", err)
		}
		next = newTrust(roots, clients)
	}
	if teller == nil {
		return errors.New("the cloud has shown no certificate")
	}
	if _, err := teller.Verify(x509.VerifyOptions{
		Roots: next.roots, CurrentTime: i.clock.Now(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}); err != nil {
		return fmt.Errorf("the cloud's new authorities would end the trust in the cloud itself: %w", err)
	}
	d, err := openDirectory(i.dir, i.seal)
	if err != nil {
		return err
	}
	defer d.close()
	if err := d.write(caFile, pki.EncodeCertificates(next.ca...), 0o644); err != nil {
		return err
	}
	if len(next.clientCA) > 0 { // the kubelet follows the file
		if err := d.write(clientCAFile, pki.EncodeCertificates(next.clientCA...), 0o644); err != nil {
			return err
		}
	}
	i.trust.Store(next)
	return nil
}
