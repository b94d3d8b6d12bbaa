package app

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/link/quiclink"
	"github.com/skerry-io/skerry/common/link/wslink"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/version"
	"github.com/skerry-io/skerry/edge/internal/core/edgehub"
	"github.com/skerry-io/skerry/edge/internal/setup/bundle"
	edgeconfig "github.com/skerry-io/skerry/edge/internal/setup/config"
	"github.com/skerry-io/skerry/edge/internal/setup/join"
	"github.com/skerry-io/skerry/edge/internal/setup/tunnel"
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

// servers are the hosts of cloudcore: configured, or the one that the device joined.
func (a *App) servers() []string {
	if all := a.config.Modules.EdgeHub.Servers; len(all) > 0 {
		return all
	}
	server := a.identity.Cluster().Server
	host, _, err := net.SplitHostPort(server)
	if err != nil {
		host = strings.Trim(server, "[]") // it was joined without a port
	}
	if host == "" {
		return nil
	}
	return []string{host}
}

func (a *App) newHub() (*edgehub.Hub, error) {
	c := a.config.Modules.EdgeHub
	servers := a.servers()
	if len(servers) == 0 {
		return nil, fmt.Errorf("the cluster's server %q has no host; set modules.edgeHub.servers", a.identity.Cluster().Server)
	}
	addresses := make([]string, len(servers))
	for i, s := range servers {
		addresses[i] = net.JoinHostPort(s, strconv.Itoa(c.WebSocket.Port))
	}
	streams := tunnel.Config{Kubelet: a.kubelet, Status: func(accept string) ([]byte, string, error) {
		if a.statusFor == nil {
			return nil, "", errors.New("this program shows no status")
		}
		return a.statusFor(accept)
	}}
	streams.Rehearsal, streams.Recorder = a.rehearsed, a.recorded
	streams.Bundle = func(ctx context.Context, w io.Writer) error {
		if a.packBundle == nil {
			return errors.New("this program packs no bundle")
		}
		return a.packBundle(ctx, w, bundle.MaxFileOverLink)
	}
	if a.config.Modules.Tunnel.Subresources {
		streams.Subresources = a.dialKubelet
	}
	a.tunnel = tunnel.New(streams)
	parts := map[message.Kind]edgehub.Part{topic.KindStream: a.tunnel}
	if a.site != nil {
		parts[topic.KindSite] = a.site
	}
	if a.nodeMetrics != nil {
		parts[topic.KindMetrics] = a.nodeMetrics
	}
	return edgehub.New(edgehub.Config{
		Protocols: a.protocols, Rescued: a.rescue.opened,
		Servers: addresses, Dialer: a.dialer, Epochs: a.store, Alive: a.meta.KubeletAlive, Version: version.Skerry(), BootID: bootID(), Machine: machineID(a.config),
		Keepalive: c.Keepalive.Duration, BackoffMin: c.BackoffMin.Duration, BackoffMax: c.BackoffMax.Duration,
		Trust: a.identity, Report: a.report,
		Parts: parts,
	})
}

// report is the state of the device that its heartbeats carry.
func (a *App) report() edgehub.Report {
	r := edgehub.Report{CertificateEnd: a.identity.Status().NotAfter}
	r.Backlog, r.BacklogAge = a.meta.Backlog(time.Now())
	return r
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
