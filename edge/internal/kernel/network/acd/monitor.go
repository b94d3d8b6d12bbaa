package acd

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Advert is an advertisement of VRRP that another host sent (RFC 5798, 5.2; RFC 3768 for
// version 2).
type Advert struct {
	Interface string
	From      net.HardwareAddr
	Source    netip.Addr
	IPv6      bool
	VRID      uint8
	Priority  uint8 // 0: the sender releases the addresses
	Addresses []netip.Addr
	Interval  time.Duration // until the next one, according to the sender
}

// Names reports whether an advertisement is for an address.
func (a Advert) Names(address netip.Addr) bool {
	for _, x := range a.Addresses {
		if x == address {
			return true
		}
	}
	return false
}

// Monitor calls heard for each advertisement of VRRP that arrives on an interface from another
// host, by multicast or to this host, until ctx ends. The error is ErrNoCarrier when the interface
// is missing or was removed. heard is called by Monitor's goroutine and must not block for long:
// the kernel drops frames that do not fit into the socket's buffer.
func Monitor(ctx context.Context, iface string, heard func(Advert)) error {
	ifi, err := net.InterfaceByName(iface)
	if err != nil {
		return fmt.Errorf("%s: %w", iface, ErrNoCarrier)
	}
	p, err := openWith(ifi, vrrpOnly())
	if err != nil {
		return err
	}
	defer p.conn.Close()
	frame := make([]byte, snap)
	for ctx.Err() == nil {
		// Short reads, so that the end of ctx is seen.
		if err := p.conn.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
			return fmt.Errorf("listening for VRRP: %w", err)
		}
		n, _, err := p.conn.ReadFrom(frame)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			continue
		case errors.Is(err, unix.ENETDOWN), errors.Is(err, unix.ENODEV):
			return fmt.Errorf("listening for VRRP: %w", ErrNoCarrier)
		case err != nil:
			return fmt.Errorf("listening for VRRP: %w", err)
		}
		if n < etherLen || p.all[string(frame[6:12])] {
			continue
		}
		if a, ok := parseAdvert(frame[:n]); ok {
			a.Interface = iface
			heard(a)
		}
	}
	return nil
}

// parseAdvert reads a frame. Versions 2 and 3 differ in the field of the interval alone.
func parseAdvert(frame []byte) (a Advert, ok bool) {
	body, size, ok := vrrpBody(frame)
	if !ok {
		return a, false
	}
	network := frame[etherLen:]
	a = Advert{From: bytes.Clone(frame[6:12]), VRID: body[1], Priority: body[2], IPv6: size == 16}
	if a.IPv6 {
		a.Source = netip.AddrFrom16([16]byte(network[8:24]))
	} else {
		a.Source = netip.AddrFrom4([4]byte(network[12:16]))
	}
	switch body[0] >> 4 {
	case 2:
		a.Interval = time.Duration(body[5]) * time.Second
	case 3:
		a.Interval = time.Duration(binary.BigEndian.Uint16(body[4:])&0x0fff) * 10 * time.Millisecond
	default:
		return a, false
	}
	a.Addresses = addressesOf(body, size)
	return a, true
}

// vrrpOnly passes only VRRP.
func vrrpOnly() []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: 12, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.ETH_P_IPV6, SkipTrue: 3},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.ETH_P_IP, SkipTrue: 5},
		bpf.LoadAbsolute{Off: etherLen + 9, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: protocolVRRP, SkipTrue: 2, SkipFalse: 3},
		bpf.LoadAbsolute{Off: etherLen + 6, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: protocolVRRP, SkipTrue: 1},
		bpf.RetConstant{Val: snap},
		bpf.RetConstant{Val: 0},
	}
}
