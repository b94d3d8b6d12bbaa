package join_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/common/topic"
)

// authority is a CA of the test's.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t testing.TB, notBefore time.Time) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a := authority{key: key}
	a.cert = a.sign(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: "skerry serving CA"}, NotBefore: notBefore, NotAfter: notBefore.Add(20 * 365 * 24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, key.Public())
	return a
}

func (a authority) sign(t testing.TB, template *x509.Certificate, public any) *x509.Certificate {
	t.Helper()
	parent := a.cert
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, a.key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// node signs a node's request, for life from notBefore on.
func (a authority) node(t testing.TB, csr []byte, notBefore time.Time, life time.Duration) *x509.Certificate {
	t.Helper()
	request, node, err := pki.ParseNodeCSR(csr)
	if err != nil {
		t.Fatal(err)
	}
	return a.sign(t, &x509.Certificate{
		Subject:   pkix.Name{CommonName: pki.NodeUserPrefix + string(node), Organization: []string{pki.NodesGroup}},
		NotBefore: notBefore, NotAfter: notBefore.Add(life),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, request.PublicKey)
}

// server is the certificate of a cloudcore.
func (a authority) server(t testing.TB, now time.Time) *x509.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return a.sign(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: "cloudcore"}, NotBefore: now.Add(-time.Minute), NotAfter: now.Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, key.Public())
}

// cloud behaves like a bootstrap server whose token has uses left, and whose cluster's
// clock is its own.
type cloud struct {
	t       testing.TB
	serving authority
	cluster authority
	token   pki.Token
	address string
	ahead   time.Duration // of the cluster's clock, against this machine's

	mu      sync.Mutex
	uses    int
	lost    bool              // the next answer is given when the device is gone
	issued  map[string]string // by the request's key: the certificate
	script  []func(http.ResponseWriter) bool
	keys    []string // of the requests, in their order
	version string
	// renews has renewals judged as at that time; nil: there is no such path.
	renews  func() time.Time
	renewed int
}

type cloudOptions struct {
	ahead time.Duration
	hosts []string
	life  time.Duration // of the serving certificate
	tls   func(*tls.Config)
}

func newCloud(t testing.TB, o cloudOptions) *cloud {
	t.Helper()
	if o.hosts == nil {
		o.hosts = []string{"127.0.0.1"}
	}
	if o.life == 0 {
		o.life = time.Hour
	}
	born := time.Now().Add(o.ahead - time.Minute)
	c := &cloud{t: t, serving: newAuthority(t, born), cluster: newAuthority(t, born), ahead: o.ahead, uses: 1, issued: map[string]string{}}
	var err error
	if c.token, err = pki.NewToken(pki.PinOf(c.serving.cert)); err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "cloudcore"}, NotBefore: born.Add(-time.Hour), NotAfter: born.Add(o.life),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, h := range o.hosts {
		if ip := net.ParseIP(h); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, h)
		}
	}
	leaf := c.serving.sign(t, template, key.Public())
	server := httptest.NewUnstartedServer(http.HandlerFunc(c.serve))
	shown := tls.Certificate{Certificate: [][]byte{leaf.Raw, c.serving.cert.Raw}, PrivateKey: key, Leaf: leaf}
	server.TLS = pki.ServerTLS(pki.Server{Certificate: func() (*tls.Certificate, error) { return &shown, nil }})
	server.TLS.Certificates = []tls.Certificate{shown} // otherwise httptest uses its own for clients without SNI
	if o.tls != nil {
		o.tls(server.TLS)
	}
	server.Config.ErrorLog = quiet()
	server.StartTLS()
	t.Cleanup(server.Close)
	c.address = strings.TrimPrefix(server.URL, "https://")
	return c
}

func (c *cloud) serve(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	refuse := func(reason pki.Reason) {
		w.WriteHeader(reason.Status())
		_ = json.NewEncoder(w).Encode(pki.Refuse(reason, "refused by the test"))
	}
	body, err := io.ReadAll(r.Body)
	if err == nil && r.URL.Path == pki.RenewPath && c.renews != nil {
		c.renew(w, body)
		return
	}
	var request pki.JoinRequest
	if err == nil {
		err = json.Unmarshal(body, &request)
	}
	if err != nil || r.URL.Path != pki.JoinPath || request.Protocol != topic.Protocol {
		refuse(pki.ReasonBadRequest)
		return
	}
	csr, node, err := pki.ParseNodeCSR([]byte(request.CSR))
	if err != nil || node != request.NodeName {
		refuse(pki.ReasonBadCSR)
		return
	}
	c.version = request.Version
	key := string(csr.RawSubjectPublicKeyInfo)
	c.keys = append(c.keys, key)
	if len(c.script) > 0 {
		step := c.script[0]
		c.script = c.script[1:]
		if step(w) {
			return
		}
	}
	if r.Header.Get("Authorization") != "Bearer "+c.token.Bearer() {
		refuse(pki.ReasonTokenWrong)
		return
	}
	if _, ok := c.issued[key]; !ok {
		if c.uses == 0 {
			refuse(pki.ReasonTokenUsedUp)
			return
		}
		c.uses--
		c.issued[key] = string(pki.EncodeCertificates(c.cluster.node(c.t, []byte(request.CSR), time.Now().Add(c.ahead-5*time.Minute), time.Hour)))
	}
	if c.lost {
		c.lost = false
		<-r.Context().Done()
		return
	}
	_ = json.NewEncoder(w).Encode(pki.JoinAnswer{
		Certificate: c.issued[key], CA: string(pki.EncodeCertificates(c.serving.cert)), ClientCA: string(pki.EncodeCertificates(c.cluster.cert)),
		WebSocket: []string{"cloud.example:10000"}, QUIC: []string{"cloud.example:10001"},
		Protocol: topic.Protocol, Version: "v0", UnixMillis: time.Now().Add(c.ahead).UnixMilli(),
	})
}

// renew answers as cloudcore does, within 90 days.
func (c *cloud) renew(w http.ResponseWriter, body []byte) {
	now := c.renews()
	_, _, request, err := pki.ParseRenewRequest(body, pki.Pool(c.cluster.cert), now, 90*24*time.Hour)
	var refusal *pki.Refusal
	if errors.As(err, &refusal) {
		w.WriteHeader(refusal.Reason.Status())
		_ = json.NewEncoder(w).Encode(refusal)
		return
	}
	c.renewed++
	_ = json.NewEncoder(w).Encode(pki.JoinAnswer{
		Certificate: string(pki.EncodeCertificates(c.cluster.node(c.t, []byte(request.CSR), now.Add(-5*time.Minute), time.Hour))),
		CA:          string(pki.EncodeCertificates(c.serving.cert)), Protocol: topic.Protocol, UnixMillis: now.UnixMilli(),
	})
}

// next makes the next request fail, after the cloud has done its work or before.
func (c *cloud) next(steps ...func(http.ResponseWriter) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.script = append(c.script, steps...)
}

func refusal(reason pki.Reason) func(http.ResponseWriter) bool {
	return func(w http.ResponseWriter) bool {
		w.Header().Set("Retry-After", "0")
		w.WriteHeader(reason.Status())
		_ = json.NewEncoder(w).Encode(pki.Refuse(reason, "refused by the test's script"))
		return true
	}
}

const edge1 = types.NodeName("edge1")
