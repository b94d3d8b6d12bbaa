package netroute

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// NextHop is where the kernel would send a packet for an address now; one without Gateway means
// that the address is on the interface's own network.
func (d *Driver) NextHop(to netip.Addr) (Hop, error) {
	routes, err := d.handle.RouteGet(to.AsSlice())
	if err != nil {
		return Hop{}, fmt.Errorf("asking for the way to %s: %w", to, err)
	}
	if len(routes) == 0 {
		return Hop{}, fmt.Errorf("the way to %s: %w", to, ErrNoGateway)
	}
	l, err := d.handle.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		if missing := (netlink.LinkNotFoundError{}); errors.As(err, &missing) {
			return Hop{}, fmt.Errorf("the way to %s: %w", to, ErrNoLink)
		}
		return Hop{}, fmt.Errorf("asking for the interface to %s: %w", to, err)
	}
	return Hop{Gateway: addr(routes[0].Gw), Interface: l.Attrs().Name, Weight: 1}, nil
}

const pingEvery = 250 * time.Millisecond

// Ping sends ICMP echo requests through an interface ("" for the kernel's choice) until an answer
// arrives (nil) or ctx ends. It needs CAP_NET_RAW.
func (d *Driver) Ping(ctx context.Context, to netip.Addr, through string) error {
	var request, reply icmp.Type = ipv4.ICMPTypeEcho, ipv4.ICMPTypeEchoReply // RFC 792
	network := "ip4:icmp"
	if to.Is6() {
		request, reply, network = ipv6.ICMPTypeEchoRequest, ipv6.ICMPTypeEchoReply, "ip6:ipv6-icmp" // RFC 4443
		if to.IsLinkLocalUnicast() && through != "" {
			to = to.WithZone(through)
		}
	}
	var conn net.PacketConn
	err := d.inside(func() (err error) {
		conn, err = net.ListenPacket(network, "")
		return err
	})
	if err != nil {
		return fmt.Errorf("opening a socket for ICMP: %w", err)
	}
	defer conn.Close()
	mark := binary.BigEndian.AppendUint64(nil, rand.Uint64())
	question := icmp.Message{Type: request, Body: &icmp.Echo{Data: mark}}
	message, err := question.Marshal(nil) // the checksum of ICMPv6 is the kernel's work
	if err != nil {
		return fmt.Errorf("making an ICMP echo: %w", err)
	}
	buffer := make([]byte, 512)
	for {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("waiting for an answer of %s: %w", to, context.Cause(ctx))
		}
		// An error of one packet (no route at this moment) is as good as no answer to it.
		_, _ = conn.WriteTo(message, &net.IPAddr{IP: to.AsSlice(), Zone: to.Zone()})
		wait := time.Now().Add(pingEvery)
		if end, ok := ctx.Deadline(); ok && end.Before(wait) {
			wait = end
		}
		if err := conn.SetReadDeadline(wait); err != nil {
			return fmt.Errorf("waiting for an answer of %s: %w", to, err)
		}
		for {
			n, _, err := conn.ReadFrom(buffer)
			if err != nil {
				break
			}
			m, err := icmp.ParseMessage(reply.Protocol(), buffer[:n])
			if err != nil || m.Type != reply {
				continue // the socket receives all of this host's ICMP
			}
			if echo, ok := m.Body.(*icmp.Echo); ok && bytes.Equal(echo.Data, mark) {
				return nil
			}
		}
	}
}

// inside runs f on a thread of the driver's network namespace.
func (d *Driver) inside(f func() error) error {
	now, err := netns.Get()
	if err != nil {
		return fmt.Errorf("opening the network namespace: %w", err)
	}
	defer now.Close()
	if now.Equal(d.ns) {
		return f()
	}
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: a thread in another namespace ends with its goroutine
		if err := netns.Set(d.ns); err != nil {
			result <- fmt.Errorf("entering the network namespace: %w", err)
			return
		}
		result <- f()
	}()
	return <-result
}
