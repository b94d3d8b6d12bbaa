package app

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/cloud/internal/controllers/site"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/cloud/internal/trust/join"
	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// trustWing has the CAs that edges trust and those that cloudcore does, and the revoked devices.
type trustWing struct {
	wing
	client   *kube.Client
	ca       *join.CA
	serving  *join.Serving
	clientCA *join.ClientCA
	revoked  *join.Revoked
}

// newTrust reads the CA. changed is called when devices have been revoked.
func newTrust(ctx context.Context, c *cluster, changed func(context.Context)) (_ *trustWing, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	client := c.client.Kubernetes()
	w := &trustWing{client: c.client, revoked: join.NewRevoked(client, changed)}
	if w.ca, err = waitFor(ctx, "reading the CA", func(ctx context.Context) (*join.CA, error) { return join.LoadCA(ctx, client) }); err != nil {
		return nil, err
	}
	if w.serving, err = w.ca.Serving(c.config.Advertise); err != nil {
		return nil, err
	}
	if w.clientCA, err = join.NewClientCA(client); err != nil {
		return nil, err
	}
	w.entries = append(w.entries, restarted("client-ca", w.clientCA.Run), restarted("revoked", w.revoked.Run))
	return w, nil
}

// tls is that of the ports for devices.
func (w *trustWing) tls() *tls.Config {
	return pki.ServerTLS(pki.Server{Certificate: w.serving.Certificate, ClientCAs: w.clientCA.Wait})
}

// bundle returns the correct trust bundle for a device whose own has this sum; nil where that is
// right.
func (w *trustWing) bundle(sum []byte) *topicpb.Trust {
	clientCA := w.clientCA.PEM()
	clients, err := pki.ParseCertificates(clientCA)
	if err != nil {
		return nil // unknown so far: a device must not drop its own
	}
	if bytes.Equal(sum, pki.TrustSum(w.ca.Trusted, clients)) {
		return nil
	}
	return &topicpb.Trust{Ca: pki.EncodeCertificates(w.ca.Trusted...), ClientCa: pki.EncodeCertificates(clients...)}
}

// revocations are those that the devices of a site need: they connect to each other without a
// cloudcore in between.
func (w *trustWing) revocations() site.Revocations {
	nodes, prints := w.revoked.Known()
	r := site.Revocations{Nodes: make(map[types.NodeName]site.Ban, len(nodes)), Fingerprints: prints}
	for node, b := range nodes {
		r.Nodes[node] = site.Ban(b)
	}
	return r
}

// requestAsNode creates a certificate request as a node, as the relay does for one from its link.
func (w *trustWing) requestAsNode(ctx context.Context, node types.NodeName, csr *certificatesv1.CertificateSigningRequest) (*certificatesv1.CertificateSigningRequest, error) {
	csr = csr.DeepCopy()
	csr.APIVersion, csr.Kind = certificatesv1.SchemeGroupVersion.String(), "CertificateSigningRequest"
	body, err := json.Marshal(csr)
	if err != nil {
		return nil, fmt.Errorf("encoding a certificate request: %w", err)
	}
	resp, err := w.client.Do(ctx, kube.Identity{Node: node}, kube.Request{
		Method: http.MethodPost, Path: "/apis/certificates.k8s.io/v1/certificatesigningrequests", ContentType: "application/json", Body: body,
	})
	if err != nil {
		return nil, err
	}
	if err := resp.Err(); err != nil {
		return nil, err
	}
	made := &certificatesv1.CertificateSigningRequest{}
	if err := json.Unmarshal(resp.Body, made); err != nil {
		return nil, fmt.Errorf("reading a certificate request: %w", err)
	}
	return made, nil
}
