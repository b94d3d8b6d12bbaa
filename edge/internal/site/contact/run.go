package contact

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/quic-go/quic-go"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/atomicfile"
	"github.com/skerry-io/skerry/common/link/quiclink"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/lan"
)

// Name implements beehive.Module.
func (*Agent) Name() message.Name { return Name }

// Run implements beehive.Module.
func (a *Agent) Run(ctx context.Context, port *beehive.Port) error {
	return a.Serve(ctx, port.Ready)
}

// Serve keeps the contact until ctx ends.
func (a *Agent) Serve(ctx context.Context, ready func()) error {
	udp, err := a.config.Network.Listen(a.config.Port)
	if err != nil {
		return err
	}
	changes, err := a.config.Network.Subscribe()
	if err != nil {
		_ = udp.Close()
		return err
	}
	transport := &quic.Transport{
		Conn: quiclink.Tolerant(udp, &a.lost), ConnContext: a.admission.admit,
		VerifySourceAddress: func(net.Addr) bool { return a.admission.busy() },
	}
	a.mu.Lock() // DialPrograms reads it
	a.transport = transport
	a.mu.Unlock()
	protocols := []string{protocol}
	if a.config.Programs != nil {
		protocols = append(protocols, programProtocol)
	}
	listener, err := a.transport.Listen(a.config.Trust.config(a.config.Site.Current, a.mayDial, func(err error) { a.refuse(ctx, "a device that connects", err) }, protocols...), quicConfig())
	if err != nil {
		_ = udp.Close()
		return fmt.Errorf("listening for the devices of the site: %w", err)
	}
	g, ctx := errgroup.WithContext(ctx)
	changed := make(chan struct{}, 1)
	g.Go(func() error { return a.accept(ctx, listener) })
	g.Go(func() error { return a.receiveBeacons(ctx) })
	g.Go(func() error { return changes.Run(ctx, func() { poke(changed) }) })
	g.Go(func() error { return a.loop(ctx) })
	g.Go(func() error { return a.beacons(ctx) })
	g.Go(func() error { return a.keepMet(ctx) })
	g.Go(func() error {
		<-ctx.Done()
		a.closeAll()
		_ = listener.Close()
		_ = a.transport.Close()
		return udp.Close()
	})
	if !a.look(ctx, udp) {
		poke(changed)
	}
	g.Go(func() error {
		a.followNetworks(ctx, udp, changed)
		return nil
	})
	ready()
	err = g.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// loop performs the core's actions when they are due.
func (a *Agent) loop(ctx context.Context) error {
	site := a.config.Site.Changed()
	a.event(ctx, func(now time.Time, _ *core) { a.takeSite(now) }) // it may have changed since Load
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-a.wake:
		case <-site:
			a.event(ctx, func(now time.Time, _ *core) { a.takeSite(now) })
		}
		a.event(ctx, func(now time.Time, c *core) { c.tick(now) })
		a.mu.Lock()
		next := a.core.next()
		a.mu.Unlock()
		wait := time.Minute
		if !next.IsZero() {
			wait = min(wait, max(time.Until(next), time.Millisecond))
		}
		timer.Reset(wait)
	}
}

// followNetworks reads the networks after each change, and again after a while if that failed.
func (a *Agent) followNetworks(ctx context.Context, udp *net.UDPConn, changed <-chan struct{}) {
	pause := lookMin
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-again:
		}
		if a.look(ctx, udp) {
			again, pause = nil, lookMin
			continue
		}
		again = time.After(pause)
		pause = min(2*pause, lookMost)
	}
}

// look compares the networks with the peers' addresses: on a network without carrier no peer is
// alive. Networks that can't be read are not compared. false: it is to look again.
func (a *Agent) look(ctx context.Context, udp *net.UDPConn) bool {
	all, err := a.config.Network.Networks()
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Failed to read the device's networks", "err", err)
		return false
	}
	joined := a.config.Network.Join(udp)
	if joined != nil {
		klog.FromContext(ctx).V(2).Info("Failed to join the group of beacons on all networks", "err", joined)
	}
	s := a.config.Site.Current()
	a.event(ctx, func(now time.Time, c *core) {
		a.networks = all
		carrier := slices.ContainsFunc(all, func(n lan.Network) bool { return n.Carrier })
		for node, p := range c.peers {
			at := p.at
			if m := s.Member(node); !at.IsValid() && m != nil && len(m.Addresses) > 0 {
				at = m.Addresses[0]
			}
			gone := !carrier
			on := func(n lan.Network) bool { return n.Prefix.Contains(at) }
			if i := slices.IndexFunc(all, on); i >= 0 {
				gone = !slices.ContainsFunc(all, func(n lan.Network) bool { return on(n) && n.Carrier })
			}
			switch {
			case gone:
				a.cut[node] = true
				c.cut(node)
			case a.cut[node]:
				delete(a.cut, node)
				c.uncut(now, node)
			default:
				c.seen(now, node) // a new address, for example
			}
		}
	})
	poke(a.wake)
	return joined == nil
}

// keepMet keeps the state that must outlive edgecore.
func (a *Agent) keepMet(ctx context.Context) error {
	var last string
	for {
		select {
		case <-ctx.Done():
			a.mu.Lock()
			_, _, state := a.kept()
			a.mu.Unlock()
			a.keepRun(ctx, state) // of the last moment
			return nil
		case <-a.keep:
		}
		a.mu.Lock()
		names, owners, state := a.kept()
		a.mu.Unlock()
		raw, err := json.Marshal(names)
		keys, keysErr := json.Marshal(owners)
		err = errors.Join(err, keysErr)
		if all := string(raw) + string(keys); err == nil && all != last {
			if err = a.config.Memory.Save(ctx, map[string][]byte{metKey: raw, ownersKey: keys}); err == nil {
				last = all
			}
		}
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Failed to save peer state")
		}
		a.keepRun(ctx, state)
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond): // one write for a wave of changes
		}
	}
}

// kept is the state that outlives edgecore: over a reboot, and without one. mu is held.
func (a *Agent) kept() ([]string, map[string]string, runState) {
	names := slices.Sorted(maps.Keys(a.core.met))
	if names == nil {
		names = []string{}
	}
	owners := map[string]string{}
	for key, node := range a.core.owners {
		owners[hex.EncodeToString(key[:])] = node
	}
	state := runState{Boot: a.config.Boot, Peers: map[string]runPeer{}}
	for node, p := range a.core.peers {
		if !p.holds() {
			continue
		}
		one := runPeer{At: p.at, Boot: p.report.Boot, Sequence: p.report.Sequence, Tunnel: p.report.Tunnel}
		for _, pod := range p.report.Pods {
			one.Pods = append(one.Pods, pod)
		}
		slices.SortFunc(one.Pods, func(x, y Pod) int { return cmp.Compare(x.UID, y.UID) })
		state.Peers[node] = one
	}
	return names, owners, state
}

func (a *Agent) keepRun(ctx context.Context, s runState) {
	if a.config.RunFile == "" {
		return
	}
	raw, err := json.Marshal(s)
	if err == nil {
		err = atomicfile.Write(a.config.RunFile, raw, 0o600)
	}
	if err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).V(2).Info("Failed to save the peers' reports for a restart", "err", err)
	}
}

// beacons announces this device for as long as another one is missing.
func (a *Agent) beacons(ctx context.Context) error {
	packet, err := encodeBeacon(a.config.Node, a.config.Port)
	if err != nil {
		return err
	}
	since := time.Now()
	for {
		wait := beaconEvery
		a.mu.Lock()
		missing := a.core.missing()
		a.mu.Unlock()
		switch {
		case !missing:
			since = time.Now()
		default:
			if time.Since(since) > beaconEager {
				wait = beaconSlow
			}
			if err := a.config.Network.Beacon(packet, a.config.Port); err != nil {
				klog.FromContext(ctx).V(4).Info("Failed to send a beacon on some networks", "err", err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// receiveBeacons notes where devices may be. A beacon is no proof: the certificate is.
func (a *Agent) receiveBeacons(ctx context.Context) error {
	limit := rate.NewLimiter(100, 200) // enough for a whole site that starts at once; further beacons are ignored
	replies := map[string]time.Time{}  // bounded by the site's members
	buffer := make([]byte, 2048)
	for {
		n, from, err := a.transport.ReadNonQUICPacket(ctx, buffer)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("reading beacons: %w", err)
		}
		if !limit.Allow() {
			continue
		}
		node, port, err := readBeacon(buffer[:n])
		source, ok := from.(*net.UDPAddr)
		if err != nil || !ok || node == a.config.Node {
			continue
		}
		at := netip.AddrPortFrom(source.AddrPort().Addr().Unmap(), port)
		known, answer := false, false
		a.event(ctx, func(now time.Time, c *core) {
			p := c.peers[node]
			if known = p != nil; !known || p.conn != 0 {
				return
			}
			a.note(node, at)
			c.seen(now, node)
			answer = !c.dials(node)
		})
		if known {
			poke(a.wake)
		}
		// A peer that must dial us may not have our address.
		if answer && time.Since(replies[node]) > beaconEvery {
			replies[node] = time.Now()
			if packet, err := encodeBeacon(a.config.Node, a.config.Port); err == nil {
				_, _ = a.transport.WriteTo(packet, net.UDPAddrFromAddrPort(at)) // lost, as any packet may be
			}
		}
	}
}

// note keeps an address of a device. mu is held.
func (a *Agent) note(node string, at netip.AddrPort) {
	all := slices.DeleteFunc(a.found[node], func(x netip.AddrPort) bool { return x == at })
	all = append([]netip.AddrPort{at}, all...)
	a.found[node] = all[:min(len(all), found)]
}
func (a *Agent) accept(ctx context.Context, l *quic.Listener) error {
	for {
		conn, err := l.Accept(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("accepting a device of the site: %w", err)
		}
		if conn.ConnectionState().TLS.NegotiatedProtocol == programProtocol {
			go a.servePrograms(ctx, conn)
			continue
		}
		go a.serve(ctx, conn)
	}
}
