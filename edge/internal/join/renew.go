package join

import (
	"bytes"
	"context"
	"crypto"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/version"
)

// renewEndedMax is the most time between two tries to renew a certificate that has ended: a device that
// comes within reach of the cloud again must not wait for long, and what it asks costs little.
const renewEndedMax = time.Minute

// ended reports whether the certificate has ended. No link can be opened with it, so that it is not
// renewed by one.
func (i *Identity) ended() bool { return !i.clock.Now().Before(i.current.Load().Leaf.NotAfter) }

// lookAgain is how long nothing is looked at. A device whose certificate has ended may be joined
// again at any moment.
func (i *Identity) lookAgain() time.Duration {
	if i.ended() {
		return lookEnded
	}
	return lookEvery
}

// renewEnded asks cloudcore for a certificate with the same key in the place of one that has ended.
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
		Certificate: string(pki.EncodeCertificates(own...)), CSR: string(csr), Version: version.Skerry(), Protocol: topic.Protocol,
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
			break // cloudcore's word; another address would say the same
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

// takeRenewed keeps and uses a certificate that came in the place of one that has ended.
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
	bases, host, err := serverURLs(server)
	if err != nil {
		return nil, err
	}
	transport := newTransport(pki.ClientTLS(pki.Client{Roots: i.Roots(), Now: i.clock.Now, Protocols: protocols()}))
	defer transport.CloseIdleConnections()
	var failed error
	for _, base := range bases {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, base+pki.RenewPath, bytes.NewReader(body))
		if err != nil {
			return nil, fmt.Errorf("making the request: %w", err)
		}
		request.Header.Set("Content-Type", "application/json")
		response, err := client(transport, answerTimeout).Do(request)
		if err != nil {
			failed = errors.Join(failed, explain(err, Options{Server: server, Clock: i.clock}, host))
			continue
		}
		data, err := io.ReadAll(io.LimitReader(response.Body, pki.MaxJoinBody+1))
		response.Body.Close()
		if err != nil || len(data) > pki.MaxJoinBody {
			return nil, fmt.Errorf("%w: reading the answer of %s: %w", ErrUnreachable, server, err)
		}
		answer, _, err := parseAnswer(response.StatusCode, response.Header, data, server)
		return answer, err
	}
	return nil, failed
}

// takeJoined uses the identity that `edgecore join` has written since, where it is of this node.
// That of another node is for the next start: everything that this process holds is of the old one.
func (i *Identity) takeJoined(ctx context.Context) {
	info, err := os.Stat((&directory{path: i.dir}).file(nodeFile))
	if err != nil || info.ModTime().Equal(i.written) {
		return // in the middle of a join there is none
	}
	id, err := (&directory{path: i.dir, seal: i.seal}).load()
	if err != nil {
		return // it is looked at again
	}
	i.written = info.ModTime()
	switch {
	case id.certificate[0].Equal(i.current.Load().Leaf):
	case id.cluster.Node != i.cluster.Node:
		klog.FromContext(ctx).Error(nil, "This device was joined under another name; edgecore goes on as before until it is restarted", "node", i.cluster.Node, "joined", id.cluster.Node)
		i.note(fmt.Errorf("this device was joined as %s meanwhile: restart edgecore (systemctl restart edgecore)", id.cluster.Node))
	default:
		i.clock.AtLeast(id.certificate[0].NotBefore)
		i.trust.Store(newTrust(id.ca, id.clientCA))
		i.use(id.tls())
		klog.FromContext(ctx).Info("Took over the identity that a join has written", "notAfter", id.certificate[0].NotAfter.UTC().Format(time.RFC3339))
		if i.Renewed != nil {
			i.Renewed()
		}
	}
}
