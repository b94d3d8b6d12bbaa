package pki_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"math/big"
	"testing"
	"time"

	"github.com/skerry-io/skerry/common/pki"
)

// Only the holder of the key of a node's certificate of this cluster that ended lately gets another
// one.
func TestClaims_37_WhoseEndedCertificateIsRenewed(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	authority := func() (*x509.Certificate, *ecdsa.PrivateKey) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		template := &x509.Certificate{
			SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotBefore: now.Add(-1000 * time.Hour), NotAfter: now.Add(1000 * time.Hour),
			IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		}
		der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		return cert, key
	}
	ca, caKey := authority()
	other, otherKey := authority()
	sign := func(by *x509.Certificate, byKey, key crypto.Signer, user string, ended time.Duration, usage x509.ExtKeyUsage) []byte {
		der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
			SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: user, Organization: []string{"system:nodes"}},
			NotBefore: now.Add(-500 * time.Hour), NotAfter: now.Add(-ended), KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{usage},
		}, by, key.Public(), byKey)
		if err != nil {
			t.Fatal(err)
		}
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		return pki.EncodeCertificates(cert)
	}
	newKey := func() crypto.Signer {
		key, err := pki.NewKey()
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
	key, stranger := newKey(), newKey()
	const limit = 90 * time.Hour
	client := x509.ExtKeyUsageClientAuth
	good := sign(ca, caKey, key, "system:node:edge1", time.Hour, client)
	for name, tc := range map[string]struct {
		certificate []byte
		key         crypto.Signer
		node        string
		want        pki.Reason
	}{
		"ended an hour ago":           {good, key, "edge1", ""},
		"ended just within the limit": {sign(ca, caKey, key, "system:node:edge1", limit-time.Second, client), key, "edge1", ""},
		"ended long ago":              {sign(ca, caKey, key, "system:node:edge1", limit, client), key, "edge1", pki.ReasonEndedLongAgo},
		"good still":                  {sign(ca, caKey, key, "system:node:edge1", -time.Hour, client), key, "edge1", pki.ReasonNotEnded},
		"the key is another's":        {good, stranger, "edge1", pki.ReasonBadCSR},
		"for another node":            {good, key, "edge2", pki.ReasonBadCSR},
		"of another cluster":          {sign(other, otherKey, key, "system:node:edge1", time.Hour, client), key, "edge1", pki.ReasonDenied},
		"a server's":                  {sign(ca, caKey, key, "system:node:edge1", time.Hour, x509.ExtKeyUsageServerAuth), key, "edge1", pki.ReasonBadRequest},
		"a person's":                  {sign(ca, caKey, key, "kubernetes-admin", time.Hour, client), key, "edge1", pki.ReasonBadRequest},
		"no certificate":              {[]byte("x"), key, "edge1", pki.ReasonBadRequest},
	} {
		t.Run(name, func(t *testing.T) {
			csr, err := pki.NewNodeCSR(tc.key, "edge1")
			if tc.node != "edge1" {
				csr, err = pki.NewNodeCSR(tc.key, "edge2")
			}
			if err != nil {
				t.Fatal(err)
			}
			body, err := json.Marshal(pki.RenewRequest{Certificate: string(tc.certificate), CSR: string(csr)})
			if err != nil {
				t.Fatal(err)
			}
			node, _, _, err := pki.ParseRenewRequest(body, pki.Pool(ca), now, limit)
			var refusal *pki.Refusal
			switch {
			case tc.want == "" && (err != nil || node != "edge1"):
				t.Errorf("%s: %v", node, err)
			case tc.want != "" && (!errors.As(err, &refusal) || refusal.Reason != tc.want):
				t.Errorf("got %v; want %s", err, tc.want)
			}
		})
	}
}
