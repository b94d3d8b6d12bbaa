package edgeapi_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/edgeapi"
	"github.com/skerry-io/skerry/edge/internal/core/store"
)

// Clients of the pods' listener that are refused, or that send half a body and stop, cross no link
// and keep no other client waiting.
func TestPods_HostileClients(t *testing.T) {
	b := newFakeBackend(t)
	b.sync(pods)
	b.set(pods, pod("a"))
	dir := t.TempDir()
	const at = "127.0.0.1:23988"
	s := edgeapi.New(edgeapi.Config{NodeName: node, Backend: b, DataDir: dir, Pods: at, Socket: dir + "/edge.sock", MaxRequests: 8})
	servePods(t, s)
	asked := func() int {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.requests)
	}
	dial := func() net.Conn {
		t.Helper()
		c, err := tls.Dial("tcp", at, &tls.Config{InsecureSkipVerify: true, ServerName: "kubernetes"}) //nolint:gosec // the server's identity does not matter here
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	// A junk token and a body of 3 MB: refused before the body is read.
	for range 20 {
		c := dial()
		fmt.Fprintf(c, "POST /api/v1/namespaces/default/pods HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a.b.c\r\nContent-Length: %d\r\n\r\n", 3<<20)
		_, _ = c.Write(bytes.Repeat([]byte("x"), 64<<10)) // the rest is never sent
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || res.StatusCode != http.StatusUnauthorized {
			t.Fatalf("%v, %v; want 401 before the body has come", res, err)
		}
		_ = res.Body.Close()
		_ = c.Close()
	}
	if n := asked(); n != 0 {
		t.Errorf("%d requests of clients without a token of this cluster went over the link", n)
	}
	token := teach(t, b, s)
	before := asked()
	// 40 that stall: root of the device has its own slots.
	for range 40 {
		fmt.Fprintf(dial(), "POST /api/v1/namespaces/default/pods HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: 100\r\n\r\nhalf", token)
	}
	root := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", dir+"/edge.sock")
	}}}
	for range 10 {
		res, err := root.Get("http://unix/api/v1/namespaces/default/pods/a")
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if res.StatusCode != http.StatusOK || !strings.Contains(string(body), `"name":"a"`) {
			t.Fatalf("root of the device: %d %s", res.StatusCode, body)
		}
	}
	if n := asked(); n != before {
		t.Errorf("%d requests whose bodies have not come went over the link", n-before)
	}
	// The pod itself is served if it sends its whole body: its token was known from the kubelet's.
	b.setLinked(false)
	for range 20 { // until a slot is free: stalled requests have a quarter of them
		c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, ServerName: "kubernetes"}}} //nolint:gosec // as above
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+at+"/healthz", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		res, err := c.Do(r)
		if err == nil {
			_ = res.Body.Close()
			if res.StatusCode != http.StatusOK && res.StatusCode != http.StatusTooManyRequests {
				t.Fatalf("a token of this cluster: %d", res.StatusCode)
			}
		}
		c.CloseIdleConnections()
	}
}

// teach has the kubelet ask for a token, as it does for each pod, and returns it.
func teach(t *testing.T, b *fakeBackend, s *edgeapi.Server) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: "k"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Signed(signer).Claims(map[string]any{"sub": "system:serviceaccount:default:app", "aud": []string{"api"}, "exp": time.Now().Add(time.Hour).Unix()}).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	keys, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: &key.PublicKey, KeyID: "k", Algorithm: "ES256", Use: "sig"}}})
	if err != nil {
		t.Fatal(err)
	}
	b.mu.Lock()
	b.apiserver = func(r *topicpb.APIRequest) (*topicpb.APIResponse, error) {
		if r.GetPath() == "/openid/v1/jwks" {
			if accept := r.GetAccept(); accept != "*/*" && accept != "application/jwk-set+json" { // as kube-apiserver
				return &topicpb.APIResponse{Code: http.StatusNotAcceptable}, nil
			}
			return &topicpb.APIResponse{Code: http.StatusOK, ContentType: "application/json", Body: keys}, nil
		}
		if r.GetPath() == "/.well-known/openid-configuration" {
			return &topicpb.APIResponse{Code: http.StatusOK, ContentType: "application/json", Body: []byte(
				`{"issuer":"https://kubernetes.default.svc.cluster.local","jwks_uri":"https://198.51.100.1:6443/openid/v1/jwks"}`)}, nil
		}
		return &topicpb.APIResponse{Code: http.StatusCreated, ContentType: "application/json", Body: fmt.Appendf(nil,
			`{"kind":"TokenRequest","apiVersion":"authentication.k8s.io/v1","status":{"token":%q}}`, token)}, nil
	}
	b.mu.Unlock()
	if _, err := client(t, s.ClientConfig(edgeapi.Identity{Kubelet: true})).CoreV1().ServiceAccounts("default").CreateToken(
		t.Context(), "app", &authenticationv1.TokenRequest{}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return token
}

// One client's stalled bodies take a quarter of a listener's slots; another's requests go on.
func TestSlotsOfOneClient(t *testing.T) {
	b := newFakeBackend(t)
	b.sync(pods)
	b.set(pods, pod("a"))
	identity := func(*http.Request) (edgeapi.Identity, error) { return edgeapi.Identity{}, nil }
	h := edgeapi.New(edgeapi.Config{NodeName: node, Backend: b, MaxRequests: 8}).Handler(identity)
	request := func(from string, body io.Reader) *http.Request {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "/api/v1/namespaces/default/pods", body)
		if err != nil {
			t.Fatal(err)
		}
		r.RemoteAddr, r.RequestURI = from+":1000", r.URL.Path
		return r
	}
	half, rest := io.Pipe()
	defer rest.Close()
	var codes = make(chan int, 8)
	serve := func(r *http.Request) {
		w := &recorder{header: http.Header{}}
		h.ServeHTTP(w, r)
		codes <- w.code
	}
	for range 3 {
		go serve(request("10.0.0.1", half))
	}
	if code := <-codes; code != http.StatusTooManyRequests {
		t.Errorf("the third request of one client: %d, want 429", code)
	}
	serve(request("10.0.0.2", strings.NewReader("{}")))
	if code := <-codes; code == http.StatusTooManyRequests {
		t.Error("another client is kept waiting")
	}
}

type recorder struct {
	header http.Header
	code   int
}

func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) WriteHeader(code int)        { r.code = code }
func (r *recorder) Write(p []byte) (int, error) { return len(p), nil }

// Pods get the issuer's documents from the device, and an address for its keys that they can dial:
// with a link, with one whose kube-apiserver is unreachable, without one, and after a restart
// without one.
func TestIssuerDiscovery(t *testing.T) {
	b := newFakeBackend(t)
	file, err := store.Open(t.Context(), store.Config{Path: t.TempDir() + "/store.db"})
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	config := edgeapi.Config{NodeName: node, Backend: b, State: file.Module(string(edgeapi.Name))}
	s := edgeapi.New(config)
	token := teach(t, b, s)
	ways := []struct {
		name string
		set  func()
	}{
		{"linked", func() {}},
		{"no kube-apiserver", func() { b.mu.Lock(); b.apiserver = down; b.mu.Unlock() }},
		{"no link", func() { b.setLinked(false) }},
		{"a restart without a link", func() { s = edgeapi.New(config) }},
	}
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			way.set()
			get := func(url string, into any) {
				t.Helper()
				r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
				if err != nil {
					t.Fatal(err)
				}
				r.Header.Set("Authorization", "Bearer "+token)
				w := httptest.NewRecorder()
				s.Handler(s.ByToken).ServeHTTP(w, r)
				if err := json.Unmarshal(w.Body.Bytes(), into); w.Code != http.StatusOK || err != nil {
					t.Fatalf("%s: %d %s, %v", url, w.Code, w.Body, err)
				}
			}
			var document struct {
				Issuer string `json:"issuer"`
				Keys   string `json:"jwks_uri"`
			}
			get("https://10.96.0.1/.well-known/openid-configuration", &document)
			if document.Issuer != "https://kubernetes.default.svc.cluster.local" || document.Keys != "https://10.96.0.1/openid/v1/jwks" {
				t.Fatalf("%+v", document)
			}
			var keys jose.JSONWebKeySet
			get(document.Keys, &keys)
			parsed, err := jwt.ParseSigned(token, []jose.SignatureAlgorithm{jose.ES256})
			if err != nil {
				t.Fatal(err)
			}
			if len(keys.Keys) != 1 || parsed.Claims(keys.Keys[0].Key) != nil {
				t.Errorf("the keys verify no token: %+v", keys)
			}
		})
	}
}
