package app

import (
	"bytes"

	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/cloud/internal/site"
	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// trust is whom a device is to trust whose own trust has this sum; nil where that is right.
func (a *App) trust(sum []byte) *topicpb.Trust {
	clientCA := a.clientCA.PEM()
	clients, err := pki.ParseCertificates(clientCA)
	if err != nil {
		return nil // not known yet: a device must not forget what it knows
	}
	if bytes.Equal(sum, pki.TrustSum(a.ca.Trusted, clients)) {
		return nil
	}
	return &topicpb.Trust{Ca: pki.EncodeCertificates(a.ca.Trusted...), ClientCa: pki.EncodeCertificates(clients...)}
}

// revocations are what the devices of a site must know: they meet where no cloudcore stands between them.
func (a *App) revocations() site.Revocations {
	nodes, prints := a.revoked.Known()
	r := site.Revocations{Nodes: make(map[types.NodeName]site.Ban, len(nodes)), Fingerprints: prints}
	for node, b := range nodes {
		r.Nodes[node] = site.Ban(b)
	}
	return r
}
