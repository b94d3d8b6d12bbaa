// Package join makes this device a node of a cluster and keeps it one: the first contact with a
// cloudcore that only the token vouches for, the certificate, and its rotation.
//
// It owns the identity directory: node.pem (certificate and key, which may be sealed), ca.crt (the
// device's trusted CAs), client-ca.crt (those of its kubelet) and cluster.json. It refuses a cloud
// whose CA the token does not pin, and to overwrite an identity that is still good. Join holds a
// lock on the directory; an Identity's methods may be called by many goroutines at once, its Run by
// one.
package join

import (
	"context"
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/pki"
)

// Errors of a join, in addition to *pki.Refusal. Each is wrapped in an error that names the action
// needed.
var (
	ErrUnreachable  = errors.New("the host can't be reached")
	ErrNotCloudcore = errors.New("the host is no cloudcore")
	ErrWrongCA      = errors.New("the host is not the cloud that the token is for")
	ErrProxy        = errors.New("a proxy between here and the host seems to end TLS")
	ErrWrongName    = errors.New("the certificate of the host is for another name")
	ErrClock        = errors.New("the clock of this device is wrong")
	ErrJoined       = errors.New("this device has an identity already")
	ErrBusy         = errors.New("another join is at work in this directory")
)

// Remedy returns what helps against an error of Ask: the next step of an administrator.
func Remedy(err error) string {
	for _, known := range []struct {
		err  error
		mend string
	}{
		{ErrProxy, "exempt the host from TLS inspection"},
		{ErrWrongCA, "cloudcore token create, with the kubeconfig of this host's cluster"},
		{ErrWrongName, "name a HOST of cloudcore.yaml's advertise"},
		{ErrClock, "set the clock, here or at the cloud: timedatectl"},
		{ErrNotCloudcore, "name cloudcore's HOST, and its port if that is not 443"},
		{ErrUnreachable, "open TCP 443 towards the host (UDP too, for QUIC); behind a proxy set HTTPS_PROXY; a name has to resolve (/etc/resolv.conf)"},
	} {
		if errors.Is(err, known.err) {
			return known.mend
		}
	}
	return "the message names what to correct; then repeat the check"
}

// DefaultTimeout bounds a whole join, its tries included.
const DefaultTimeout = 3 * time.Minute

// Options has the cluster to join, and the identity to join with.
type Options struct {
	Server  string // "HOST" or "HOST:PORT"
	Token   pki.Token
	Node    types.NodeName
	Dir     string // the identity directory; made if it does not exist
	Seal    Sealer // of its keys; nil: they lie in the clear
	Clock   *pki.Clock
	Force   bool          // replace an identity that is still valid
	Timeout time.Duration // 0: DefaultTimeout
}

// Result is the result of a join.
type Result struct {
	Node     types.NodeName `json:"node"`
	Already  bool           `json:"already"` // no change: the device was this node before
	NotAfter time.Time      `json:"notAfter"`
	Cluster  Cluster        `json:"cluster"`
	// Skew is how far this device's clock is ahead of the cloud's (negative: behind), to the
	// nearest second. Zero without a request.
	Skew time.Duration `json:"skew"`
}

// Join makes this device a node. The key is made here and never leaves. It is kept from the first
// try on, so that a join whose answer was lost can be run again and takes no second use of the
// token. When Join fails, the identity that was there before is unchanged.
func Join(ctx context.Context, o Options) (Result, error) {
	if err := pki.ValidNodeName(o.Node); err != nil {
		return Result{}, err
	}
	if o.Timeout <= 0 {
		o.Timeout = DefaultTimeout
	}
	d, err := openDirectory(o.Dir, o.Seal)
	if err != nil {
		return Result{}, err
	}
	defer d.close()
	if done, err := before(d, o); done != nil || err != nil {
		return deref(done), err
	}
	key, err := d.pendingKey() // before any request: a disk that can't store it must not use up the token
	if err != nil {
		return Result{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()

	answer, err := ask(ctx, o, key)
	if err != nil {
		var refusal *pki.Refusal
		if errors.As(err, &refusal) && !refusal.Reason.Temporary() {
			// That request is decided; the next needs a key of its own.
			return Result{}, errors.Join(err, d.dropPendingKey())
		}
		return Result{}, err
	}
	cloud := time.UnixMilli(answer.UnixMillis)
	result := Result{Node: o.Node, Skew: time.Now().Round(0).Sub(cloud).Round(time.Second)}
	o.Clock.Sync(cloud)
	id, err := checkAnswer(answer, o, key)
	if err != nil {
		return Result{}, err
	}
	if err := d.keep(id); err != nil {
		return Result{}, err
	}
	result.NotAfter, result.Cluster = id.certificate[0].NotAfter, id.cluster
	if result.Skew > time.Minute || result.Skew < -time.Minute {
		klog.FromContext(ctx).Info("Clock of this device differs from the cloud's", "ahead", result.Skew, "cloud", cloud.UTC().Format(time.RFC3339))
	}
	return result, nil
}

func deref(r *Result) Result {
	if r == nil {
		return Result{}
	}
	return *r
}

// before checks the existing identity. A damaged or expired one does not prevent a join.
func before(d *directory, o Options) (*Result, error) {
	if o.Force {
		return nil, nil
	}
	id, err := d.load()
	if err != nil || !o.Clock.Now().Before(id.certificate[0].NotAfter) {
		return nil, nil
	}
	if id.cluster.Node == o.Node && pinned(id.ca, o.Token.CA) != nil {
		return &Result{Node: o.Node, Already: true, NotAfter: id.certificate[0].NotAfter, Cluster: id.cluster}, nil
	}
	return nil, fmt.Errorf("%w: it is the node %s, until %s; run `edgecore reset` first, or join with --force to give that up",
		ErrJoined, id.cluster.Node, id.certificate[0].NotAfter.UTC().Format(time.RFC3339))
}

func pinned(certs []*x509.Certificate, pin pki.Pin) *x509.Certificate {
	for _, c := range certs {
		if pki.PinOf(c) == pin {
			return c
		}
	}
	return nil
}

// checkAnswer trusts the cloud to be the right one, not to be free of mistakes.
func checkAnswer(answer *pki.JoinAnswer, o Options, key crypto.Signer) (*identity, error) {
	certs, err := pki.ParseCertificates([]byte(answer.Certificate))
	if err != nil {
		return nil, fmt.Errorf("the cloud's answer has no usable certificate: %w", err)
	}
	node, err := pki.NodeOf(certs[0])
	if err != nil {
		return nil, fmt.Errorf("the cloud's answer has no node's certificate: %w", err)
	}
	if node != o.Node {
		return nil, fmt.Errorf("the cloud's answer has the certificate of %s, not of %s", node, o.Node)
	}
	if !sameKey(certs[0], key) {
		return nil, errors.New("the cloud's answer has a certificate for another key")
	}
	ca, err := pki.ParseCertificates([]byte(answer.CA))
	if err != nil {
		return nil, fmt.Errorf("the cloud's answer has no usable CA: %w", err)
	}
	if pinned(ca, o.Token.CA) == nil {
		return nil, fmt.Errorf("%w: its answer does not have the CA %s", ErrWrongCA, o.Token.CA)
	}
	var clientCA []*x509.Certificate
	if answer.ClientCA != "" {
		if clientCA, err = pki.ParseCertificates([]byte(answer.ClientCA)); err != nil {
			return nil, fmt.Errorf("the cloud's answer has no usable client CA: %w", err)
		}
	}
	return &identity{
		key: key, certificate: certs, ca: ca, clientCA: clientCA,
		cluster: Cluster{Node: o.Node, Server: o.Server, WebSocket: answer.WebSocket, QUIC: answer.QUIC, Protocol: answer.Protocol},
	}, nil
}

func sameKey(cert *x509.Certificate, key crypto.Signer) bool {
	public, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool })
	return ok && public.Equal(cert.PublicKey)
}
