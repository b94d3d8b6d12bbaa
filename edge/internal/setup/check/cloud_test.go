package check_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/link/linktest"
	"github.com/skerry-io/skerry/common/link/quiclink"
	"github.com/skerry-io/skerry/common/link/wslink"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/edge/internal/setup/check"
)

// closing closes a listener with the test.
func closing[L interface{ Close() error }](t *testing.T, l L, err error) L {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// proxy starts a proxy for CONNECT that connects all requests to one address.
func proxy(t *testing.T, to string) func(*http.Request) (*url.URL, error) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		far, err := net.Dial("tcp", to)
		if r.Method != http.MethodConnect || err != nil {
			http.Error(w, "no", http.StatusBadGateway)
			return
		}
		defer far.Close()
		w.WriteHeader(http.StatusOK)
		near, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer near.Close()
		go func() { _, _ = io.Copy(far, near); _ = far.Close() }()
		_, _ = io.Copy(near, far)
	}))
	t.Cleanup(server.Close)
	at, err := url.Parse(server.URL)
	return func(*http.Request) (*url.URL, error) { return at, err }
}

// TestReach asks the listeners that cloudcore has, and others in their place.
func TestReach(t *testing.T) {
	site, stranger := linktest.NewSite(t), linktest.NewSite(t)
	websocket := func(s linktest.Site) string {
		l, err := wslink.Listen(context.Background(), "127.0.0.1:0", wslink.ListenConfig{Link: link.Default(), TLS: s.ServerTLS(), Table: topic.NewTable()})
		return closing(t, l, err).Addr().String()
	}
	quic := func() string {
		l, err := quiclink.Listen(context.Background(), "127.0.0.1:0", quiclink.ListenConfig{Link: link.Default(), TLS: site.ServerTLS(), Table: topic.NewTable()})
		return closing(t, l, err).Addr().String()
	}
	mute, err := net.ListenPacket("udp", "127.0.0.1:0")
	closing(t, mute, err)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = free.Close()
	good := check.Cloud{
		Server: "cloud", Roots: site.ClientTLS().RootCAs, Now: site.ClientTLS().Time,
		WebSocket: []string{websocket(site)}, QUIC: []string{quic()}, Kubelet: "v1.37.1", Kubernetes: "v1.37.4",
	}
	for name, test := range map[string]struct {
		spoil       func(*check.Cloud)
		level       check.Level
		where, says string
	}{
		"all is well":             {func(*check.Cloud) {}, check.Fine, "", ""},
		"not reached":             {func(c *check.Cloud) { c.Err, c.Mend = errors.New("no way there"), "make one" }, check.Fail, "cloud", "no way"},
		"a proxy ends TLS":        {func(c *check.Cloud) { c.QUIC, c.WebSocket = nil, []string{websocket(stranger)} }, check.Fail, "websocket", "proxy"},
		"no websocket":            {func(c *check.Cloud) { c.QUIC, c.WebSocket = nil, []string{free.Addr().String()} }, check.Fail, "websocket", "refused"},
		"by a proxy":              {func(c *check.Cloud) { c.Proxy = proxy(t, c.WebSocket[0]); c.WebSocket = []string{"localhost:443"} }, check.Fine, "", ""},
		"one of two addresses":    {func(c *check.Cloud) { c.WebSocket = append(c.WebSocket, free.Addr().String()) }, check.Warn, "websocket " + free.Addr().String(), "refused"},
		"UDP goes nowhere":        {func(c *check.Cloud) { c.QUIC = []string{mute.LocalAddr().String()} }, check.Warn, "quic", "UDP"},
		"UDP alone, and nowhere":  {func(c *check.Cloud) { c.QUIC, c.WebSocket = []string{mute.LocalAddr().String()}, nil }, check.Fail, "quic", "UDP"},
		"nothing listens on UDP":  {func(c *check.Cloud) { c.QUIC = []string{free.Addr().String()} }, check.Warn, "quic", "refused"},
		"a clock ahead":           {func(c *check.Cloud) { c.Skew = time.Hour }, check.Warn, "cloud's clock", "1h0m0s ahead"},
		"a kubelet that is newer": {func(c *check.Cloud) { c.Kubernetes = "v1.36.4" }, check.Fail, "kubernetes", "newer than"},
		"an older cloudcore":      {func(c *check.Cloud) { c.Kubernetes = "" }, check.Note, "kubernetes", "does not say"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := good
			test.spoil(&c)
			for _, f := range check.Reach(t.Context(), c) {
				spoilt := test.where != "" && strings.HasPrefix(f.Name, test.where)
				switch {
				case !spoilt && f.Level != check.Fine:
					t.Errorf("%+v", f)
				case spoilt && (f.Level != test.level || !strings.Contains(f.Message, test.says) || f.Level == check.Fail && f.Mend == ""):
					t.Errorf("want %s with %q, got %+v", test.level, test.says, f)
				}
			}
		})
	}
}
