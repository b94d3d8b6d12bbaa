package statusserver_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/edge/internal/core/agent/agenttest"
	"github.com/skerry-io/skerry/edge/internal/optional/statusserver"
)

// authority signs client certificates.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  crypto.Signer
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.cert, a.key = a.sign(template, template, nil)
	return a
}

func (a *authority) sign(template, parent *x509.Certificate, by crypto.Signer) (*x509.Certificate, crypto.Signer) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	if by == nil {
		by = key
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), by)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(raw)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert, key
}

func (a *authority) client(name string, groups ...string) *tls.Certificate {
	cert, key := a.sign(&x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name, Organization: groups}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, a.cert, a.key)
	return &tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert}
}

func (a *authority) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

// serve runs a status server of node edge1 as its module would, on a port of loopback.
func serve(t *testing.T, a *authority, change func(*statusserver.Config)) *httptest.Server {
	t.Helper()
	api := agenttest.NewAPI()
	api.Put(t, "nodes", &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "edge1"}})
	own := a.client("system:node:edge1", "system:nodes")
	c := statusserver.Config{
		NodeName: "edge1", ClusterID: "c7", API: api.Config(),
		Contact: func() (bool, time.Time) { return false, time.Unix(1000, 0) },
		Trust:   statusserver.Trust{Certificate: func() (*tls.Certificate, error) { return own, nil }, Authorities: a.pool, Now: time.Now},
	}
	if change != nil {
		change(&c)
	}
	s, err := statusserver.New(c)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(s.Handler())
	server.TLS = s.TLS()
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

func get(t *testing.T, server *httptest.Server, cert *tls.Certificate, path string) (code int, body string, header http.Header, err error) {
	t.Helper()
	config := &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13}
	if cert != nil {
		config.Certificates = []tls.Certificate{*cert}
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := client.Do(request)
	if err != nil {
		return 0, "", nil, err
	}
	defer answer.Body.Close()
	raw, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(raw), answer.Header, err
}

// The readers of each page, and the age in the answer.
func TestServer_Whom(t *testing.T) {
	a, other := newAuthority(t), newAuthority(t)
	server := serve(t, a, nil)
	tests := map[string]struct {
		cert *tls.Certificate
		path string
		want int // 0: the handshake fails
	}{
		"a node, about the device":         {a.client("system:node:edge2", "system:nodes"), "/app/", 200},
		"a node, about the cluster":        {a.client("system:node:edge2", "system:nodes"), "/status", 200},
		"an administrator":                 {a.client("jane", "system:masters"), "/app/", 200},
		"a user, about the cluster":        {a.client("jane"), "/status", 200},
		"a user, about applications":       {a.client("jane"), "/app/x", 403},
		"a user, about all applications":   {a.client("jane"), "/cluster-app/x", 403},
		"no certificate":                   {nil, "/status", 0},
		"a node of another cluster":        {other.client("system:node:edge2", "system:nodes"), "/status", 0},
		"another page":                     {a.client("jane", "system:masters"), "/metrics", 404},
		"an unknown application":           {a.client("jane", "system:masters"), "/app/none", 404},
		"a path that leads somewhere else": {a.client("jane", "system:masters"), "/app/../../etc/passwd", 404},
	}
	for name, tc := range tests {
		code, _, header, err := get(t, server, tc.cert, tc.path)
		if (err != nil) != (tc.want == 0) || code != tc.want {
			t.Errorf("%s: %d, %v; want %d", name, code, err, tc.want)
		}
		if tc.want != 0 && tc.want != 404 && (header.Get("Skerry-Linked") != "false" || header.Get("Skerry-Known-As-Of") != "1970-01-01T00:16:40Z") {
			t.Errorf("%s: the age is not shown: %v", name, header)
		}
	}
}

// The last lines of the log of the installation are shown, and a missing part has an error.
func TestServer_Parts(t *testing.T) {
	a := newAuthority(t)
	log := filepath.Join(t.TempDir(), "install.log")
	if err := os.WriteFile(log, []byte(strings.Repeat("line\n", 50_000)+"last\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	server := serve(t, a, func(c *statusserver.Config) { c.InstallLog = log })
	_, body, _, err := get(t, server, a.client("system:node:edge2", "system:nodes"), "/app/")
	if err != nil {
		t.Fatal(err)
	}
	var p statusserver.Page
	if err := json.Unmarshal([]byte(body), &p); err != nil || len(p.AppInfo) != 4 {
		t.Fatalf("%v: %s", err, body)
	}
	lines, ok := p.AppInfo[3].Value.([]any)
	if !ok || len(lines) != 10 || lines[9] != "last" {
		t.Errorf("%v", p.AppInfo[3])
	}
	if p.AppInfo[2].Key != "leader-election" || p.AppInfo[2].Exist == nil || *p.AppInfo[2].Exist {
		t.Errorf("%+v", p.AppInfo[2])
	}
}

// A peer that is no node, one that sends no JSON, one that sends too much and one that
// refuses are in the list with their error.
func TestServer_BadPeers(t *testing.T) {
	a, other := newAuthority(t), newAuthority(t)
	peer := func(by *authority, name string, answer func(w http.ResponseWriter)) netip.AddrPort {
		groups := []string{"system:nodes"}
		if !strings.HasPrefix(name, "system:node:") {
			groups = nil
		}
		own := by.client(name, groups...)
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { answer(w) }))
		s.TLS = &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{*own}}
		s.StartTLS()
		t.Cleanup(s.Close)
		return netip.MustParseAddrPort(s.Listener.Addr().String())
	}
	say := func(text string) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) { _, _ = w.Write([]byte(text)) }
	}
	server := serve(t, a, func(c *statusserver.Config) {
		c.Peers = []netip.AddrPort{
			peer(a, "system:node:edge2", say(`{"hostname":"edge2"}`)),
			peer(a, "system:node:edge3", say(`{"hostname":`)),
			peer(a, "system:node:edge4", say(`"`+strings.Repeat("x", 1<<20)+`"`)),
			peer(a, "system:node:edge5", func(w http.ResponseWriter) { w.WriteHeader(http.StatusServiceUnavailable) }),
			peer(a, "jane", say(`{"hostname":"edge6"}`)),
			peer(other, "system:node:edge7", say(`{"hostname":"edge7"}`)),
			netip.MustParseAddrPort("127.0.0.1:1"),
		}
	})
	_, body, _, err := get(t, server, a.client("jane", "system:masters"), "/cluster-app/x")
	if err != nil {
		t.Fatal(err)
	}
	var all struct {
		Key   string
		Value []struct{ Hostname, Error string }
	}
	if err := json.Unmarshal([]byte(body), &all); err != nil || all.Key != "cluster-app" {
		t.Fatalf("%v: %s", err, body)
	}
	want := []string{"no application", "", "no JSON", "longer than", "503", "no node", "authority", "refused"}
	if len(all.Value) != len(want) {
		t.Fatalf("%d answers: %s", len(all.Value), body)
	}
	for i, w := range want {
		if got := all.Value[i]; !strings.Contains(got.Error, w) || (w == "") != (got.Error == "") || got.Hostname == "" {
			t.Errorf("%d: %+v, want %q", i, got, w)
		}
	}
}

// Beyond eight requests at once a client gets 503 with Retry-After.
func TestServer_AtOnce(t *testing.T) {
	a := newAuthority(t)
	hold, entered := make(chan struct{}), make(chan struct{}, 8)
	server := serve(t, a, func(c *statusserver.Config) {
		c.Contact = func() (bool, time.Time) {
			entered <- struct{}{}
			<-hold
			return true, time.Now()
		}
	})
	cert := a.client("jane", "system:masters")
	codes := make(chan int, 8)
	for range 8 {
		go func() {
			code, _, _, _ := get(t, server, cert, "/status")
			codes <- code
		}()
	}
	for range 8 {
		<-entered
	}
	if code, _, header, err := get(t, server, cert, "/status"); code != http.StatusServiceUnavailable || header.Get("Retry-After") == "" {
		t.Errorf("the ninth: %d, %v", code, err)
	}
	close(hold)
	for range 8 {
		if code := <-codes; code != http.StatusOK {
			t.Errorf("one of eight: %d", code)
		}
	}
}

// A node that is not of this device's site, or was revoked, is refused; a peer can't redirect this
// device; and no name leads a peer to another page, which would have it ask all its peers.
func TestClaims_11_WhoReadsAndWhereItLeads(t *testing.T) {
	a := newAuthority(t)
	secret := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"hostname":"of another server"}`))
	}))
	t.Cleanup(secret.Close)
	var asked []string
	var mu sync.Mutex
	peer := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked = append(asked, r.URL.Path)
		mu.Unlock()
		http.Redirect(w, r, secret.URL, http.StatusFound)
	}))
	peer.TLS = &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{*a.client("system:node:edge2", "system:nodes")}}
	peer.StartTLS()
	t.Cleanup(peer.Close)
	server := serve(t, a, func(c *statusserver.Config) {
		c.Peers = []netip.AddrPort{netip.MustParseAddrPort(peer.Listener.Addr().String())}
		c.Trust.Admits = func(cert *x509.Certificate) error {
			if cert.Subject.CommonName == "system:node:edge2" {
				return nil
			}
			return errors.New("it is not in this site")
		}
	})
	if code, _, _, err := get(t, server, a.client("system:node:evil", "system:nodes"), "/app/x"); err == nil {
		t.Errorf("a node of another site is answered %d", code)
	}
	edge2 := a.client("system:node:edge2", "system:nodes")
	code, body, _, err := get(t, server, edge2, "/cluster-app/x")
	if err != nil || code != http.StatusOK || strings.Contains(body, "of another server") || !strings.Contains(body, "302") {
		t.Errorf("%v %d: %s", err, code, body)
	}
	mu.Lock()
	asked = nil
	mu.Unlock()
	for _, path := range []string{"/cluster-app/..%2fcluster-app%2fx", "/cluster-app/a%2f..%2f..%2fcluster-app", "/cluster-app/%2e%2e"} {
		if code, _, _, err := get(t, server, edge2, path); err == nil && code == http.StatusOK {
			t.Errorf("%s is answered %d", path, code)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if len(asked) > 0 {
		t.Errorf("the peer was asked for %q", asked)
	}
}
