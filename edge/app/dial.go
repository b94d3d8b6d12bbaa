package app

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"

	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/link/quiclink"
	"github.com/skerry-io/skerry/common/link/wslink"
	"github.com/skerry-io/skerry/common/topic"
	edgeconfig "github.com/skerry-io/skerry/edge/internal/setup/config"
	"github.com/skerry-io/skerry/edge/internal/setup/join"
)

// trusting is a dialer that is recreated when its trusted CAs have changed: a TLS configuration in
// use can't be changed.
type trusting struct {
	roots func() *x509.CertPool
	make  func() (link.Dialer, error)

	mu     sync.Mutex
	dialer link.Dialer
	by     *x509.CertPool // the CAs that dialer trusts
}

// newTrusting also makes the first dialer, so that a wrong configuration is reported at once.
func newTrusting(roots func() *x509.CertPool, make func() (link.Dialer, error)) (*trusting, error) {
	t := &trusting{roots: roots, make: make}
	_, err := t.current()
	return t, err
}

func (t *trusting) current() (link.Dialer, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if roots := t.roots(); roots != t.by {
		d, err := t.make()
		if err != nil {
			return nil, err
		}
		t.dialer, t.by = d, roots
	}
	return t.dialer, nil
}

// Dial implements link.Dialer.
func (t *trusting) Dial(ctx context.Context, address string) (link.Conn, error) {
	d, err := t.current()
	if err != nil {
		return nil, err
	}
	return d.Dial(ctx, address)
}

func newDialer(c edgeconfig.EdgeHub, identity *join.Identity) (link.Dialer, error) {
	bounds := link.Default().OfEdge()
	bounds.Keepalive, bounds.IdleTimeout = c.Keepalive.Duration, c.IdleTimeout.Duration
	table := topic.NewTable().Receiving(topic.Down, topic.DownBounds())
	ws, err := wslink.NewDialer(wslink.DialConfig{Link: bounds, TLS: identity.TLS(), Table: table, Proxy: http.ProxyFromEnvironment})
	if err != nil {
		return nil, err
	}
	quic, err := quiclink.NewDialer(quiclink.DialConfig{Link: bounds, TLS: identity.TLS(), Table: table})
	if err != nil {
		return nil, err
	}
	overWS, overQUIC := atPort{ws, c.WebSocket.Port}, atPort{quic, c.QUIC.Port}
	switch c.Transport {
	case "websocket":
		return overWS, nil
	case "quic":
		return overQUIC, nil
	}
	return link.Auto(overQUIC, overWS), nil
}

// atPort dials hosts at the port of one transport, whichever port the hub names: a server is one
// host with a port for each transport.
type atPort struct {
	dialer link.Dialer
	port   int
}

func (d atPort) Dial(ctx context.Context, address string) (link.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("dialling %q: %w", address, err)
	}
	return d.dialer.Dial(ctx, net.JoinHostPort(host, strconv.Itoa(d.port)))
}
