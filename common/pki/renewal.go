package pki

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// RenewPath is where a device whose certificate expired while it was cut off requests the next one:
// POST with a RenewRequest as JSON, without a client certificate. The answer is a JoinAnswer or a
// Refusal.
const RenewPath = "/v1/renew"

// RenewRequest has an expired certificate and a request with the same key; the request's signature
// proves possession of the key.
type RenewRequest struct {
	Certificate string `json:"certificate"` // PEM: the node's, then intermediates
	CSR         string `json:"csr"`         // PEM
	Version     string `json:"version"`     // of edgecore
}

// ParseRenewRequest parses and validates the body of a renewal: the certificate must be a node's,
// signed by one of roots, have ended less than limit ago, and be of the key that the request is
// signed with. The error is a *Refusal.
func ParseRenewRequest(body []byte, roots *x509.CertPool, now time.Time, limit time.Duration) (types.NodeName, []*x509.Certificate, RenewRequest, error) {
	var r RenewRequest
	refuse := func(reason Reason, format string, args ...any) (types.NodeName, []*x509.Certificate, RenewRequest, error) {
		return "", nil, r, Refuse(reason, format, args...)
	}
	if err := json.Unmarshal(body, &r); err != nil {
		return refuse(ReasonBadRequest, "the request's body is no JSON of a renewal: %v", err)
	}
	r.Version = printable(r.Version)
	certs, err := ParseCertificates([]byte(r.Certificate))
	if err != nil {
		return refuse(ReasonBadRequest, "the certificate can't be read: %v", err)
	}
	node, err := NodeOf(certs[0])
	if err != nil {
		return refuse(ReasonBadRequest, "the certificate is no node's: %v", err)
	}
	csr, asks, err := ParseNodeCSR([]byte(r.CSR))
	switch {
	case err != nil:
		return refuse(ReasonBadCSR, "%v", err)
	case asks != node:
		return refuse(ReasonBadCSR, "the certificate is of the node %s, the request for %s", node, asks)
	case !bytes.Equal(csr.RawSubjectPublicKeyInfo, certs[0].RawSubjectPublicKeyInfo):
		return refuse(ReasonBadCSR, "the request is signed with another key than the certificate's")
	case roots == nil:
		return refuse(ReasonUnavailable, "the cluster's client CA is not known yet")
	}
	end := certs[0].NotAfter
	if _, err := certs[0].Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: Pool(certs[1:]...), CurrentTime: end.Add(-time.Second), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}); err != nil {
		return refuse(ReasonDenied, "the certificate is not of this cluster: %v", err)
	}
	switch {
	case now.Before(end):
		return refuse(ReasonNotEnded, "the certificate is good until %s: dial with it", end.UTC().Format(time.RFC3339))
	case !now.Before(end.Add(limit)):
		return refuse(ReasonEndedLongAgo, "the certificate ended at %s, and cloudcore renews one for %s after its end (join.renewEnded): "+
			"make a token with `cloudcore token create --node %s`, run `edgecore join --force --token-file FILE` on the device; edgecore keeps running and uses the new identity without a restart",
			end.UTC().Format(time.RFC3339), limit, node)
	}
	return node, certs, r, nil
}
