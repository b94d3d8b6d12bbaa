package contact

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/quic-go/quic-go"
	"golang.org/x/time/rate"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/recovery"
	"github.com/skerry-io/skerry/edge/internal/site/peers"
)

// event changes the core by f, and performs its actions.
func (a *Agent) event(ctx context.Context, f func(now time.Time, c *core)) {
	a.mu.Lock()
	f(time.Now(), a.core)
	do, changed := a.core.take()
	var closes []*session
	for _, x := range do {
		if one := a.conns[x.conn]; x.verb == doClose && one != nil {
			closes = append(closes, one)
		}
	}
	for _, node := range changed {
		p := a.core.peers[node]
		if p == nil {
			delete(a.logged, node)
		} else if p.status != a.logged[node] {
			a.logged[node] = p.status
			klog.FromContext(ctx).V(2).Info("Contact status changed", "device", node, "status", p.status.String(), "address", p.at.String())
		}
	}
	a.mu.Unlock()
	for _, one := range closes {
		one.close("replaced, or given up")
	}
	for _, x := range do {
		switch x.verb {
		case doAsk:
			go a.ask(ctx, x)
		case doDial:
			go a.dial(ctx, x.node)
		case doReset:
			a.deaths.Add(1)
			go a.forget(ctx, x.node)
		case doKeep:
			poke(a.keep)
		case doClose:
		}
	}
	for _, node := range changed {
		a.config.Changed(node)
	}
	if len(changed) > 0 {
		poke(a.keep)
	}
	if len(do)+len(changed) > 0 {
		poke(a.wake)
	}
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// ask asks a peer's kernel; at most one question a peer is under way.
func (a *Agent) ask(ctx context.Context, x action) {
	yes, err := a.config.Network.Answers(ctx, x.at, window)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Failed to probe an unresponsive peer", "device", x.node, "err", err)
		a.event(ctx, func(now time.Time, c *core) { c.unasked(now, x.node) })
	} else {
		a.event(ctx, func(now time.Time, c *core) { c.answered(now, x.node, yes) })
	}
	poke(a.wake)
}

// forget has TCP connections to a device's pods end with a reset.
func (a *Agent) forget(ctx context.Context, node string) {
	a.mu.Lock()
	var ranges []netip.Prefix
	if p := a.core.peers[node]; p != nil {
		ranges = slices.Clone(p.ranges)
	}
	a.mu.Unlock()
	if a.config.Forget == nil || len(ranges) == 0 {
		return
	}
	n, err := a.config.Forget(ranges)
	a.forgotten.Add(uint64(n))
	if err != nil {
		klog.FromContext(ctx).Error(err, "Failed to end some connections to the pods of a dead device: they end by their own timeouts", "device", node)
	}
}

// mayDial judges a device of the site that connects to this one.
func (a *Agent) mayDial(m *peers.Member, with string) error {
	switch {
	case m.Node == a.config.Node:
		return errors.New("this is my own certificate")
	case with == programProtocol && !a.admission.allows(with+" "+m.Node):
		return fmt.Errorf("%s asks for programs too often", m.Node)
	case with == programProtocol: // each device may ask
		return nil
	case m.Node > a.config.Node:
		return fmt.Errorf("%s is to wait for my connection", m.Node)
	case !a.admission.allows(m.Node):
		return fmt.Errorf("%s connects too often", m.Node)
	}
	return nil
}

// dial tries all addresses that a device may have at once; the first that shows its
// certificate counts.
func (a *Agent) dial(ctx context.Context, node string) {
	a.mu.Lock()
	if a.dialing[node] || a.core.peers[node] == nil || a.core.peers[node].conn != 0 {
		a.mu.Unlock()
		return
	}
	a.dialing[node] = true
	to := a.candidates(node)
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		delete(a.dialing, node)
		a.mu.Unlock()
	}()
	secure := a.config.Trust.config(a.config.Site.Current, named(node), func(err error) { a.refuse(ctx, node, err) }, protocol)
	dialling, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	got := make(chan *quic.Conn, len(to))
	var all sync.WaitGroup
	for _, at := range to {
		all.Go(func() {
			conn, err := a.transport.Dial(dialling, net.UDPAddrFromAddrPort(at), secure, quicConfig())
			if err != nil {
				klog.FromContext(ctx).V(4).Info("Failed to connect to a device of the site", "device", node, "address", at.String(), "err", err)
				return
			}
			cancel() // the others are not needed
			got <- conn
		})
	}
	all.Wait()
	close(got)
	first := true
	for conn := range got {
		if !first {
			_ = conn.CloseWithError(0, "another way was faster")
			continue
		}
		first = false
		go a.serve(ctx, conn)
	}
}

// named admits one device alone.
func named(node string) func(*peers.Member, string) error {
	return func(m *peers.Member, _ string) error {
		if m.Node != node {
			return fmt.Errorf("this is %s, not %s", m.Node, node)
		}
		return nil
	}
}

// candidates returns possible addresses of a device: its last one, that of its beacon, and that
// seen by the cloud. mu is held.
func (a *Agent) candidates(node string) (all []netip.AddrPort) {
	add := func(at netip.AddrPort) {
		if at.Addr().IsValid() && !slices.Contains(all, at) {
			all = append(all, at)
		}
	}
	if p := a.core.peers[node]; p != nil {
		add(netip.AddrPortFrom(p.at, uint16(a.config.Port)))
	}
	for _, at := range a.found[node] {
		add(at)
	}
	if m := a.config.Site.Current().Member(node); m != nil {
		for _, address := range m.Addresses {
			add(netip.AddrPortFrom(address, uint16(a.config.Port)))
		}
	}
	return all
}

// refuse counts a connection that was refused for the certificate of its other end.
func (a *Agent) refuse(ctx context.Context, peer string, why error) {
	a.refused.Add(1)
	klog.FromContext(ctx).V(2).Info("Rejected a peer connection", "peer", peer, "err", why)
}

// session admits a peer's connection once more and registers it; nil for one that is refused.
func (a *Agent) session(ctx context.Context, conn *quic.Conn) *session {
	certs := conn.ConnectionState().TLS.PeerCertificates
	m, err := a.config.Trust.admit(certs, a.config.Site.Current())
	a.mu.Lock()
	defer a.mu.Unlock()
	if err == nil {
		_, err = a.config.Site.Current().Admits(certs[0]) // takeSite may have closed those of before
	}
	if err != nil {
		a.refuse(ctx, conn.RemoteAddr().String(), err)
		_ = conn.CloseWithError(0, "refused")
		return nil
	}
	a.nextConn++
	s := &session{id: a.nextConn, node: m.Node, conn: conn, certificate: certs[0]}
	a.conns[s.id] = s
	return s
}

// serve exchanges reports and heartbeats with a peer until the connection ends.
func (a *Agent) serve(ctx context.Context, conn *quic.Conn) {
	log := klog.FromContext(ctx)
	s := a.session(ctx, conn)
	if s == nil {
		return
	}
	remote, _ := conn.RemoteAddr().(*net.UDPAddr)
	a.event(ctx, func(now time.Time, c *core) { c.connected(now, s.node, s.id, remote.AddrPort().Addr().Unmap()) })
	ended, stop := context.WithCancel(conn.Context())
	var parts sync.WaitGroup
	for _, part := range []func(context.Context, *session) error{a.sendHeartbeats, a.receiveHeartbeats, a.sendReports, a.receiveReports} {
		parts.Go(func() {
			if err := recovery.Do(ended, "contact", func() error { return part(ended, s) }); err != nil && ended.Err() == nil {
				log.V(2).Info("Closing the connection with a device of the site", "device", s.node, "err", err)
			}
			s.close("ended")
		})
	}
	select {
	case <-conn.Context().Done():
	case <-ctx.Done():
		s.close("edgecore stops")
	}
	stop()
	parts.Wait()
	a.mu.Lock()
	delete(a.conns, s.id)
	a.mu.Unlock()
	a.event(ctx, func(now time.Time, c *core) { c.closed(now, s.node, s.id) })
	poke(a.wake)
}

func (a *Agent) closeAll() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.conns {
		s.close("edgecore stops")
	}
}

// sendHeartbeats sends heartbeats. A datagram is not sent again: a lost one is old.
func (a *Agent) sendHeartbeats(ctx context.Context, s *session) error {
	tick := time.NewTicker(Keepalive)
	defer tick.Stop()
	for {
		if err := s.conn.SendDatagram([]byte{0}); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// receiveHeartbeats counts verified packets, not all that arrived at the socket.
func (a *Agent) receiveHeartbeats(ctx context.Context, s *session) error {
	limit := rate.NewLimiter(heartbeatRate, heartbeatBurst)
	for {
		if _, err := s.conn.ReceiveDatagram(ctx); err != nil {
			return err
		}
		if !limit.Allow() {
			return fmt.Errorf("more than %d heartbeats in a second: %w", heartbeatRate, errBounds)
		}
		a.mu.Lock() // its consequences can wait for the next tick
		a.core.heartbeat(time.Now(), s.node, s.id)
		a.mu.Unlock()
	}
}

// sendReports sends the kubelet's status of this device's pods, now and at each change.
func (a *Agent) sendReports(ctx context.Context, s *session) error {
	stream, err := s.conn.OpenUniStreamSync(ctx)
	if err != nil {
		return err
	}
	for {
		a.mu.Lock()
		report, changed := encodeReport(a.config.Boot, a.sequence, a.own, a.tunnel, a.lan), a.changedOwn
		a.mu.Unlock()
		// A peer that does not read counts as gone.
		if err := stream.SetWriteDeadline(time.Now().Add(idle)); err != nil {
			return err
		}
		if err := writeFrame(stream, report); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(reportInterval):
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

func (a *Agent) receiveReports(ctx context.Context, s *session) error {
	stream, err := s.conn.AcceptUniStream(ctx)
	if err != nil {
		return err
	}
	limit := rate.NewLimiter(reportRate, reportBurst)
	for {
		m, err := readFrame(stream)
		if err != nil {
			return err
		}
		if !limit.Allow() {
			return fmt.Errorf("more than %d reports in a second: %w", reportRate, errBounds)
		}
		var ranges []netip.Prefix
		if member := a.config.Site.Current().Member(s.node); member != nil {
			ranges = member.Ranges()
		}
		w, dropped, err := readReport(m, ranges)
		if err != nil {
			return err
		}
		a.dropped.Add(uint64(dropped))
		a.event(ctx, func(now time.Time, c *core) {
			c.heartbeat(now, s.node, s.id)
			c.receive(s.node, s.id, w)
		})
	}
}
