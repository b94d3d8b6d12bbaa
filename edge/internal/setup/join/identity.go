package join

import (
	"context"
	"crypto"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	certificatesclient "k8s.io/client-go/kubernetes/typed/certificates/v1"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/common/version"
)

// ErrNotJoined is returned by Load where there is no identity.
var ErrNotJoined = errors.New("this device has not joined a cluster")

// Identity has this device's credentials and its trusted CAs. Only its certificate changes, by
// rotation, and its trust, on the cloud's request.
type Identity struct {
	// Set by Load, never changed.
	dir     string
	seal    Sealer
	cluster Cluster
	clock   *pki.Clock
	// Servers are where a certificate that has ended is renewed; Renewed is called when there is a
	// certificate with which a link can be opened again. Either may be nil. Set before Run.
	Servers func() []string
	Renewed func()
	written time.Time // the file's in use; owned by Run

	current atomic.Pointer[tls.Certificate]
	trust   atomic.Pointer[trust]

	mu     sync.Mutex
	status Status
}

// Status is the part of `edgecore status` for an identity.
type Status struct {
	Node        types.NodeName `json:"node"`
	NotBefore   time.Time      `json:"notBefore"`
	NotAfter    time.Time      `json:"notAfter"`
	Fingerprint string         `json:"fingerprint"`
	RotateAt    time.Time      `json:"rotateAt"`
	Expired     bool           `json:"expired"`
	LastError   string         `json:"lastError,omitempty"` // of the rotation; empty after a success
}

// Load reads the identity that a join has left in dir; seal opens its key, nil where that is in the
// clear. The times that its certificates were signed at have passed: clock learns them.
func Load(dir string, seal Sealer, clock *pki.Clock) (*Identity, error) {
	id, err := (&directory{path: dir, seal: seal}).load()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: run `edgecore join --token-file FILE HOST` first (%w)", ErrNotJoined, err)
	}
	if errors.Is(err, fs.ErrPermission) {
		return nil, fmt.Errorf("only root may read this device's identity: %w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("%w; join again", err)
	}
	for _, c := range id.ca {
		clock.AtLeast(c.NotBefore)
	}
	clock.AtLeast(id.certificate[0].NotBefore)
	i := &Identity{dir: dir, seal: seal, cluster: id.cluster, clock: clock}
	i.trust.Store(newTrust(id.ca, id.clientCA))
	i.use(id.tls())
	return i, nil
}

func (i *Identity) use(cert *tls.Certificate) {
	i.current.Store(cert)
	i.mu.Lock()
	defer i.mu.Unlock()
	i.status = Status{
		Node: i.cluster.Node, NotBefore: cert.Leaf.NotBefore, NotAfter: cert.Leaf.NotAfter,
		Fingerprint: pki.Fingerprint(cert.Leaf), RotateAt: rotateAt(cert.Leaf),
	}
}

// Node is this device's name.
func (i *Identity) Node() types.NodeName { return i.cluster.Node }

// Cluster returns the cluster that was joined.
func (i *Identity) Cluster() Cluster { return i.cluster }

// ClientCAFile is the CA file of clients of the kubelet's own server; empty if the cloud did not
// send one.
func (i *Identity) ClientCAFile() string {
	path := filepath.Join(i.dir, clientCAFile)
	if _, err := (&directory{path: i.dir}).certificates(clientCAFile); err != nil {
		return ""
	}
	return path
}

// Certificate is the current one, an expired one too: the cloud is to judge, not a clock that may
// be wrong. The same pointer is returned until the next rotation.
func (i *Identity) Certificate() (*tls.Certificate, error) { return i.current.Load(), nil }

// TLS dials cloudcore as this device, with the current certificate, and trusts the current Roots.
func (i *Identity) TLS(protocols ...string) *tls.Config {
	return pki.ClientTLS(pki.Client{Roots: i.Roots(), Certificate: i.Certificate, Now: i.clock.Now, Protocols: protocols})
}

// Status is a snapshot.
func (i *Identity) Status() Status {
	i.mu.Lock()
	defer i.mu.Unlock()
	s := i.status
	s.Expired = !i.clock.Now().Before(s.NotAfter)
	return s
}

// rotateAt is within 70 and 90 % of a certificate's life, as kubelets do it, and always the same
// for one certificate: restarts don't draw again, and the devices that joined on one day don't all
// renew on one day.
func rotateAt(cert *x509.Certificate) time.Time {
	sum := sha256.Sum256(cert.Raw)
	fraction := 0.7 + 0.2*float64(binary.BigEndian.Uint32(sum[:]))/(1<<32)
	return cert.NotBefore.Add(time.Duration(fraction * float64(cert.NotAfter.Sub(cert.NotBefore))))
}

// The pace of the rotation.
const (
	lookEvery   = 15 * time.Minute // the clock may be set in the meantime
	lookEnded   = 15 * time.Second // the device may be joined again
	failMin     = 30 * time.Second
	failMax     = time.Hour
	pollMin     = time.Second
	pollMax     = 30 * time.Second
	pollFor     = 15 * time.Minute // then the attempt counts as failed, and the next continues with the same request
	requestLife = time.Hour        // after which Kubernetes forgets a request
)

// request is a certificate request on its way. It is kept over a lost link, so that the cluster
// isn't filled with requests.
type request struct {
	name string
	uid  types.UID
	key  crypto.Signer
	made time.Time
}

// Run rotates the certificate until ctx ends. csrs is a client of kube-apiserver as this node,
// through the link; without a link its calls fail, and are repeated later.
//
// It does not use client-go's certificate manager: that uses only the system's clock, and with one
// that runs ahead it would ask for a new certificate every second, and with one that is stuck in
// 1970 not until too late.
func (i *Identity) Run(ctx context.Context, csrs certificatesclient.CertificateSigningRequestInterface) error {
	logger := klog.FromContext(ctx)
	var (
		open     *request
		fails    time.Duration // the pause after the last failure
		earliest time.Time     // by the monotonic clock, independent of the other one
	)
	for {
		i.takeJoined(ctx)
		cert := i.current.Load()
		if wait := max(rotateAt(cert.Leaf).Sub(i.clock.Now()), time.Until(earliest)); wait > 0 {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(min(wait, i.lookAgain())):
			}
			continue
		}
		var err error
		ended := i.Servers != nil && i.ended()
		if ended {
			err = i.renewEnded(ctx)
		} else {
			open, err = i.rotate(ctx, csrs, open)
		}
		if ctx.Err() != nil {
			return nil
		}
		i.note(err)
		if err == nil && ended && i.Renewed != nil {
			i.Renewed()
		}
		cert = i.current.Load()
		life := cert.Leaf.NotAfter.Sub(cert.Leaf.NotBefore)
		if err != nil {
			fails = min(max(2*fails, failMin), failMax, max(life/20, pollMin))
			if ended {
				fails = min(fails, renewEndedMax)
			}
			earliest = time.Now().Add(fails/2 + rand.N(fails))
			logger.Error(err, "Failed to renew the node's certificate, retrying", "notAfter", cert.Leaf.NotAfter.UTC().Format(time.RFC3339),
				"again", time.Until(earliest).Round(time.Second))
			continue
		}
		// However far ahead the clock may be, a new certificate has some rest.
		fails, earliest = 0, time.Now().Add(life/10)
		logger.Info("Renewed the node's certificate", "notAfter", cert.Leaf.NotAfter.UTC().Format(time.RFC3339))
	}
}

// rotate requests a new certificate, or waits for a pending request, and uses it from then on. It
// returns a request that may still be answered.
func (i *Identity) rotate(ctx context.Context, csrs certificatesclient.CertificateSigningRequestInterface, open *request) (*request, error) {
	if open != nil && time.Since(open.made) > requestLife {
		open = nil
	}
	if open == nil {
		var err error
		if open, err = i.ask(ctx, csrs); err != nil {
			return nil, err
		}
	}
	data, err := await(ctx, csrs, open)
	if err != nil {
		if errors.Is(err, errDecided) {
			open = nil
		}
		return open, err
	}
	certs, err := pki.ParseCertificates(data)
	if err != nil {
		return nil, fmt.Errorf("reading the new certificate: %w", err)
	}
	if node, err := pki.NodeOf(certs[0]); err != nil {
		return nil, fmt.Errorf("the new certificate is no node's: %w", err)
	} else if node != i.cluster.Node || !sameKey(certs[0], open.key) {
		return nil, fmt.Errorf("the new certificate is of %s, and not the one that was asked for", node)
	}
	d, err := openDirectory(i.dir, i.seal)
	if err != nil {
		return open, err
	}
	defer d.close()
	if err := d.keepCertificate(open.key, certs); err != nil {
		return open, err // a full disk: the certificate is still there to be fetched when there is room
	}
	i.clock.AtLeast(certs[0].NotBefore)
	i.use((&identity{key: open.key, certificate: certs}).tls())
	return nil, nil
}

func (i *Identity) ask(ctx context.Context, csrs certificatesclient.CertificateSigningRequestInterface) (*request, error) {
	key, err := pki.NewKey()
	if err != nil {
		return nil, err
	}
	csr, err := pki.NewNodeCSR(key, i.cluster.Node)
	if err != nil {
		return nil, err
	}
	made, err := csrs.Create(ctx, &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "skerry-renew-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    csr,
			SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
			Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("asking for a new certificate: %w", err)
	}
	return &request{name: made.Name, uid: made.UID, key: key, made: time.Now()}, nil
}

// errDecided ends a request without a certificate.
var errDecided = errors.New("the request for a new certificate was refused")

// await asks for the request until it is decided. It doesn't watch: a watch would stay open over a
// thin link for an answer that usually takes a second.
func await(ctx context.Context, csrs certificatesclient.CertificateSigningRequestInterface, open *request) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, pollFor, fmt.Errorf("%s is not decided after %v", open.name, pollFor))
	defer cancel()
	for pause := pollMin; ; pause = min(2*pause, pollMax) {
		csr, err := csrs.Get(ctx, open.name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err) || err == nil && csr.UID != open.uid:
			return nil, fmt.Errorf("%w: %s is gone", errDecided, open.name)
		case err != nil:
			// The link, as a rule. The caller's pause is longer.
			return nil, fmt.Errorf("asking for the new certificate: %w", err)
		case len(csr.Status.Certificate) > 0:
			return csr.Status.Certificate, nil
		}
		for _, c := range csr.Status.Conditions {
			if c.Type == certificatesv1.CertificateDenied || c.Type == certificatesv1.CertificateFailed {
				return nil, fmt.Errorf("%w: %s (%s)", errDecided, c.Message, c.Reason)
			}
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}

func (i *Identity) note(err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.status.LastError = ""
	if err != nil {
		i.status.LastError = err.Error()
	}
}

// renewEndedMax is the maximum time between two attempts to renew an expired certificate: a device
// that reaches the cloud again must not wait for long, and its requests are cheap.
const renewEndedMax = time.Minute

// ended reports whether the certificate has ended. No link can be opened with it, so that it is not
// renewed by one.
func (i *Identity) ended() bool { return !i.clock.Now().Before(i.current.Load().Leaf.NotAfter) }

// lookAgain is the pause between two checks. A device whose certificate has ended may be joined
// again at any moment.
func (i *Identity) lookAgain() time.Duration {
	if i.ended() {
		return lookEnded
	}
	return lookEvery
}

// renewEnded asks cloudcore for a certificate with the same key to replace an expired one.
func (i *Identity) renewEnded(ctx context.Context) error {
	current := i.current.Load()
	key, ok := current.PrivateKey.(crypto.Signer)
	if !ok {
		return errors.New("the identity has no key that signs")
	}
	csr, err := pki.NewNodeCSR(key, i.cluster.Node)
	if err != nil {
		return err
	}
	var own []*x509.Certificate
	for _, raw := range current.Certificate {
		c, err := x509.ParseCertificate(raw)
		if err != nil {
			return fmt.Errorf("reading the certificate that has ended: %w", err)
		}
		own = append(own, c)
	}
	body, err := json.Marshal(pki.RenewRequest{
		Certificate: string(pki.EncodeCertificates(own...)), CSR: string(csr), Version: version.Skerry(),
	})
	if err != nil {
		return fmt.Errorf("encoding the renewal: %w", err)
	}
	var answer *pki.JoinAnswer
	for _, server := range i.Servers() {
		if answer, err = i.postRenewal(ctx, server, body); err == nil || ctx.Err() != nil {
			break
		}
		var refusal *pki.Refusal
		if errors.As(err, &refusal) {
			break // cloudcore has answered; another address gives the same answer
		}
	}
	if err != nil {
		return fmt.Errorf("the certificate has ended; asking cloudcore for another one: %w", err)
	}
	if answer == nil {
		return errors.New("no address of cloudcore is known")
	}
	return i.takeRenewed(answer, key)
}

// takeRenewed stores and uses a certificate that replaces an expired one.
func (i *Identity) takeRenewed(answer *pki.JoinAnswer, key crypto.Signer) error {
	i.clock.Sync(time.UnixMilli(answer.UnixMillis))
	certs, err := pki.ParseCertificates([]byte(answer.Certificate))
	if err != nil {
		return fmt.Errorf("reading the new certificate: %w", err)
	}
	if node, err := pki.NodeOf(certs[0]); err != nil || node != i.cluster.Node || !sameKey(certs[0], key) {
		return errors.New("the new certificate is not the one that was asked for")
	}
	d, err := openDirectory(i.dir, i.seal)
	if err != nil {
		return err
	}
	defer d.close()
	if err := d.keepCertificate(key, certs); err != nil {
		return err
	}
	i.clock.AtLeast(certs[0].NotBefore)
	i.use((&identity{key: key, certificate: certs}).tls())
	return nil
}

func (i *Identity) postRenewal(ctx context.Context, server string, body []byte) (*pki.JoinAnswer, error) {
	base, host, err := serverURL(server)
	if err != nil {
		return nil, err
	}
	answer, _, err := post(ctx, Options{Server: server, Clock: i.clock}, i.Roots(), host, base+pki.RenewPath, http.Header{}, body)
	return answer, err
}

// takeJoined uses the identity that `edgecore join` has written since, if it is of this node. That
// of another node is for the next start: the whole state of this process is of the old one.
func (i *Identity) takeJoined(ctx context.Context) {
	info, err := os.Stat((&directory{path: i.dir}).file(nodeFile))
	if err != nil || info.ModTime().Equal(i.written) {
		return // not available during a join
	}
	id, err := (&directory{path: i.dir, seal: i.seal}).load()
	if err != nil {
		return // it is read again
	}
	i.written = info.ModTime()
	switch {
	case id.certificate[0].Equal(i.current.Load().Leaf):
	case id.cluster.Node != i.cluster.Node:
		klog.FromContext(ctx).Error(nil, "Device was joined under another name; restart edgecore to use it", "node", i.cluster.Node, "joined", id.cluster.Node)
		i.note(fmt.Errorf("this device was joined as %s: restart edgecore (systemctl restart edgecore)", id.cluster.Node))
	default:
		i.clock.AtLeast(id.certificate[0].NotBefore)
		i.trust.Store(newTrust(id.ca, id.clientCA))
		i.use(id.tls())
		klog.FromContext(ctx).Info("Loaded the new identity written by a join", "notAfter", id.certificate[0].NotAfter.UTC().Format(time.RFC3339))
		if i.Renewed != nil {
			i.Renewed()
		}
	}
}
