package edged

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/cmd/kubelet/app"
	"k8s.io/kubernetes/pkg/kubelet/server"

	"github.com/skerry-io/skerry/tests/cluster/ca"
)

// listening is a module whose port answers with the kubelet's own judgement of clients: its
// authenticators and authorizers, as Run gives them to it, in front of a handler that returns the
// user.
func listening(t *testing.T) *Module {
	t.Helper()
	dir := t.TempDir()
	certPEM, keyPEM, err := ca.New("kubelet")
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"kubelet.crt": certPEM, "kubelet.key": keyPEM, "clients.crt": certPEM} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequestClientCert})
	if err != nil {
		t.Fatal(err)
	}
	m, err := New(Config{
		NodeName: "edge1", RootDir: filepath.Join(dir, "root"), CertDir: dir, ClientCAFile: filepath.Join(dir, "clients.crt"),
		Kubelet: onAnyCgroups(fmt.Sprintf("address: 127.0.0.1\nport: %d\nserverTLSBootstrap: false\nauthentication: {webhook: {enabled: false}, anonymous: {enabled: false}}\n"+
			"authorization: {mode: AlwaysAllow}", l.Addr().(*net.TCPAddr).Port)),
	})
	if err != nil {
		t.Fatal(err)
	}
	own, _, err := app.BuildAuth(types.NodeName("edge1"), nil, m.server.KubeletConfiguration)
	if err != nil {
		t.Fatal(err)
	}
	var auth server.AuthInterface = &localAuth{AuthInterface: own, local: m.local}
	serving := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, ok, err := auth.AuthenticateRequest(r)
		if err != nil || !ok {
			http.Error(w, fmt.Sprint(err), http.StatusUnauthorized)
			return
		}
		for _, a := range auth.GetRequestAttributes(r.Context(), who.User, r) {
			if d, why, err := auth.Authorize(r.Context(), a); d != 1 || err != nil {
				http.Error(w, fmt.Sprint(why, err), http.StatusForbidden)
				return
			}
		}
		fmt.Fprint(w, who.User.GetName())
	})}
	go func() { _ = serving.Serve(l) }()
	t.Cleanup(func() { _ = serving.Close() })
	return m
}

func ask(t *testing.T, conn net.Conn, path string) string {
	t.Helper()
	defer conn.Close()
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: edge1\r\nConnection: close\r\n\r\n", path); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	return strconv.Itoa(res.StatusCode)
}

func TestDialLocal_FourPathsOfItsOwnKubelet(t *testing.T) {
	m, other := listening(t), listening(t)
	for path, want := range map[string]string{
		"/containerLogs/a/b/c": "200", "/exec/a/b/c": "200", "/attach/a/b/c": "200", "/portForward/a/b": "200",
		"/pods": "403", "/run/a/b/c": "403", "/metrics": "403", "/stats/summary": "403", "/exec": "403", "/exec/../pods": "403", "/execute/": "403", "/": "403",
		"/exec//a": "403", "/logs/exec/": "403", "/debug/pprof/": "403", "/checkpoint/a/b/c": "403",
	} {
		conn, err := m.DialLocal(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := ask(t, conn, path); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
	// The same key, shown to another kubelet.
	conn, err := m.local.dial(t.Context(), other.server, other.Server())
	if err != nil {
		t.Fatal(err)
	}
	if got := ask(t, conn, "/containerLogs/a/b/c"); got != "401" {
		t.Errorf("another kubelet answers %s", got)
	}
}

// The server at the kubelet's port must be the kubelet.
func TestDialLocal_AnotherProcessAtThePort(t *testing.T) {
	m, other := listening(t), listening(t)
	if _, err := m.local.dial(t.Context(), m.server, other.Server()); err == nil || !strings.Contains(err.Error(), "is not this kubelet") {
		t.Errorf("got %v", err)
	}
	if err := os.Remove(filepath.Join(m.server.CertDirectory, "kubelet.crt")); err != nil {
		t.Fatal(err)
	}
	if _, err := m.DialLocal(t.Context()); err == nil || !strings.Contains(err.Error(), "reading the kubelet's certificate") {
		t.Errorf("without a certificate of the kubelet: %v", err)
	}
}
