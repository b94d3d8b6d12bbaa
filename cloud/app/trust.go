package app

import (
	"bytes"

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
