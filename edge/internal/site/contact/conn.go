package contact

import (
	"context"
	"crypto/x509"
	"errors"
	"net/netip"
	"sync"
	"time"

	"github.com/quic-go/quic-go"
	"golang.org/x/time/rate"

	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/edge/internal/site/peers"
)

// Bounds of connections. A device that exceeds them is disconnected, and is met again when it keeps
// to them.
const (
	maxConns = 2 * peers.MaxMembers // with those in their handshake and those for programs
	// connectsEvery and connectBurst bound how often one device may connect.
	connectsEvery = time.Second
	connectBurst  = 8
	// heartbeats and reports of a device in a second.
	heartbeatRate, heartbeatBurst = 20, 60
	reportRate, reportBurst       = 12, 40
	dialTimeout                   = 1500 * time.Millisecond
)

func quicConfig() *quic.Config {
	return &quic.Config{
		HandshakeIdleTimeout: dialTimeout / 2, // the whole handshake may take twice this
		MaxIdleTimeout:       idle, EnableDatagrams: true, DisablePathMTUDiscovery: true,
		InitialStreamReceiveWindow: maxFrame, MaxStreamReceiveWindow: maxFrame, InitialConnectionReceiveWindow: maxFrame, MaxConnectionReceiveWindow: maxFrame,
		MaxIncomingStreams: -1, MaxIncomingUniStreams: 1,
	}
}

// session is one connection with a peer.
type session struct {
	id          uint64
	node        string
	conn        *quic.Conn
	certificate *x509.Certificate
	asks        bool // the peer has opened it to ask for programs
}

func (s *session) close(reason string) { _ = s.conn.CloseWithError(0, reason) }

// admission bounds connections before any work is done for them.
type admission struct {
	shares *link.Shares[netip.Prefix]

	mu       sync.Mutex
	open     int
	connects map[string]*rate.Limiter // by device, and by device for programs; bounded by the site's members
}

func newAdmission() *admission {
	return &admission{shares: link.NewShares[netip.Prefix](maxConns), connects: map[string]*rate.Limiter{}}
}

var errTooMany = errors.New("too many connections")

func (x *admission) admit(ctx context.Context, client *quic.ClientInfo) (context.Context, error) {
	leave, ok := x.shares.Enter(link.Source(client.RemoteAddr))
	if !ok {
		return nil, errTooMany
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.open >= maxConns {
		leave()
		return nil, errTooMany
	}
	x.open++
	context.AfterFunc(ctx, func() {
		leave()
		x.mu.Lock()
		defer x.mu.Unlock()
		x.open--
	})
	return ctx, nil
}

// busy: from half of the bound on, a client must prove its address first (RFC 9000, 8.1.2).
func (x *admission) busy() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.open >= maxConns/2
}

// allows reports whether a device may connect once more.
func (x *admission) allows(node string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.connects[node] == nil {
		if len(x.connects) > 4*peers.MaxMembers { // of devices that have left long ago
			clear(x.connects)
		}
		x.connects[node] = rate.NewLimiter(rate.Every(connectsEvery), connectBurst)
	}
	return x.connects[node].Allow()
}
