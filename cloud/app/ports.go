package app

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"

	"github.com/skerry-io/skerry/cloud/internal/core/config"
	"github.com/skerry-io/skerry/cloud/internal/trust/join"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/link/quiclink"
	"github.com/skerry-io/skerry/common/link/wslink"
	"github.com/skerry-io/skerry/common/topic"
)

// handshakesAtOnce bounds the links that are no sessions yet. Listeners take so many more than
// hub.maxSessions, so that the hub itself answers a device above the bound with whether another
// replica has a place, and admits one that has a place already.
const handshakesAtOnce = 512

// ports are cloudcore's listeners, opened before anything is served: a port that is taken ends the
// start with the name of its field. One that is switched off is nil.
type ports struct {
	links   []link.Listener
	devices *devicePort

	join, tunnel, usage, subresources net.Listener
	endpoint                          net.Listener // of the tunnel, by nodes' names
}

// open opens the configured listeners. Those opened before an error are closed by close.
func (p *ports) open(ctx context.Context, c *config.Config, ca *join.CA, secure *tls.Config) error {
	if err := p.openLinks(ctx, c, ca, secure); err != nil {
		return err
	}
	for _, l := range []struct {
		field, at string
		to        *net.Listener
	}{
		{"join.listen", c.Join.Listen.Listen, &p.join},
		{"tunnel.listen", c.Tunnel.Listen.Listen, &p.tunnel},
		{"tunnel.endpoint.listen", c.Tunnel.Endpoint.Listen.Listen, &p.endpoint},
		{"usage.listen", c.Usage.Listen, &p.usage},
		{"subresources.listen", c.Subresources.Listen, &p.subresources},
	} {
		if l.at == "" {
			continue
		}
		opened, err := net.Listen("tcp", l.at)
		if err != nil {
			return fmt.Errorf("%s: %w", l.field, err)
		}
		*l.to = opened
	}
	return nil
}

// openLinks opens the ports for devices: the one port for everything, and those of a transport
// alone.
func (p *ports) openLinks(ctx context.Context, c *config.Config, ca *join.CA, secure *tls.Config) error {
	bounds := link.Default().OfCloud()
	bounds.Keepalive, bounds.IdleTimeout = c.Hub.Keepalive.Duration, c.Hub.IdleTimeout.Duration
	table := topic.NewTable().Receiving(topic.Up, topic.UpBounds())
	websocket := func(field, at string, socket net.Listener) error {
		l, err := wslink.Listen(ctx, at, wslink.ListenConfig{Link: bounds, TLS: secure, Table: table, MaxLinks: c.Hub.MaxSessions + handshakesAtOnce, Socket: socket})
		if err != nil {
			return fmt.Errorf("%s: %w", field, err)
		}
		p.links = append(p.links, l)
		return nil
	}
	quic := func(field, at string) error {
		// Stateless resets tell the edges of a cloudcore that was killed at once; the key must be
		// the same after the restart and on every replica.
		key, err := ca.Derive("skerry quic stateless reset")
		if err != nil {
			return err
		}
		l, err := quiclink.Listen(ctx, at, quiclink.ListenConfig{Link: bounds, TLS: secure, Table: table, MaxLinks: c.Hub.MaxSessions + handshakesAtOnce, ResetKey: &key})
		if err != nil {
			return fmt.Errorf("%s: %w", field, err)
		}
		p.links = append(p.links, l)
		return nil
	}
	if at := c.Devices.Listen.Listen; at != "" {
		const field = "devices.listen"
		var err error
		if p.devices, err = listenForDevices(at, c.Devices.Port); err != nil {
			return fmt.Errorf("%s: %w", field, err)
		}
		if err := websocket(field, "", p.devices.links); err != nil {
			return err
		}
		if err := quic(field, at); err != nil {
			return err
		}
	}
	if at := c.Hub.WebSocket.Listen; at != "" {
		if err := websocket("hub.websocket.listen", at, nil); err != nil {
			return err
		}
	}
	if at := c.Hub.QUIC.Listen; at != "" {
		return quic("hub.quic.listen", at)
	}
	return nil
}

// close closes all of them; those whose module ran are closed already.
func (p *ports) close() {
	for _, l := range p.links {
		_ = l.Close()
	}
	for _, l := range []net.Listener{p.join, p.tunnel, p.endpoint, p.usage, p.subresources} {
		if l != nil {
			_ = l.Close()
		}
	}
	if p.devices != nil {
		p.devices.close()
	}
}

// joins are the listeners at which devices join.
func (p *ports) joins() []net.Listener {
	var all []net.Listener
	if p.devices != nil {
		all = append(all, p.devices.joins)
	}
	if p.join != nil {
		all = append(all, p.join)
	}
	return all
}

// linkAddresses are where devices find the hub, by each of the hosts: at the one port,
// where there is one.
func (p *ports) linkAddresses(c *config.Config) (websocket, quic []string) {
	if p.devices != nil {
		all := p.devices.addresses(c.Advertise)
		return all, all
	}
	return advertised(c.Advertise, c.Hub.WebSocket), advertised(c.Advertise, c.Hub.QUIC)
}

// advertised is where devices find a listener, by each of the hosts.
func advertised(hosts []string, l config.Listen) []string {
	if l.Listen == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(l.Listen)
	if err != nil {
		return nil // refused by the configuration's rules
	}
	all := make([]string, len(hosts))
	for i, host := range hosts {
		all[i] = net.JoinHostPort(host, port)
	}
	return all
}
