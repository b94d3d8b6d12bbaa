package app

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/cloud/internal/controllers/site"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/cloud/internal/trust/join"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// identity reads the CAs that edges trust, and those that cloudcore does.
func (a *App) identity(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	client := a.client.Kubernetes()
	var err error
	if a.ca, err = waitFor(ctx, "reading the CA", func(ctx context.Context) (*join.CA, error) { return join.LoadCA(ctx, client) }); err != nil {
		return err
	}
	if a.serving, err = a.ca.Serving(a.config.Advertise); err != nil {
		return err
	}
	if a.clientCA, err = join.NewClientCA(client); err != nil {
		return err
	}
	a.tokens = join.NewTokens(client)
	a.revoked = join.NewRevoked(client, func(ctx context.Context) { a.kickRevoked(ctx) })
	return nil
}

// kickRevoked ends the sessions whose certificate has been revoked.
func (a *App) kickRevoked(ctx context.Context) {
	a.sites.Changed()
	for _, s := range a.hub.Sessions() {
		peer, ok := a.hub.Peer(s.Node)
		if !ok {
			continue
		}
		if err := a.revoked.Check(s.Node, peer); err != nil {
			klog.FromContext(ctx).Info("Ended the session of a node whose certificate is revoked", "node", s.Node, "reason", err.Error())
			a.hub.Kick(s.Node, link.CloseForbidden, err.Error())
		}
	}
}

// trust returns the correct trust bundle for a device whose own has this sum; nil where that is
// right.
func (a *App) trust(sum []byte) *topicpb.Trust {
	clientCA := a.clientCA.PEM()
	clients, err := pki.ParseCertificates(clientCA)
	if err != nil {
		return nil // unknown so far: a device must not drop its own
	}
	if bytes.Equal(sum, pki.TrustSum(a.ca.Trusted, clients)) {
		return nil
	}
	return &topicpb.Trust{Ca: pki.EncodeCertificates(a.ca.Trusted...), ClientCa: pki.EncodeCertificates(clients...)}
}

// revocations are those that the devices of a site need: they connect to each other without a
// cloudcore in between.
func (a *App) revocations() site.Revocations {
	nodes, prints := a.revoked.Known()
	r := site.Revocations{Nodes: make(map[types.NodeName]site.Ban, len(nodes)), Fingerprints: prints}
	for node, b := range nodes {
		r.Nodes[node] = site.Ban(b)
	}
	return r
}

// requestAsNode creates a certificate request as a node, as the relay does for one from its link.
func (a *App) requestAsNode(ctx context.Context, node types.NodeName, csr *certificatesv1.CertificateSigningRequest) (*certificatesv1.CertificateSigningRequest, error) {
	csr = csr.DeepCopy()
	csr.APIVersion, csr.Kind = certificatesv1.SchemeGroupVersion.String(), "CertificateSigningRequest"
	body, err := json.Marshal(csr)
	if err != nil {
		return nil, fmt.Errorf("encoding a certificate request: %w", err)
	}
	resp, err := a.client.Do(ctx, kube.Identity{Node: node}, kube.Request{
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
