package httpserver_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/klog/v2/ktesting"

	"github.com/skerry-io/skerry/common/httpserver"
)

// A server ends with its context, and every connection with it, those in mid-answer included.
func TestServe(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan struct{})
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(asked)
		<-r.Context().Done()
	})}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- httpserver.Serve(ctx, server, l, "a test") }()
	answered := make(chan error, 1)
	go func() {
		r, err := http.Get("http://" + l.Addr().String())
		if err == nil {
			err = errors.Join(errors.New("answered"), r.Body.Close())
		}
		answered <- err
	}()
	<-asked
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
	if err := <-answered; !errors.Is(err, io.EOF) && !strings.Contains(err.Error(), "reset") {
		t.Errorf("the client: %v", err)
	}
}

// A listener that fails is an error that names the server.
func TestServeFails(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	err = httpserver.Serve(t.Context(), &http.Server{ReadHeaderTimeout: time.Minute}, l, "a test")
	if !errors.Is(err, net.ErrClosed) || !strings.HasPrefix(err.Error(), "serving a test: ") {
		t.Errorf("got %v", err)
	}
}

// net/http's complaint is a quiet line with a constant message.
func TestLog(t *testing.T) {
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.Verbosity(2), ktesting.BufferLogs(true)))
	httpserver.Log(logger, "a test").Printf("http: TLS handshake error from %s", "192.0.2.1:4")
	sink, ok := logger.GetSink().(ktesting.Underlier)
	if !ok {
		t.Fatal("no buffer")
	}
	entries := sink.GetBuffer().Data()
	if len(entries) != 1 || entries[0].Message != "HTTP server" || entries[0].Verbosity != 2 || entries[0].Type != ktesting.LogInfo {
		t.Fatalf("got %v", entries)
	}
}
