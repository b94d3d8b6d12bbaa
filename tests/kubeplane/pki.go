package kubeplane

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/skerry-io/skerry/common/pki"
)

// Names of key pairs, as upstream's kubeadm calls their subjects.
const (
	identityAdmin      = "admin"
	identityServing    = "apiserver"
	identityKubelet    = "apiserver-kubelet-client"
	identityFrontProxy = "front-proxy-client"
	identityController = "controller-manager"
	identityScheduler  = "scheduler"
)

// identities are the certificates a control plane needs besides its CA, with the subjects of
// Kubernetes' bootstrap policy.
var identities = map[string]pkix.Name{
	identityAdmin:      {CommonName: "kubernetes-admin", Organization: []string{"system:masters"}},
	identityKubelet:    {CommonName: "kube-apiserver-kubelet-client", Organization: []string{"system:masters"}},
	identityFrontProxy: {CommonName: "front-proxy-client"},
	identityController: {CommonName: "system:kube-controller-manager"},
	identityScheduler:  {CommonName: "system:kube-scheduler"},
}

const (
	caLifetime   = 10 * 365 * 24 * time.Hour
	certLifetime = 365 * 24 * time.Hour
	// renewBefore leaves a control plane that is started now enough time to be used.
	renewBefore = 30 * 24 * time.Hour
	// backdate accepts clients whose clock is a little behind ours.
	backdate = time.Hour
)

// keys is a directory of PEM files: NAME.crt, NAME.key, and sa.key, sa.pub for
// ServiceAccount tokens.
type keys struct {
	dir string
	ca  *x509.Certificate
	key *ecdsa.PrivateKey
}

// openKeys makes missing certificates, renews those that are about to expire or lack a name of
// sans, and keeps the rest: the CA and the ServiceAccount key must stay as they are over restarts,
// since nodes and tokens out there trust them.
func openKeys(dir string, sans []string) (*keys, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the directory for keys: %w", err)
	}
	k := &keys{dir: dir}
	if err := k.openCA(); err != nil {
		return nil, err
	}
	if err := k.openServiceAccountKey(); err != nil {
		return nil, err
	}
	if err := k.ensure(identityServing, pkix.Name{CommonName: "kube-apiserver"}, sans, x509.ExtKeyUsageServerAuth); err != nil {
		return nil, err
	}
	for name, subject := range identities {
		if err := k.ensure(name, subject, nil, x509.ExtKeyUsageClientAuth); err != nil {
			return nil, err
		}
	}
	return k, nil
}

func (k *keys) path(name string) string { return filepath.Join(k.dir, name) }

func (k *keys) openCA() error {
	_, err := os.Stat(k.path("ca.crt"))
	switch {
	case errors.Is(err, os.ErrNotExist):
		if k.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
			return fmt.Errorf("making the CA's key: %w", err)
		}
		now := time.Now()
		tmpl := &x509.Certificate{
			Subject: pkix.Name{CommonName: "kubernetes"}, NotBefore: now.Add(-backdate), NotAfter: now.Add(caLifetime),
			IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		}
		cert, err := pki.Authority{Certificate: tmpl, Key: k.key}.Issue(tmpl, &k.key.PublicKey)
		if err != nil {
			return err
		}
		// The key first: a certificate without its key would be kept forever, a key without its
		// certificate is replaced.
		if err := k.writePair("ca", k.key, cert.Raw); err != nil {
			return err
		}
	case err != nil:
		return fmt.Errorf("looking for the CA: %w", err)
	}
	if k.ca, err = k.readCert("ca"); err != nil {
		return err
	}
	k.key, err = k.readKey("ca")
	return err
}

func (k *keys) openServiceAccountKey() error {
	if _, err := os.Stat(k.path("sa.pub")); err == nil {
		return nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("making the key for ServiceAccount tokens: %w", err)
	}
	pub, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return fmt.Errorf("encoding the key for ServiceAccount tokens: %w", err)
	}
	if err := k.writeKey("sa", key); err != nil {
		return err
	}
	return k.write("sa.pub", "PUBLIC KEY", pub, 0o644)
}

// ensure keeps NAME.crt when it is good for us, else issues it again.
func (k *keys) ensure(name string, subject pkix.Name, sans []string, usage x509.ExtKeyUsage) error {
	now := time.Now()
	tmpl := &x509.Certificate{
		Subject: subject, NotBefore: now.Add(-backdate), NotAfter: now.Add(certLifetime),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment, ExtKeyUsage: []x509.ExtKeyUsage{usage},
	}
	for _, s := range sans {
		if ip := net.ParseIP(s); ip != nil {
			tmpl.IPAddresses = append(tmpl.IPAddresses, ip)
		} else {
			tmpl.DNSNames = append(tmpl.DNSNames, s)
		}
	}
	if have, err := k.readCert(name); err == nil {
		missing := slices.ContainsFunc(sans, func(s string) bool { return have.VerifyHostname(s) != nil })
		if _, err := k.readKey(name); err == nil && !missing && have.CheckSignatureFrom(k.ca) == nil && now.Before(have.NotAfter.Add(-renewBefore)) {
			return nil
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("making the key of %s: %w", name, err)
	}
	cert, err := pki.Authority{Certificate: k.ca, Key: k.key}.Issue(tmpl, &key.PublicKey)
	if err != nil {
		return err
	}
	return k.writePair(name, key, cert.Raw)
}

func (k *keys) writePair(name string, key *ecdsa.PrivateKey, der []byte) error {
	if err := k.writeKey(name, key); err != nil {
		return err
	}
	return k.write(name+".crt", "CERTIFICATE", der, 0o644)
}

func (k *keys) writeKey(name string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return fmt.Errorf("encoding the key of %s: %w", name, err)
	}
	return k.write(name+".key", "EC PRIVATE KEY", der, 0o600)
}

func (k *keys) write(name, kind string, der []byte, mode os.FileMode) error {
	tmp := k.path(name + ".new")
	if err := os.WriteFile(tmp, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), mode); err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	if err := os.Rename(tmp, k.path(name)); err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	return nil
}

func (k *keys) read(name string) ([]byte, error) {
	raw, err := os.ReadFile(k.path(name))
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	block, _ := pem.Decode(raw)
	if block == nil {
		return nil, fmt.Errorf("%s is not PEM", k.path(name))
	}
	return block.Bytes, nil
}

func (k *keys) readCert(name string) (*x509.Certificate, error) {
	der, err := k.read(name + ".crt")
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", k.path(name+".crt"), err)
	}
	return cert, nil
}

func (k *keys) readKey(name string) (*ecdsa.PrivateKey, error) {
	der, err := k.read(name + ".key")
	if err != nil {
		return nil, err
	}
	key, err := x509.ParseECPrivateKey(der)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", k.path(name+".key"), err)
	}
	return key, nil
}

// kubeconfig writes a kubeconfig for one of our identities, with everything it needs in it.
func (k *keys) kubeconfig(name, server, path string) error {
	files := map[string][]byte{}
	for _, f := range []string{"ca.crt", name + ".crt", name + ".key"} {
		raw, err := os.ReadFile(k.path(f))
		if err != nil {
			return fmt.Errorf("reading %s: %w", f, err)
		}
		files[f] = raw
	}
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters["kubeplane"] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: files["ca.crt"]}
	cfg.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificateData: files[name+".crt"], ClientKeyData: files[name+".key"]}
	cfg.Contexts["kubeplane"] = &clientcmdapi.Context{Cluster: "kubeplane", AuthInfo: name}
	cfg.CurrentContext = "kubeplane"
	if err := clientcmd.WriteToFile(*cfg, path); err != nil {
		return fmt.Errorf("writing the kubeconfig of %s: %w", name, err)
	}
	return nil
}
