package quiclink_test

import (
	"context"
	"crypto/tls"
	"net"
	"testing"

	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/link/linktest"
	"github.com/skerry-io/skerry/common/link/quiclink"
	"github.com/skerry-io/skerry/common/topic"
)

func listen(t testing.TB, config quiclink.ListenConfig) *quiclink.Listener {
	t.Helper()
	if config.Link == (link.Config{}) {
		config.Link = link.Default()
	}
	config.Table = topic.NewTable()
	l, err := quiclink.Listen(context.Background(), "127.0.0.1:0", config)
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

func newDialer(t testing.TB, config quiclink.DialConfig) *quiclink.Dialer {
	t.Helper()
	if config.Link == (link.Config{}) {
		config.Link = link.Default()
	}
	config.Table = topic.NewTable()
	d, err := quiclink.NewDialer(config)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestConn(t *testing.T) {
	s := linktest.NewSite(t)
	linktest.TestConn(t, func(t *testing.T, o linktest.PairOptions) linktest.Ends {
		l := listen(t, quiclink.ListenConfig{Link: o.Cloud, TLS: s.ServerTLS()})
		config := quiclink.DialConfig{Link: o.Edge, TLS: s.ClientTLS()}
		if o.Network != nil {
			config.Wrap = o.Network.PacketConn
		}
		d := newDialer(t, config)
		return s.Ends(linktest.Connect(t, l, d))
	})
}

func TestHandshake(t *testing.T) {
	linktest.TestHandshake(t, linktest.Transport{
		Listen: func(t testing.TB, c *tls.Config, config link.Config, maxLinks int) linktest.CountingListener {
			return listen(t, quiclink.ListenConfig{Link: config, TLS: c, MaxLinks: maxLinks})
		},
		Dialer: func(t testing.TB, c *tls.Config, config link.Config) link.Dialer {
			return newDialer(t, quiclink.DialConfig{Link: config, TLS: c})
		},
		Silent: silent,
	})
}

func silent(t testing.TB) string {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c.LocalAddr().String()
}
