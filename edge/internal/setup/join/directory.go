package join

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/atomicfile"
	"github.com/skerry-io/skerry/common/pki"
)

// The files of the identity directory. node.pem is written last and removed first: an identity is
// complete if it exists.
const (
	nodeFile     = "node.pem"
	caFile       = "ca.crt"
	clientCAFile = "client-ca.crt"
	clusterFile  = "cluster.json"
	pendingFile  = "join.key" // the key of a join that has not ended
)

// Cluster is the stored description of the joined cluster.
type Cluster struct {
	Node      types.NodeName `json:"node"`
	Server    string         `json:"server"` // where it joined
	WebSocket []string       `json:"websocket,omitempty"`
	QUIC      []string       `json:"quic,omitempty"`
	Protocol  int            `json:"protocol"`
}

type identity struct {
	key         crypto.Signer
	certificate []*x509.Certificate // the node's, then intermediates
	ca          []*x509.Certificate
	clientCA    []*x509.Certificate
	cluster     Cluster
}

// tls returns the certificate for crypto/tls.
func (i *identity) tls() *tls.Certificate {
	cert := &tls.Certificate{PrivateKey: i.key, Leaf: i.certificate[0]}
	for _, c := range i.certificate {
		cert.Certificate = append(cert.Certificate, c.Raw)
	}
	return cert
}

// directory is the identity directory. The lock of an open one keeps two joins, or a join and a
// rotation's write, from mixing their files.
type directory struct {
	path string
	seal Sealer // nil: keys are in the clear
	lock *os.File
}

func openDirectory(path string, seal Sealer) (*directory, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("making the identity directory: %w", err)
	}
	lock, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("opening the identity directory: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		lock.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: %s", ErrBusy, path)
		}
		return nil, fmt.Errorf("locking the identity directory: %w", err)
	}
	return &directory{path: path, seal: seal, lock: lock}, nil
}

func (d *directory) close() { d.lock.Close() } // releases the lock

func (d *directory) file(name string) string { return filepath.Join(d.path, name) }

// load reads an identity. Its error is fs.ErrNotExist without an identity.
func (d *directory) load() (*identity, error) {
	data, err := os.ReadFile(d.file(nodeFile))
	if err != nil {
		return nil, fmt.Errorf("reading the identity: %w", err)
	}
	id := &identity{}
	certificates, key := splitPEM(data)
	if id.key, err = decodeKey(d.seal, nodeFile, key); err == nil {
		id.certificate, err = pki.ParseCertificates(certificates)
	}
	if err == nil && !sameKey(id.certificate[0], id.key) {
		err = errors.New("its certificate is for another key")
	}
	if err != nil {
		return nil, fmt.Errorf("reading the identity %s: %w", d.file(nodeFile), err)
	}
	if id.ca, err = d.certificates(caFile); err != nil {
		return nil, err
	}
	if id.clientCA, err = d.certificates(clientCAFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if data, err = os.ReadFile(d.file(clusterFile)); err == nil {
		err = json.Unmarshal(data, &id.cluster)
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", d.file(clusterFile), err)
	}
	node, err := pki.NodeOf(id.certificate[0])
	if err != nil {
		return nil, fmt.Errorf("reading the identity %s: %w", d.file(nodeFile), err)
	}
	if node != id.cluster.Node {
		return nil, fmt.Errorf("%s is of the node %s, %s of %s", nodeFile, node, clusterFile, id.cluster.Node)
	}
	return id, nil
}

func (d *directory) certificates(name string) ([]*x509.Certificate, error) {
	data, err := os.ReadFile(d.file(name))
	if err != nil {
		return nil, fmt.Errorf("reading the identity: %w", err)
	}
	certs, err := pki.ParseCertificates(data)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", d.file(name), err)
	}
	return certs, nil
}

// pendingKey is the key of the last join that did not end, or a new one, kept.
func (d *directory) pendingKey() (crypto.Signer, error) {
	if data, err := os.ReadFile(d.file(pendingFile)); err == nil {
		if key, err := decodeKey(d.seal, pendingFile, data); err == nil {
			return key, nil
		}
	}
	key, err := pki.NewKey()
	if err != nil {
		return nil, err
	}
	data, err := encodeKey(d.seal, pendingFile, key)
	if err != nil {
		return nil, err
	}
	return key, d.write(pendingFile, data, 0o600)
}

func (d *directory) dropPendingKey() error { return d.remove(pendingFile) }

// keep makes id the identity. A crash in between leaves either the previous one, or only the
// pending key, with which the same join can be run again.
func (d *directory) keep(id *identity) error {
	cluster, err := json.MarshalIndent(id.cluster, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding %s: %w", clusterFile, err)
	}
	if err := d.remove(nodeFile); err != nil {
		return err
	}
	if err := d.write(caFile, pki.EncodeCertificates(id.ca...), 0o644); err != nil {
		return err
	}
	if len(id.clientCA) == 0 {
		err = d.remove(clientCAFile)
	} else {
		err = d.write(clientCAFile, pki.EncodeCertificates(id.clientCA...), 0o644)
	}
	if err != nil {
		return err
	}
	if err := d.write(clusterFile, append(cluster, '\n'), 0o644); err != nil {
		return err
	}
	if err := d.keepCertificate(id.key, id.certificate); err != nil {
		return err
	}
	return d.dropPendingKey()
}

func (d *directory) keepCertificate(key crypto.Signer, certs []*x509.Certificate) error {
	data, err := encodeKey(d.seal, nodeFile, key)
	if err != nil {
		return err
	}
	return d.write(nodeFile, append(pki.EncodeCertificates(certs...), data...), 0o600)
}

// write replaces a file as a whole, or not at all, power cuts included.
func (d *directory) write(name string, data []byte, mode fs.FileMode) error {
	return atomicfile.Write(d.file(name), data, mode)
}

func (d *directory) remove(name string) error {
	if err := os.Remove(d.file(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing %s: %w", d.file(name), err)
	}
	return d.lock.Sync()
}
