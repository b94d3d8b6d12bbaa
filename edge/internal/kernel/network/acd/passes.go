package acd

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// ErrFiltered means that this host's own packet filter drops outgoing or incoming VRRP on an
// interface.
var ErrFiltered = errors.New("this device's packet filter drops IP protocol 112 (VRRP)")

// loopWait is how long the host's own packet is waited for: the kernel hands it back before it
// returns from the system call that sends it.
const loopWait = time.Second

// Passes reports whether this host's packet filter passes VRRP on an interface, both ways; the
// error is ErrFiltered if it does not. It sends one packet to VRRP's group (RFC 5798, 5.1) that no
// other host sees: with a TTL of 0 it does not leave the host (RFC 1112, 6.1), which receives its
// own packets to a group. It does not detect drops by a switch. A router of VRRP on this host
// ignores the packet, whose TTL is wrong.
func Passes(ctx context.Context, iface string, family netip.Addr) error {
	ifi, err := net.InterfaceByName(iface)
	if err != nil {
		return fmt.Errorf("%s: %w", iface, ErrNoCarrier)
	}
	network, any, group := "ip4:112", "0.0.0.0", &net.IPAddr{IP: net.IPv4(224, 0, 0, 18)}
	if family.Is6() {
		network, any, group = "ip6:112", "::", &net.IPAddr{IP: net.ParseIP("ff02::12"), Zone: iface}
	}
	conn, err := (&net.ListenConfig{}).ListenPacket(ctx, network, any)
	if err != nil {
		return fmt.Errorf("opening a socket for VRRP: %w", err)
	}
	defer conn.Close()
	if err := loopOnly(conn, ifi, family.Is6(), group); err != nil {
		return fmt.Errorf("setting up a socket for VRRP on %s: %w", iface, err)
	}
	word := make([]byte, 16)
	if _, err := rand.Read(word); err != nil {
		return fmt.Errorf("making a packet: %w", err)
	}
	word[0] = 0 // no version of VRRP
	if err := conn.SetDeadline(time.Now().Add(loopWait)); err != nil {
		return fmt.Errorf("setting up a socket for VRRP: %w", err)
	}
	if _, err := conn.WriteTo(word, group); errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%s: %w on its way out", iface, ErrFiltered)
	} else if err != nil {
		return fmt.Errorf("sending to VRRP's group on %s: %w", iface, err)
	}
	heard := make([]byte, snap)
	for {
		n, _, err := conn.ReadFrom(heard)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return fmt.Errorf("%s: %w", iface, ErrFiltered)
		case err != nil:
			return fmt.Errorf("listening for VRRP on %s: %w", iface, err)
		case bytes.Equal(heard[:n], word):
			return nil
		}
	}
}

// loopOnly makes a socket send to a group on one interface, and to this host alone.
func loopOnly(conn net.PacketConn, ifi *net.Interface, six bool, group *net.IPAddr) error {
	if six {
		p := ipv6.NewPacketConn(conn)
		return errors.Join(p.JoinGroup(ifi, group), p.SetMulticastInterface(ifi), p.SetMulticastHopLimit(0), p.SetMulticastLoopback(true))
	}
	p := ipv4.NewPacketConn(conn)
	return errors.Join(p.JoinGroup(ifi, group), p.SetMulticastInterface(ifi), p.SetMulticastTTL(0), p.SetMulticastLoopback(true))
}
