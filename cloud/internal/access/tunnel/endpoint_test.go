package tunnel_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/skerry-io/skerry/common/pki"
)

// byName serves a replica's endpoint.
func (w *system) byName(r *replica) string {
	w.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.tunnel.ServeNames(ctx, l) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
	})
	return l.Addr().String()
}

// secure is a kubelet that speaks TLS with a certificate for its node's name, sends that
// name and echoes.
func (w *system) secure(name string) func(context.Context, string) (net.Conn, error) {
	w.t.Helper()
	serving, err := w.cluster.Serving([]string{name})
	if err != nil {
		w.t.Fatal(err)
	}
	config := pki.ServerTLS(pki.Server{Certificate: serving.Certificate})
	return func(context.Context, string) (net.Conn, error) {
		a, b := net.Pipe()
		go func() {
			conn := tls.Server(b, config)
			_, _ = io.WriteString(conn, name+"\n")
			_, _ = io.Copy(conn, conn)
			_ = conn.Close()
		}()
		return a, nil
	}
}

func TestServeNames(t *testing.T) {
	w := newSystem(t)
	a, b := w.replica("a"), w.replica("b")
	attach(t, b, "edge1", w.secure("edge1"))
	for who, r := range map[string]*replica{"the holder": b, "another replica": a} {
		for _, name := range []string{"edge1", "EDGE1"} {
			w.lease("edge1", b, "b", time.Now())
			// The session is the kubelet's own, to the end.
			conn, err := tls.Dial("tcp", w.byName(r), &tls.Config{RootCAs: pki.Pool(w.cluster.Certificate), ServerName: name})
			if err != nil {
				t.Fatalf("%s, %s: %v", who, name, err)
			}
			w.talk(conn, "edge1")
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestServeNames_Refuses(t *testing.T) {
	w := newSystem(t)
	r := w.replica("a")
	address := w.byName(r)
	for name, test := range map[string]struct{ server, want string }{
		"an unknown name":          {"edge7", "unrecognized name"},
		"a node that is no edge":   {"plain1", "unrecognized name"},
		"an address":               {"10.0.0.1", "unrecognized name"}, // which SNI can't have
		"an edge without a link":   {"edge1", "internal error"},
		"a name in another domain": {"edge1.example.com", "unrecognized name"},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := tls.Dial("tcp", address, &tls.Config{RootCAs: pki.Pool(w.cluster.Certificate), ServerName: test.server})
			if err == nil {
				conn.Close()
			}
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
	for name, hello := range map[string][]byte{
		"no TLS": []byte("GET / HTTP/1.1\r\n\r\n"), "an endless record": bytes.Repeat([]byte{22, 3, 1, 255, 255}, 10_000), "nothing": nil,
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_, _ = conn.Write(hello) // it may be cut off before it has sent all
			_ = conn.(*net.TCPConn).CloseWrite()
			if got, _ := io.ReadAll(conn); len(got) > 0 {
				t.Errorf("it is answered %q", got)
			}
		})
	}
	if n := testutil.CollectAndCount(r.tunnel, "skerry_tunnel_refused_total"); n != 3 {
		t.Errorf("%d reasons are counted, want unknown, unreachable and hello", n)
	}
}
