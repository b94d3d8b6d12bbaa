package edgeapi_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/edgeapi"
	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/edge/internal/core/store"
	"github.com/skerry-io/skerry/tests/cluster"
	"github.com/skerry-io/skerry/tests/netns/wire"
)

// The device's listeners, each in its network: for pods at an address of the loopback interface,
// for people at the LAN's.
const (
	podsAt = "169.254.20.20:6443"
	lanAt  = "192.168.7.2:6444"
)

// site is a device with a pod's network and a LAN, and the real listeners of its API.
type site struct {
	t              *testing.T
	device, pods   *wire.Host
	lan            *wire.Host
	socket, config string
}

func newSite(t *testing.T, b *fakeBackend) (*site, *edgeapi.Server) {
	s := &site{t: t, device: wire.NewHost(t), pods: wire.NewHost(t), lan: wire.NewHost(t)}
	wire.Cable(t, s.device, "pods", s.pods, "eth0")
	wire.Cable(t, s.device, "lan", s.lan, "eth0")
	s.device.Address(t, "pods", "10.2.0.1/24")
	s.device.Address(t, "lan", "192.168.7.2/24")
	s.device.Address(t, "lo", "169.254.20.20/32")
	for _, a := range []string{"10.2.0.5/24", "10.2.0.6/24"} {
		s.pods.Address(t, "eth0", a)
	}
	s.lan.Address(t, "eth0", "192.168.7.3/24")
	s.pods.Route(t, "169.254.20.20/32", "10.2.0.1")
	s.lan.Route(t, "169.254.20.20/32", "192.168.7.2") // a host of the LAN routes the pods' address to the device
	dir := t.TempDir()
	s.socket, s.config = dir+"/edge.sock", filepath.Join(dir, edgeapi.KubeconfigFile)
	server := edgeapi.New(edgeapi.Config{NodeName: node, Backend: b, DataDir: dir, Socket: s.socket, Listen: lanAt, Pods: podsAt})
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- s.device.Do(func() error { return server.Serve(ctx, func() { close(ready) }) })
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-ready:
	case err := <-done:
		done <- nil
		t.Fatal(err)
	}
	return s, server
}

// dial connects from an address of a host.
func (s *site) dial(host *wire.Host, from, to string) (conn net.Conn, err error) {
	err = host.Do(func() error {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: 30 * time.Second}
		conn, err = d.DialContext(s.t.Context(), "tcp", to)
		return err
	})
	if err == nil {
		s.t.Cleanup(func() { _ = conn.Close() })
	}
	return conn, err
}

// secure is dial with TLS.
func (s *site) secure(host *wire.Host, from, to string, config *tls.Config) (*tls.Conn, error) {
	conn, err := s.dial(host, from, to)
	if err != nil {
		return nil, err
	}
	if config == nil {
		config = &tls.Config{InsecureSkipVerify: true, ServerName: "kubernetes"} //nolint:gosec // the server's identity does not matter here
	}
	c := tls.Client(conn, config)
	return c, c.HandshakeContext(s.t.Context())
}

// get reads cached objects of the device over a connection.
func get(c net.Conn, token string) (int, string, error) {
	authorization := ""
	if token != "" {
		authorization = "Authorization: Bearer " + token + "\r\n"
	}
	if _, err := fmt.Fprintf(c, "GET /api/v1/namespaces/default/pods/a HTTP/1.1\r\nHost: x\r\n%sAccept: application/json\r\n\r\n", authorization); err != nil {
		return 0, "", err
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return res.StatusCode, string(body), err
}

// TestHostile_10_StalledClientsStarveNoOther: a pod holds 64 requests open whose bodies never come,
// with the token that it has; a host of the LAN does so with junk tokens and 3 MB announced, with
// handshakes that it never ends, and at the pods' address, which it routes to the device. Root, the
// kubelet and another pod are served all the while, and none of these requests crosses the link.
func TestHostile_10_StalledClientsStarveNoOther(t *testing.T) {
	b := newFakeBackend(t)
	b.sync(pods)
	b.sync(nodes)
	b.set(pods, pod("a"))
	b.set(nodes, &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: corev1.NodeSpec{PodCIDRs: []string{"10.2.0.0/24"}}})
	s, server := newSite(t, b)
	token := teach(t, b, server)
	asked := func() int {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.requests)
	}
	before := asked()
	stalled := func(c net.Conn, token string, length int) {
		fmt.Fprintf(c, "POST /api/v1/namespaces/default/pods HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\nhalf", token, length)
	}
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			if c, err := s.secure(s.pods, "10.2.0.5", podsAt, nil); err == nil { // above its share the connection is closed
				stalled(c, token, 100)
			}
		})
		all.Go(func() {
			if c, err := s.secure(s.lan, "192.168.7.3", podsAt, nil); err == nil {
				if code, _, err := get(c, token); err == nil {
					t.Errorf("a host of the LAN is served at the pods' address: %d", code)
				}
			}
		})
		all.Go(func() {
			if c, err := s.secure(s.lan, "192.168.7.3", lanAt, nil); err == nil {
				stalled(c, "a.b.c", 3<<20)
				_, _ = c.Write(bytes.Repeat([]byte("x"), 64<<10))
			}
		})
		all.Go(func() {
			for _, at := range []string{podsAt, lanAt} {
				if c, err := s.dial(s.lan, "192.168.7.3", at); err == nil {
					_, _ = c.Write([]byte{22, 3, 1}) // a handshake that stalls
				}
			}
		})
	}
	all.Wait()
	if n := asked(); n != before {
		t.Errorf("%d requests went over the link", n-before)
	}
	s.others(server, token)
}

// others shows that root, the kubelet and another pod are served.
func (s *site) others(server *edgeapi.Server, token string) {
	s.t.Helper()
	if _, err := client(s.t, server.ClientConfig(edgeapi.Identity{Kubelet: true})).CoreV1().Pods("default").Get(s.t.Context(), "a", metav1.GetOptions{}); err != nil {
		s.t.Errorf("the kubelet: %v", err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", s.config)
	if err != nil {
		s.t.Fatal(err)
	}
	admin, err := rest.TLSConfigFor(config)
	if err != nil {
		s.t.Fatal(err)
	}
	admin.ServerName = "192.168.7.2"
	for name, dial := range map[string]func() (net.Conn, string, error){
		"root by the socket": func() (net.Conn, string, error) {
			c, err := (&net.Dialer{}).DialContext(s.t.Context(), "unix", s.socket)
			return c, "", err
		},
		"root by certificate": func() (net.Conn, string, error) {
			c, err := s.secure(s.device, "192.168.7.2", lanAt, admin)
			return c, "", err
		},
		"another pod": func() (net.Conn, string, error) {
			c, err := s.secure(s.pods, "10.2.0.6", podsAt, nil)
			return c, token, err
		},
	} {
		for i := range 20 {
			c, token, err := dial()
			if err != nil {
				s.t.Fatalf("%s, %d: %v", name, i, err)
			}
			if token != "" {
				s.healthy(c, name, token)
			} else if code, body, err := get(c, token); err != nil || code != http.StatusOK || !strings.Contains(body, `"name":"a"`) {
				s.t.Fatalf("%s, %d: %d %s, %v", name, i, code, body, err)
			}
			_ = c.Close()
		}
	}
}

// healthy sends a request that doesn't need kube-apiserver.
func (s *site) healthy(c net.Conn, name, token string) {
	s.t.Helper()
	fmt.Fprintf(c, "GET /openid/v1/jwks HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n", token)
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		s.t.Fatalf("%s: %v", name, err)
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusOK {
		s.t.Fatalf("%s: %d", name, res.StatusCode)
	}
}

// TestHostile_11_TokensAreJudgedOffline: tokens that a real kube-apiserver made, shown to the
// device's API while there is no link: for the API and for a vault, of a pod that is here and of
// one that is gone, of before KEP-1205, and altered.
func TestHostile_11_TokensAreJudgedOffline(t *testing.T) {
	plane := cluster.Run(t)
	plane.AddNode(t, node)
	ns := plane.Namespace(t)
	m := &mint{t: t, plane: plane, ns: ns}
	live, gone := m.pod("live"), m.pod("gone")
	m.mayList()
	legacy := m.legacy()
	upstream, err := rest.HTTPClientFor(plane.Node(t, node))
	if err != nil {
		t.Fatal(err)
	}
	anonymous, err := rest.HTTPClientFor(rest.AnonymousClientConfig(plane.Admin()))
	if err != nil {
		t.Fatal(err)
	}
	b := newFakeBackend(t)
	b.sync(pods)
	b.set(pods, live)
	b.set(pods, gone)
	b.apiserver = func(q *topicpb.APIRequest) (*topicpb.APIResponse, error) {
		if q.GetBearerToken() != "" {
			return passOn(t.Context(), anonymous, plane.Server, q)
		}
		return passOn(t.Context(), upstream, plane.Server, q)
	}
	file, err := store.Open(t.Context(), store.Config{Path: t.TempDir() + "/store.db"})
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	config := edgeapi.Config{NodeName: node, Backend: b, State: file.Module(string(edgeapi.Name))}
	server := edgeapi.New(config)
	// The kubelet gets a token for the pod, as it does for each.
	request := m.request(live)
	kubelet, err := client(t, server.ClientConfig(edgeapi.Identity{Kubelet: true})).CoreV1().ServiceAccounts(ns).CreateToken(t.Context(), "app", request, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	seen := kubelet.Status.Token
	list := func(token string) int {
		t.Helper()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/v1/namespaces/"+ns+"/pods", http.NoBody)
		r.Header.Set("Authorization", "Bearer "+token)
		w := httptest.NewRecorder()
		server.Handler(server.ByToken).ServeHTTP(w, r)
		return w.Code
	}
	vault, vaultLinked := m.token(live, "vault"), m.token(live, "vault")
	if code := list(seen); code != http.StatusOK {
		t.Fatalf("with a link: %d", code)
	}
	if code := list(vaultLinked); code != http.StatusUnauthorized {
		t.Fatalf("for a vault, with a link: %d", code)
	}
	const audience = "https://kubernetes.default.svc"
	both, fresh, unbound, ofGone := m.token(live, "vault", audience), m.token(live), m.token(nil), m.token(gone)
	b.setLinked(false)
	server = edgeapi.New(config) // a restart: tokens are only known from the disk
	b.remove(ref(gone))
	for name, c := range map[string]struct {
		token string
		want  int
	}{
		"of its pod, which the kubelet got": {seen, http.StatusOK},
		"of its pod, never seen":            {fresh, http.StatusOK},
		"for a vault":                       {vault, http.StatusUnauthorized},
		"for a vault, refused before":       {vaultLinked, http.StatusUnauthorized},
		"for a vault and for the API":       {both, http.StatusOK},
		"without a pod, good for an hour":   {unbound, http.StatusOK},
		"of a pod that is gone":             {ofGone, http.StatusUnauthorized},
		"a legacy one, without an end":      {legacy, http.StatusServiceUnavailable},
		"with another subject":              {altered(t, fresh), http.StatusUnauthorized},
		"without its signature":             {fresh[:strings.LastIndex(fresh, ".")+1], http.StatusUnauthorized},
		"of another cluster":                {teachless(t), http.StatusUnauthorized},
	} {
		t.Run(name, func(t *testing.T) {
			if code := list(c.token); code != c.want {
				t.Errorf("got %d, want %d", code, c.want)
			}
		})
	}
	b.remove(ref(live))
	for name, token := range map[string]string{"seen before": seen, "never seen": fresh, "for both": both} {
		t.Run("its pod was deleted: "+name, func(t *testing.T) {
			if code := list(token); code != http.StatusUnauthorized {
				t.Errorf("got %d", code)
			}
		})
	}
}

// mint makes accounts, pods and tokens in a real cluster.
type mint struct {
	t     *testing.T
	plane *cluster.ControlPlane
	ns    string
}

func (m *mint) pod(name string) *corev1.Pod {
	m.t.Helper()
	accounts := m.plane.Client().CoreV1().ServiceAccounts(m.ns)
	if name == "live" {
		if _, err := accounts.Create(m.t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "app"}}, metav1.CreateOptions{}); err != nil {
			m.t.Fatal(err)
		}
	}
	var p *corev1.Pod
	cluster.Eventually(m.t, "the pod "+name, func(ctx context.Context) (err error) {
		p, err = m.plane.Client().CoreV1().Pods(m.ns).Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
			NodeName: node, ServiceAccountName: "app", Containers: []corev1.Container{{Name: "c", Image: "example.test/none:1"}},
		}}, metav1.CreateOptions{})
		return err
	})
	p.APIVersion, p.Kind = "v1", "Pod"
	return p
}

func (m *mint) mayList() {
	m.t.Helper()
	roles := m.plane.Client().RbacV1()
	_, err := roles.Roles(m.ns).Create(m.t.Context(), &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "list"}, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}}},
	}, metav1.CreateOptions{})
	if err == nil {
		_, err = roles.RoleBindings(m.ns).Create(m.t.Context(), &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "list"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "list"},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: m.ns, Name: "app"}},
		}, metav1.CreateOptions{})
	}
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *mint) request(p *corev1.Pod, audiences ...string) *authenticationv1.TokenRequest {
	r := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audiences, ExpirationSeconds: new(int64(3600))}}
	if p != nil {
		r.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: p.Name, UID: p.UID}
	}
	return r
}

func (m *mint) token(p *corev1.Pod, audiences ...string) string {
	m.t.Helper()
	made, err := m.plane.Client().CoreV1().ServiceAccounts(m.ns).CreateToken(m.t.Context(), "app", m.request(p, audiences...), metav1.CreateOptions{})
	if err != nil {
		m.t.Fatal(err)
	}
	return made.Status.Token
}

// legacy is a token of a Secret, which has no end and no audience.
func (m *mint) legacy() (token string) {
	m.t.Helper()
	secrets := m.plane.Client().CoreV1().Secrets(m.ns)
	if _, err := secrets.Create(m.t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "legacy", Annotations: map[string]string{corev1.ServiceAccountNameKey: "app"}}, Type: corev1.SecretTypeServiceAccountToken,
	}, metav1.CreateOptions{}); err != nil {
		m.t.Fatal(err)
	}
	cluster.Eventually(m.t, "the token of the Secret", func(ctx context.Context) error {
		s, err := secrets.Get(ctx, "legacy", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if token = string(s.Data[corev1.ServiceAccountTokenKey]); token == "" {
			return errors.New("not yet")
		}
		return nil
	})
	return token
}

// passOn handles a request of the device as cloudcore does.
func passOn(ctx context.Context, client *http.Client, server string, q *topicpb.APIRequest) (*topicpb.APIResponse, error) {
	method := q.GetMethod()
	if method == "create" { // the fake backend hands on the verb
		method = http.MethodPost
	}
	r, err := http.NewRequestWithContext(ctx, method, server+q.GetPath()+"?"+q.GetQuery(), bytes.NewReader(q.GetBody()))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept", q.GetAccept())
	r.Header.Set("Content-Type", q.GetContentType())
	if token := q.GetBearerToken(); token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	a, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	defer a.Body.Close()
	body, err := io.ReadAll(a.Body)
	return &topicpb.APIResponse{Code: int32(a.StatusCode), ContentType: a.Header.Get("Content-Type"), Body: body}, err
}

// altered returns a token with another account's name.
func altered(t *testing.T, token string) string {
	t.Helper()
	parts := strings.Split(token, ".")
	claims, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.Replace(string(claims), ":app\"", ":admin\"", 1)
	if changed == string(claims) {
		t.Fatalf("no subject in %s", claims)
	}
	return parts[0] + "." + base64.RawURLEncoding.EncodeToString([]byte(changed)) + "." + parts[2]
}

// teachless is a token of a cluster that this device never was in.
func teachless(t *testing.T) string {
	t.Helper()
	other := newFakeBackend(t)
	return teach(t, other, edgeapi.New(edgeapi.Config{NodeName: node, Backend: other}))
}

func ref(p *corev1.Pod) object.Ref {
	return object.Ref{Resource: pods, Namespace: p.Namespace, Name: p.Name}
}
