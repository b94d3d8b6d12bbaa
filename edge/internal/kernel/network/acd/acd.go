// Package acd asks a LAN whether another host has an address, before a node of ours takes it, and
// listens for other VRRP routers there: address conflict detection, by an ARP probe for IPv4 (RFC
// 5227) and by a neighbour solicitation as duplicate address detection sends it for IPv6 (RFC 4862,
// 5.4).
//
// It owns no state and changes no table, neither here nor on other hosts: a probe has no sender
// address. It returns an error for an interface without carrier, where no host could answer. A node
// that holds the address by VRRP is no conflict: it is recognized by its advertisements, which name
// the address (RFC 5798, 5). Probe may be called from any goroutine; it sees the network namespace
// of the calling thread, and runs in the calling goroutine alone.
package acd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// ErrNoCarrier means that the interface is missing, down, or without carrier: conflicts can't be
// detected now.
var ErrNoCarrier = errors.New("the interface has no carrier")

// RFC 5227 section 1.1 sends three probes, 1 to 2 s apart, and listens for 2 s more: times for
// hosts that all boot at once on a slow radio network. Here a service waits, and a host that is up
// answers within milliseconds; three probes are against loss.
const (
	probes = 3
	every  = 250 * time.Millisecond
	listen = 500 * time.Millisecond // after the last
)

// Target is an address to ask for.
type Target struct {
	Address netip.Addr
	// Patience is how long an advertisement of VRRP is waited for once a host has answered:
	// somewhat more than the holder's interval.
	Patience time.Duration
}

// Probe asks for all targets on an interface and returns the hardware addresses of other hosts that
// have one, without our own holders. It takes 1 s, and up to the longest patience if a host
// answers.
func Probe(ctx context.Context, iface string, targets []Target) (map[netip.Addr]net.HardwareAddr, error) {
	ifi, err := carrier(iface)
	if err != nil {
		return nil, err
	}
	if len(ifi.HardwareAddr) != macLen || ifi.Flags&net.FlagLoopback != 0 {
		return nil, nil // a link without hardware addresses has no ARP or neighbour discovery to ask with
	}
	p, err := open(ifi)
	if err != nil {
		return nil, err
	}
	defer p.conn.Close()
	found, err := p.run(ctx, targets)
	if err != nil {
		return nil, err
	}
	// The kernel drops packets for a link that has just lost its carrier before it reports that:
	// silence is no evidence then.
	if _, err := carrier(iface); err != nil {
		return nil, err
	}
	return found, nil
}

func carrier(iface string) (*net.Interface, error) {
	ifi, err := net.InterfaceByName(iface)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", iface, ErrNoCarrier)
	}
	const ready = net.FlagUp | net.FlagRunning
	if ifi.Flags&ready != ready {
		return nil, fmt.Errorf("%s: %w", iface, ErrNoCarrier)
	}
	return ifi, nil
}

// prober is one Probe.
type prober struct {
	conn *packet.Conn
	own  net.HardwareAddr
	all  map[string]bool // the hardware addresses of this host
	// asked are the probed addresses: other traffic of a busy LAN is not recorded. heard are the
	// hosts that answered, by address; held are the addresses that VRRP advertises.
	asked map[netip.Addr]bool
	heard map[netip.Addr]net.HardwareAddr
	held  map[netip.Addr]bool
}

func open(ifi *net.Interface) (*prober, error) { return openWith(ifi, program()) }

func openWith(ifi *net.Interface, program []bpf.Instruction) (*prober, error) {
	// In raw mode the kernel delivers whole frames of all kinds; the filter selects the relevant
	// ones.
	filter, err := bpf.Assemble(program)
	if err != nil {
		return nil, fmt.Errorf("making the filter: %w", err)
	}
	conn, err := packet.Listen(ifi, packet.Raw, unix.ETH_P_ALL, &packet.Config{Filter: filter})
	if err != nil {
		return nil, fmt.Errorf("opening a packet socket on %s: %w", ifi.Name, err)
	}
	p := &prober{conn: conn, own: ifi.HardwareAddr, all: map[string]bool{}, asked: map[netip.Addr]bool{}, heard: map[netip.Addr]net.HardwareAddr{}, held: map[netip.Addr]bool{}}
	if err := p.join(ifi.Index); err != nil {
		conn.Close()
		return nil, err
	}
	local, err := net.Interfaces()
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("listing the interfaces: %w", err)
	}
	for _, i := range local {
		p.all[string(i.HardwareAddr)] = true
	}
	return p, nil
}

// join adds the groups of VRRP to the card's filter; that of all nodes is always in it. packet(7).
func (p *prober) join(index int) error {
	raw, err := p.conn.SyscallConn()
	if err != nil {
		return fmt.Errorf("joining the groups of VRRP: %w", err)
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		for _, group := range [][]byte{{0x01, 0x00, 0x5e, 0, 0, 18}, {0x33, 0x33, 0, 0, 0, 0x12}} {
			m := &unix.PacketMreq{Ifindex: int32(index), Type: unix.PACKET_MR_MULTICAST, Alen: macLen}
			copy(m.Address[:], group)
			failed = errors.Join(failed, unix.SetsockoptPacketMreq(int(fd), unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, m))
		}
	})
	if err = errors.Join(err, failed); err != nil {
		return fmt.Errorf("joining the groups of VRRP: %w", err)
	}
	return nil
}

func (p *prober) run(ctx context.Context, targets []Target) (map[netip.Addr]net.HardwareAddr, error) {
	begin := time.Now()
	for _, t := range targets {
		p.asked[t.Address] = true
	}
	for n := range probes {
		for _, t := range targets {
			frame, to, err := question(p.own, t.Address)
			if err != nil {
				return nil, err
			}
			if _, err := p.conn.WriteTo(frame, &packet.Addr{HardwareAddr: to}); err != nil {
				// The last is the kernel's error while it takes a link without carrier out of
				// service.
				if errors.Is(err, unix.ENETDOWN) || errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENOBUFS) {
					return nil, fmt.Errorf("asking for %s: %w", t.Address, ErrNoCarrier)
				}
				return nil, fmt.Errorf("asking for %s: %w", t.Address, err)
			}
		}
		wait := every
		if n == probes-1 {
			wait = listen
		}
		if err := p.hear(ctx, time.Now().Add(wait), nil); err != nil {
			return nil, err
		}
	}
	// The host that answered may be a holder of ours whose next advertisement is yet to come.
	for _, t := range targets {
		if p.foreign(t.Address) {
			if err := p.hear(ctx, begin.Add(t.Patience), func() bool { return !p.foreign(t.Address) }); err != nil {
				return nil, err
			}
		}
	}
	out := map[netip.Addr]net.HardwareAddr{}
	for _, t := range targets {
		if p.foreign(t.Address) {
			out[t.Address] = p.heard[t.Address]
		}
	}
	return out, nil
}

// foreign reports whether a host that is no holder of ours has answered for the address.
func (p *prober) foreign(a netip.Addr) bool { return p.heard[a] != nil && !p.held[a] }

// hear processes received frames until a time, or until done.
func (p *prober) hear(ctx context.Context, until time.Time, done func() bool) error {
	// Short reads, so that the end of ctx is seen.
	const look = 100 * time.Millisecond
	frame := make([]byte, snap)
	for {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("listening: %w", context.Cause(ctx))
		}
		now := time.Now()
		if !now.Before(until) || done != nil && done() {
			return nil
		}
		if err := p.conn.SetReadDeadline(now.Add(min(look, until.Sub(now)))); err != nil {
			return fmt.Errorf("listening: %w", err)
		}
		n, _, err := p.conn.ReadFrom(frame)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			continue
		case errors.Is(err, unix.ENETDOWN):
			return fmt.Errorf("listening: %w", ErrNoCarrier)
		case err != nil:
			return fmt.Errorf("listening: %w", err)
		}
		p.take(frame[:n])
	}
}

// take processes one frame.
func (p *prober) take(frame []byte) {
	if len(frame) < etherLen || p.all[string(frame[6:12])] {
		return // our own question, as the socket shows it, or another interface of this host on the same LAN
	}
	if who, a, ok := answer(frame); ok {
		if p.asked[a] && !p.all[string(who)] {
			p.heard[a] = bytes.Clone(who)
		}
		return
	}
	for _, a := range advertised(frame) {
		if p.asked[a] {
			p.held[a] = true
		}
	}
}
