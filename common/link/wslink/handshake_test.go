package wslink_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/link/linktest"
	"github.com/skerry-io/skerry/common/link/wslink"
	"github.com/skerry-io/skerry/common/topic"
)

func TestListener_SaysWhenToComeBack(t *testing.T) {
	s := linktest.NewSite(t)
	l := listen(t, wslink.ListenConfig{TLS: s.ServerTLS(), MaxLinks: 1, RetryAfter: 5 * time.Second})
	d := newDialer(t, wslink.DialConfig{TLS: s.ClientTLS()})
	linktest.Connect(t, l, d)
	_, err := d.Dial(t.Context(), l.Addr().String())
	why := linktest.CloseErrorOf(t, err)
	after, found := strings.CutPrefix(why.Reason, "retry-after=")
	if seconds, err := strconv.Atoi(after); why.Code != link.CloseOverloaded || !found || err != nil || seconds < 5 || seconds > 10 {
		t.Errorf("refused by %v", why)
	}
}

func TestListener_RefusesWithoutVerifiedCertificate(t *testing.T) {
	s, other := linktest.NewSite(t), linktest.NewSite(t)
	l := listen(t, wslink.ListenConfig{TLS: s.ServerTLS()})
	for name, c := range map[string]*tls.Config{
		"no certificate":          {RootCAs: s.Authority.Pool()},
		"of another cluster":      {RootCAs: s.Authority.Pool(), Certificates: []tls.Certificate{other.Edge}},
		"a serving certificate":   {RootCAs: s.Authority.Pool(), Certificates: []tls.Certificate{s.Cloud}},
		"TLS 1.2":                 {RootCAs: s.Authority.Pool(), Certificates: []tls.Certificate{s.Edge}, MaxVersion: tls.VersionTLS12},
		"trusts another":          {RootCAs: other.Authority.Pool(), Certificates: []tls.Certificate{s.Edge}},
		"HTTP/2 by all means":     {RootCAs: s.Authority.Pool(), Certificates: []tls.Certificate{s.Edge}, NextProtos: []string{"h2"}},
		"speaks QUIC's protocol?": {RootCAs: s.Authority.Pool(), Certificates: []tls.Certificate{s.Edge}, NextProtos: []string{fmt.Sprint("skerry/", link.Framing)}},
	} {
		t.Run(name, func(t *testing.T) {
			if _, _, err := dialRaw(t, l, c, fmt.Sprint("skerry.v", link.Framing)); err == nil {
				t.Error("was let in")
			}
		})
	}
	if l.Links() != 0 {
		t.Errorf("%d links", l.Links())
	}
	linktest.Connect(t, l, newDialer(t, wslink.DialConfig{TLS: s.ClientTLS()}))
}

func TestNew_RefusesWeakTLS(t *testing.T) {
	s := linktest.NewSite(t)
	for name, c := range map[string]*tls.Config{
		"nothing":        {},
		"no authority":   {Certificates: []tls.Certificate{s.Edge}},
		"no certificate": {RootCAs: s.Authority.Pool()},
	} {
		if _, err := wslink.NewDialer(wslink.DialConfig{Link: link.Default(), TLS: c, Table: topic.NewTable()}); err == nil {
			t.Errorf("%s: a dialer was made", name)
		}
	}
	for name, c := range map[string]*tls.Config{
		"nothing":           {},
		"asks only":         {ClientAuth: tls.RequestClientCert, ClientCAs: s.Authority.Pool()},
		"by the system's":   {ClientAuth: tls.RequireAndVerifyClientCert},
		"if there is one":   {ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: s.Authority.Pool()},
		"without verifying": {ClientAuth: tls.RequireAnyClientCert, ClientCAs: s.Authority.Pool()},
	} {
		if l, err := wslink.Listen(t.Context(), "127.0.0.1:0", wslink.ListenConfig{Link: link.Default(), TLS: c, Table: topic.NewTable()}); err == nil {
			_ = l.Close()
			t.Errorf("%s: a listener was made", name)
		}
	}
	// A configuration for each client has to meet the same rules.
	c := s.ServerTLS()
	c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return &tls.Config{Certificates: []tls.Certificate{s.Cloud}}, nil
	}
	l := listen(t, wslink.ListenConfig{TLS: c})
	if _, err := newDialer(t, wslink.DialConfig{TLS: s.ClientTLS()}).Dial(t.Context(), l.Addr().String()); err == nil {
		t.Error("was let in without being asked for a certificate")
	}
}

func TestDial_Version(t *testing.T) {
	s := linktest.NewSite(t)
	l := listen(t, wslink.ListenConfig{TLS: s.ServerTLS()})
	_, response, err := dialRaw(t, l, s.ClientTLS(), "skerry.v999")
	if err == nil || response == nil || response.StatusCode != http.StatusUpgradeRequired {
		t.Errorf("a newer client was answered %v, %v", response, err)
	}
}

// A server that is no cloudcore, or one that refuses, gives a clear error.
func TestDial_Answers(t *testing.T) {
	s := linktest.NewSite(t)
	for name, test := range map[string]struct {
		status int
		header http.Header
		body   string
		want   link.CloseCode
		reason string
	}{
		"overloaded":   {503, http.Header{"Retry-After": {"17"}}, "", link.CloseOverloaded, "retry-after=17"},
		"bad gateway":  {502, nil, "", link.CloseOverloaded, "502 Bad Gateway"},
		"forbidden":    {403, nil, "edge-1 is banned\nand more", link.CloseForbidden, "edge-1 is banned"},
		"version":      {426, nil, "this end speaks skerry.v2", link.CloseVersion, "this end speaks skerry.v2"},
		"not found":    {404, nil, "404 page not found", link.CloseProtocol, "404 page not found"},
		"a page":       {200, nil, "<html>", link.CloseProtocol, "200 OK"},
		"server error": {500, nil, "", link.CloseProtocol, "500"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				for k, v := range test.header {
					w.Header()[k] = v
				}
				w.WriteHeader(test.status)
				_, _ = io.WriteString(w, test.body)
			}))
			server.TLS = &tls.Config{Certificates: []tls.Certificate{s.Cloud}}
			server.StartTLS()
			defer server.Close()
			_, err := newDialer(t, wslink.DialConfig{TLS: s.ClientTLS()}).Dial(t.Context(), server.Listener.Addr().String())
			if why := linktest.CloseErrorOf(t, err); why.Code != test.want || !strings.Contains(why.Reason, test.reason) {
				t.Errorf("ended by %v", why)
			}
		})
	}
}

// Clients that don't finish their handshake lose their place, and others come in.
func TestListener_SlowHandshakes(t *testing.T) {
	s := linktest.NewSite(t)
	config := link.Default()
	config.HandshakeTimeout = 300 * time.Millisecond
	l := listen(t, wslink.ListenConfig{Link: config, TLS: s.ServerTLS(), MaxHandshakes: 2})
	for range 4 {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	linktest.Connect(t, l, newDialer(t, wslink.DialConfig{TLS: s.ClientTLS()}))
}

func TestListener_RefusesWhatIsNoHandshake(t *testing.T) {
	s := linktest.NewSite(t)
	l := listen(t, wslink.ListenConfig{TLS: s.ServerTLS()})
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: s.ClientTLS(), DisableKeepAlives: true}}
	for name, test := range map[string]struct {
		method, path string
		header       http.Header
		want         int
	}{
		"another path":    {"GET", "/", nil, 404},
		"no upgrade":      {"GET", wslink.Path, nil, 400},
		"a post":          {"POST", wslink.Path, nil, 405},
		"endless headers": {"GET", wslink.Path, http.Header{"X": {strings.Repeat("x", 32<<10)}}, 431},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := http.NewRequestWithContext(t.Context(), test.method, "https://"+l.Addr().String()+test.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			for k, v := range test.header {
				r.Header[k] = v
			}
			response, err := client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			_ = response.Body.Close()
			if response.StatusCode != test.want {
				t.Errorf("answered %s, want %d", response.Status, test.want)
			}
		})
	}
	if l.Links() != 0 {
		t.Errorf("%d links", l.Links())
	}
}

func TestDial_ThroughAProxy(t *testing.T) {
	s := linktest.NewSite(t)
	l := listen(t, wslink.ListenConfig{TLS: s.ServerTLS()})
	var connects atomic.Int32
	var tunnels sync.WaitGroup
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect {
			http.Error(w, "CONNECT only", http.StatusMethodNotAllowed)
			return
		}
		connects.Add(1)
		to, err := net.Dial("tcp", r.Host)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		from, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		fmt.Fprint(from, "HTTP/1.1 200 OK\r\n\r\n")
		for a, b := range map[net.Conn]net.Conn{from: to, to: from} {
			tunnels.Go(func() {
				_, _ = io.Copy(a, bufio.NewReader(b))
				_ = a.Close()
			})
		}
	}))
	defer tunnels.Wait()
	defer proxy.Close()
	at, err := url.Parse(proxy.URL)
	if err != nil {
		t.Fatal(err)
	}
	edge, cloud := linktest.Connect(t, l, newDialer(t, wslink.DialConfig{TLS: s.ClientTLS(), Proxy: http.ProxyURL(at)}))
	if err := edge.Send(t.Context(), linktest.Event(1, 100_000)); err != nil {
		t.Fatal(err)
	}
	if _, err := cloud.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	if connects.Load() != 1 {
		t.Errorf("%d connections through the proxy", connects.Load())
	}
	_ = edge.Close(link.CloseShutdown, "the test ended")
	<-cloud.Done()
}

// Data in the kernel's queue of a thin link can't be overtaken.
func TestSockets_KeepLittleUnsent(t *testing.T) {
	s := linktest.NewSite(t)
	var accepted, dialled net.Conn
	l := listen(t, wslink.ListenConfig{TLS: s.ServerTLS(), Wrap: func(c net.Conn) net.Conn { accepted = c; return c }})
	d := newDialer(t, wslink.DialConfig{TLS: s.ClientTLS(), Wrap: func(c net.Conn) net.Conn { dialled = c; return c }})
	linktest.Connect(t, l, d)
	for name, c := range map[string]net.Conn{"accepted": accepted, "dialled": dialled} {
		raw, err := c.(syscall.Conn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		var got int
		if controlErr := raw.Control(func(fd uintptr) {
			got, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT)
		}); controlErr != nil || err != nil {
			t.Fatal(controlErr, err)
		}
		if got <= 0 || got > 16<<10 {
			t.Errorf("%s: %d bytes may wait unsent", name, got)
		}
	}
}
