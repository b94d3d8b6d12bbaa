package wslink_test

import (
	"context"
	"crypto/tls"
	"net"
	"testing"

	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/link/linktest"
	"github.com/skerry-io/skerry/common/link/wslink"
	"github.com/skerry-io/skerry/common/topic"
)

func listen(t testing.TB, config wslink.ListenConfig) *wslink.Listener {
	t.Helper()
	if config.Link == (link.Config{}) {
		config.Link = link.Default()
	}
	config.Table = topic.NewTable()
	l, err := wslink.Listen(context.Background(), "127.0.0.1:0", config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func newDialer(t testing.TB, config wslink.DialConfig) *wslink.Dialer {
	t.Helper()
	if config.Link == (link.Config{}) {
		config.Link = link.Default()
	}
	config.Table = topic.NewTable()
	d, err := wslink.NewDialer(config)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestConn(t *testing.T) {
	s := linktest.NewSite(t)
	linktest.TestConn(t, func(t *testing.T, o linktest.PairOptions) linktest.Ends {
		l := listen(t, wslink.ListenConfig{Link: o.Cloud, TLS: s.ServerTLS()})
		d := newDialer(t, wslink.DialConfig{Link: o.Edge, TLS: s.ClientTLS(), Wrap: o.Network.Conn})
		return s.Ends(linktest.Connect(t, l, d))
	})
}

func TestHandshake(t *testing.T) {
	linktest.TestHandshake(t, linktest.Transport{
		Listen: func(t testing.TB, c *tls.Config, config link.Config, maxLinks int) linktest.CountingListener {
			return listen(t, wslink.ListenConfig{Link: config, TLS: c, MaxLinks: maxLinks})
		},
		Dialer: func(t testing.TB, c *tls.Config, config link.Config) link.Dialer {
			return newDialer(t, wslink.DialConfig{Link: config, TLS: c})
		},
		Silent: silent,
	})
}

func silent(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String()
}
