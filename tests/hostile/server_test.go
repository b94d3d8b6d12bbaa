package hostile_test

import (
	"crypto/tls"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/skerry-io/skerry/tests/cluster/ca"
)

// server answers each request over TLS with its name, at one address, and counts the connections.
type server struct {
	http        *http.Server
	connections atomic.Int64
	requests    atomic.Int64
	port        string
}

// serve starts a server whose certificate, of the cluster's CA, has those names.
func serve(t *testing.T, address, name string, handler http.Handler, names ...string) *server {
	t.Helper()
	cert, key, err := ca.Server(plane.CAFile(), plane.CAKeyFile(), pkix.Name{CommonName: name}, names)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	s := &server{}
	if handler == nil {
		handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, name) })
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	s.http = &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s.requests.Add(1)
			handler.ServeHTTP(w, r)
		}),
		ConnState: func(_ net.Conn, state http.ConnState) {
			if state == http.StateNew {
				s.connections.Add(1)
			}
		},
	}
	done := make(chan error, 1)
	go func() {
		done <- s.http.Serve(tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}))
	}()
	t.Cleanup(func() {
		_ = s.http.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	if _, s.port, err = net.SplitHostPort(l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	return s
}
