package wslink_test

import (
	"context"
	"crypto/tls"
	"testing"

	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/link/linktest"
	"github.com/skerry-io/skerry/common/link/wslink"
	"github.com/skerry-io/skerry/common/topic"
)

// site is an authority with a cloud and an edge that trust it.
type site struct {
	authority   *linktest.Authority
	edge, cloud tls.Certificate
}

func newSite(t testing.TB) site {
	t.Helper()
	a := linktest.NewAuthority(t)
	return site{a, a.Node(t, "edge-1"), a.Server(t)}
}

func (s site) serverTLS() *tls.Config {
	return &tls.Config{Certificates: []tls.Certificate{s.cloud}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: s.authority.Pool()}
}

func (s site) clientTLS() *tls.Config {
	return &tls.Config{Certificates: []tls.Certificate{s.edge}, RootCAs: s.authority.Pool()}
}

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

// connect dials and accepts one link.
func connect(t testing.TB, l link.Listener, d link.Dialer) (edge, cloud link.Conn) {
	t.Helper()
	edge, err := d.Dial(context.Background(), l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	cloud, err = l.Accept(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = edge.Close(link.CloseShutdown, "the test ended")
		_ = cloud.Close(link.CloseShutdown, "the test ended")
	})
	return edge, cloud
}

func TestConn(t *testing.T) {
	s := newSite(t)
	linktest.TestConn(t, func(t *testing.T, o linktest.PairOptions) linktest.Ends {
		l := listen(t, wslink.ListenConfig{Link: o.Cloud, TLS: s.serverTLS()})
		d := newDialer(t, wslink.DialConfig{Link: o.Edge, TLS: s.clientTLS(), Wrap: o.Network.Conn})
		edge, cloud := connect(t, l, d)
		return linktest.Ends{Edge: edge, Cloud: cloud, EdgeCertificate: s.edge.Leaf, CloudCertificate: s.cloud.Leaf}
	})
}
