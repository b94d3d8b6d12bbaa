package contact

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/quic-go/quic-go"

	"github.com/skerry-io/skerry/common/recovery"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/lan"
)

// A program comes over a connection of its own: the windows and the order of a connection's data
// are its own too, so that no byte of a program is in front of a heartbeat. A device of an older
// release does not offer the protocol, and its TLS ends the connection (RFC 7301, 3.2).

const (
	// maxPrograms bounds the connections of devices that ask for programs; one more is closed.
	maxPrograms = 8
	// programWindow is how many bytes of a program may be under way to this device. They may all
	// wait in a queue of the network, in front of a sign of life: for a second where that has 512
	// kbit/s. With a round trip of 10 ms they suffice for 6 MB a second.
	programWindow = 64 << 10
)

var errNotConnected = errors.New("there is no connection with this device on a network of this one")

// Connected returns the devices with which there is a connection now and that are on a network of
// this device, by name.
func (a *Agent) Connected() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []string
	for _, node := range slices.Sorted(maps.Keys(a.core.peers)) {
		if a.near(node).IsValid() {
			all = append(all, node)
		}
	}
	return all
}

// near is where a connected device is on a network of this one; the zero value for one that is
// reached through a router or a tunnel, which may be the thin link itself. mu is held.
func (a *Agent) near(node string) netip.AddrPort {
	p := a.core.peers[node]
	if p == nil || p.conn == 0 {
		return netip.AddrPort{}
	}
	all := a.candidates(node)
	if p.report != nil {
		for _, at := range p.report.LAN {
			all = append(all, netip.AddrPortFrom(at, uint16(a.config.Port)))
		}
	}
	for _, at := range all {
		if slices.ContainsFunc(a.networks, func(n lan.Network) bool {
			return n.Carrier && !n.Tunnel && n.Prefix.Contains(at.Addr()) && n.Prefix.Addr() != at.Addr()
		}) {
			return at
		}
	}
	return netip.AddrPort{}
}

// DialPrograms connects to a device on a network of this one, to ask for programs. The connection
// ends when the device is no longer a member of the site.
func (a *Agent) DialPrograms(ctx context.Context, node string) (*Stream, error) {
	a.mu.Lock()
	transport, at := a.transport, a.near(node)
	a.mu.Unlock()
	if transport == nil || !at.IsValid() {
		return nil, errNotConnected
	}
	secure := a.config.Trust.config(a.config.Site.Current, named(node), func(err error) { a.refuse(ctx, node, err) }, programProtocol)
	dialling, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := transport.Dial(dialling, net.UDPAddrFromAddrPort(at), secure, &quic.Config{
		HandshakeIdleTimeout: dialTimeout / 2, MaxIdleTimeout: idle, KeepAlivePeriod: Keepalive, DisablePathMTUDiscovery: true,
		InitialStreamReceiveWindow: programWindow, MaxStreamReceiveWindow: programWindow, InitialConnectionReceiveWindow: programWindow, MaxConnectionReceiveWindow: programWindow,
		MaxIncomingStreams: -1, MaxIncomingUniStreams: 1,
	})
	if err != nil {
		return nil, fmt.Errorf("connecting to %s for a program: %w", node, err)
	}
	one := a.session(ctx, conn)
	if one == nil {
		return nil, fmt.Errorf("connecting to %s for a program: %w", node, errNotConnected)
	}
	context.AfterFunc(conn.Context(), func() { a.forgetSession(one) })
	s, err := newStream(dialling, conn)
	if err != nil {
		one.close("done")
		return nil, fmt.Errorf("connecting to %s for a program: %w", node, err)
	}
	return s, nil
}

func (a *Agent) forgetSession(s *session) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.conns, s.id)
}

// servePrograms answers a device that asks for programs, until the connection ends. Of two
// connections of a device the newer one counts: the older may be of an edgecore that has ended.
func (a *Agent) servePrograms(ctx context.Context, conn *quic.Conn) {
	s := a.session(ctx, conn)
	if s == nil {
		return
	}
	defer a.forgetSession(s)
	a.mu.Lock()
	others := 0
	var older []*session
	for _, o := range a.conns {
		switch {
		case o.asks && o.node == s.node:
			older = append(older, o)
		case o.asks:
			others++
		}
	}
	s.asks = true
	a.mu.Unlock()
	for _, o := range older {
		o.close("replaced")
	}
	if others >= maxPrograms {
		s.close("too many devices ask")
		return
	}
	defer s.close("ended")
	ended, stop := context.WithCancel(conn.Context())
	defer stop()
	defer context.AfterFunc(ctx, sync.OnceFunc(func() { s.close("edgecore stops") }))()
	opening, cancel := context.WithTimeout(ended, idle)
	stream, err := newStream(opening, conn)
	cancel()
	if err != nil {
		return
	}
	recovery.Call(ended, "programs", func() { a.config.Programs(ended, s.node, stream) })
}
