package quiclink_test

import (
	"crypto/tls"
	"testing"

	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/link/linktest"
	"github.com/skerry-io/skerry/common/link/quiclink"
)

func BenchmarkConn(b *testing.B) {
	s := linktest.NewSite(b)
	linktest.BenchConn(b, func(b *testing.B) (edge, cloud link.Conn) {
		return linktest.Connect(b, listen(b, quiclink.ListenConfig{TLS: s.ServerTLS()}), newDialer(b, quiclink.DialConfig{TLS: s.ClientTLS()}))
	})
}

func BenchmarkIdle(b *testing.B) {
	linktest.BenchIdle(b,
		func(t testing.TB, c *tls.Config) link.Listener { return listen(t, quiclink.ListenConfig{TLS: c}) },
		func(t testing.TB, c *tls.Config) link.Dialer { return newDialer(t, quiclink.DialConfig{TLS: c}) })
}
