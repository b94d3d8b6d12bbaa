package acd

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/net/bpf"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// Lengths and numbers of frames.
const (
	snap     = 2048
	macLen   = 6
	etherLen = 14
	arpLen   = 28
	ip6Len   = 40

	protocolVRRP   = 112 // RFC 5798, 5.1.1.4
	protocolICMPv6 = 58
	advertisement  = 136 // RFC 4861, 4.4
	// hops is the TTL or hop limit of packets from the link itself: RFC 4861, 7.1, and
	// RFC 5798, 5.1.1.3.
	hops = 255
)

// program accepts ARP, VRRP and neighbour advertisements.
func program() []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: 12, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.ETH_P_ARP, SkipTrue: 9},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.ETH_P_IPV6, SkipTrue: 3},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.ETH_P_IP, SkipTrue: 8},
		bpf.LoadAbsolute{Off: etherLen + 9, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: protocolVRRP, SkipTrue: 5, SkipFalse: 6},
		bpf.LoadAbsolute{Off: etherLen + 6, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: protocolVRRP, SkipTrue: 3},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: protocolICMPv6, SkipTrue: 3},
		bpf.LoadAbsolute{Off: etherLen + ip6Len, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: advertisement, SkipTrue: 1},
		bpf.RetConstant{Val: snap},
		bpf.RetConstant{Val: 0},
	}
}

// question returns the probe frame for an address, and its destination hardware address.
func question(own net.HardwareAddr, a netip.Addr) ([]byte, net.HardwareAddr, error) {
	if a.Is4() {
		return arpProbe(own, a), net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, nil
	}
	return solicit(own, a)
}

func ethernet(to, from net.HardwareAddr, kind uint16) []byte {
	b := make([]byte, 0, 128)
	b = append(b, to...)
	b = append(b, from...)
	return binary.BigEndian.AppendUint16(b, kind)
}

// arpProbe is RFC 5227, 2.1.1: a request whose sender's address is 0.0.0.0, so that no host learns
// anything wrong from it.
func arpProbe(own net.HardwareAddr, a netip.Addr) []byte {
	b := ethernet(net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, own, unix.ETH_P_ARP)
	b = append(b, 0, 1, 0x08, 0, macLen, 4, 0, 1) // Ethernet, IPv4, a request
	b = append(b, own...)
	b = append(b, 0, 0, 0, 0)
	b = append(b, 0, 0, 0, 0, 0, 0)
	return append(b, a.AsSlice()...)
}

// solicit is RFC 4862, 5.4.2: a solicitation from the unspecified address to the group of those
// that may have the address (RFC 4291, 2.7.1).
func solicit(own net.HardwareAddr, a netip.Addr) ([]byte, net.HardwareAddr, error) {
	target := a.As16()
	group := netip.MustParseAddr("ff02::1:ff00:0").As16()
	copy(group[13:], target[13:])
	to := net.HardwareAddr{0x33, 0x33, group[12], group[13], group[14], group[15]} // RFC 2464, 7
	// The body is a reserved word and the address that is asked for, RFC 4861, 4.3.
	unspecified := netip.IPv6Unspecified()
	message := icmp.Message{Type: ipv6.ICMPTypeNeighborSolicitation, Body: &icmp.RawBody{Data: append(make([]byte, 4), target[:]...)}}
	body, err := message.Marshal(icmp.IPv6PseudoHeader(unspecified.AsSlice(), group[:]))
	if err != nil {
		return nil, nil, fmt.Errorf("making a neighbour solicitation: %w", err)
	}
	b := ethernet(to, own, unix.ETH_P_IPV6)
	b = append(b, 0x60, 0, 0, 0, 0, byte(len(body)), protocolICMPv6, hops)
	b = append(b, unspecified.AsSlice()...)
	b = append(b, group[:]...)
	return append(b, body...), to, nil
}

// answer reads from a frame which host claims an address. A probe of another host is no claim: the
// other nodes of the pool ask at the same time as we do, and any other host that asks does not have
// it yet.
func answer(frame []byte) (who net.HardwareAddr, a netip.Addr, ok bool) {
	body := frame[etherLen:]
	switch binary.BigEndian.Uint16(frame[12:]) {
	case unix.ETH_P_ARP:
		if len(body) < arpLen || body[4] != macLen || body[5] != 4 || binary.BigEndian.Uint16(body[2:]) != unix.ETH_P_IP {
			return nil, a, false
		}
		a = netip.AddrFrom4([4]byte(body[14:18]))
		return net.HardwareAddr(body[8:14]), a, !a.IsUnspecified()
	case unix.ETH_P_IPV6:
		if len(body) < ip6Len+24 || body[6] != protocolICMPv6 || body[7] != hops || body[ip6Len] != advertisement {
			return nil, a, false
		}
		return net.HardwareAddr(frame[6:12]), netip.AddrFrom16([16]byte(body[ip6Len+8 : ip6Len+24])), true
	}
	return nil, a, false
}

// advertised are the addresses that an advertisement of VRRP names, RFC 5798, 5.1 (versions 2 and 3
// agree so far). An advertisement that releases the addresses returns no address.
func advertised(frame []byte) []netip.Addr {
	body, size, ok := vrrpBody(frame)
	if !ok || body[2] == 0 {
		return nil
	}
	return addressesOf(body, size)
}

// vrrpBody is the VRRP message of a frame, at least 8 bytes, and the size of its
// addresses: 4 or 16.
func vrrpBody(frame []byte) (body []byte, size int, ok bool) {
	if len(frame) < etherLen {
		return nil, 0, false
	}
	body = frame[etherLen:]
	switch binary.BigEndian.Uint16(frame[12:]) {
	case unix.ETH_P_IP:
		if len(body) < 20 || body[9] != protocolVRRP || body[8] != hops {
			return nil, 0, false
		}
		header := int(body[0]&0x0f) * 4
		total := int(binary.BigEndian.Uint16(body[2:]))
		if header < 20 || total > len(body) || total < header {
			return nil, 0, false
		}
		body, size = body[header:total], 4 // the rest is the padding of a short frame
	case unix.ETH_P_IPV6:
		if len(body) < ip6Len || body[6] != protocolVRRP || body[7] != hops {
			return nil, 0, false
		}
		body, size = body[ip6Len:], 16
	default:
		return nil, 0, false
	}
	const advertisementType = 1
	if len(body) < 8 || body[0]&0x0f != advertisementType {
		return nil, 0, false
	}
	return body, size, true
}

// addressesOf are those in a message, as many as it has room for.
func addressesOf(body []byte, size int) []netip.Addr {
	var out []netip.Addr
	for i := range int(body[3]) {
		at := 8 + i*size
		if at+size > len(body) {
			break
		}
		a, _ := netip.AddrFromSlice(body[at : at+size])
		out = append(out, a)
	}
	return out
}
