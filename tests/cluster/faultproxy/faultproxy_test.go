package faultproxy_test

import (
	"context"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/skerry-io/skerry/tests/cluster/faultproxy"
)

// serve gives a server, a proxy in front of it, a client of the proxy, and how many requests
// reached the server.
func serve(t *testing.T) (p *faultproxy.Proxy, client *http.Client, address string, asked *atomic.Int64) {
	t.Helper()
	asked = new(atomic.Int64)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		io.WriteString(w, r.Header.Get("Impersonate-User")+" "+r.URL.Path)
	}))
	t.Cleanup(server.Close)
	target, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if p, err = faultproxy.New(target, ca, new(net.Dialer).DialContext); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Serve(ctx, l, server.TLS.Certificates[0]) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	transport := server.Client().Transport.(*http.Transport).Clone()
	t.Cleanup(transport.CloseIdleConnections)
	return p, &http.Client{Transport: transport}, "https://" + l.Addr().String(), asked
}

func TestFaults(t *testing.T) {
	for name, c := range map[string]struct {
		fault  faultproxy.Fault
		code   int // 0: no answer
		after  string
		passes int64
	}{
		"none":  {faultproxy.Fault{}, 200, "", 1},
		"429":   {faultproxy.Fault{Code: 429, RetryAfter: 7}, 429, "7", 0},
		"500":   {faultproxy.Fault{Code: 500}, 500, "", 0},
		"hang":  {faultproxy.Fault{Hang: true}, 0, "", 0},
		"break": {faultproxy.Fault{Break: true}, 0, "", 0},
		"lose":  {faultproxy.Fault{Lose: true}, 0, "", 1},
	} {
		t.Run(name, func(t *testing.T) {
			p, client, address, asked := serve(t)
			p.Set(func(*http.Request) faultproxy.Fault { return c.fault })
			ctx := t.Context()
			if c.fault.Hang {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, 100*time.Millisecond)
				defer cancel()
			}
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, address+"/api/v1/things", http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Impersonate-User", "system:node:edge1")
			res, err := client.Do(req)
			switch {
			case c.code == 0:
				if err == nil {
					t.Fatalf("answered %s", res.Status)
				}
			case err != nil:
				t.Fatal(err)
			default:
				defer res.Body.Close()
				body, _ := io.ReadAll(res.Body)
				if res.StatusCode != c.code || res.Header.Get("Retry-After") != c.after {
					t.Errorf("answered %s, Retry-After %q", res.Status, res.Header.Get("Retry-After"))
				}
				if c.code == 200 && string(body) != "system:node:edge1 /api/v1/things" {
					t.Errorf("the server saw %q", body)
				}
			}
			if got := asked.Load(); got != c.passes {
				t.Errorf("%d requests reached the server, want %d", got, c.passes)
			}
		})
	}
}

func TestNewRefusesWhatIsNoCA(t *testing.T) {
	if _, err := faultproxy.New(&url.URL{Scheme: "https", Host: "127.0.0.1:1"}, []byte("x"), nil); err == nil {
		t.Error("no error")
	}
}
