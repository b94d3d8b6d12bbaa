package acd

import (
	"encoding/hex"
	"net"
	"net/netip"
	"testing"
)

// Frames come from any host on the LAN.
func FuzzTake(f *testing.F) {
	f.Add([]byte{})
	f.Add(append(make([]byte, 12), 0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 2))
	vrrp := append(make([]byte, 12), 0x08, 0x00, 0x45, 0, 0, 32, 0, 0, 0, 0, 255, 112, 0, 0, 10, 0, 0, 1, 224, 0, 0, 18, 0x31, 7, 200, 1, 0, 100, 0, 0, 10, 0, 0, 9)
	f.Add(vrrp)
	f.Add(append(make([]byte, 12), 0x86, 0xdd, 0x60))
	asked := map[netip.Addr]bool{netip.MustParseAddr("10.0.0.9"): true, netip.MustParseAddr("fd00::9"): true}
	claims := func(frame []byte) (heard, held int) { // of a prober with a claim of each kind
		p := &prober{asked: asked, heard: map[netip.Addr]net.HardwareAddr{}, held: map[netip.Addr]bool{}}
		p.take(frame)
		return len(p.heard), len(p.held)
	}
	six := netip.MustParseAddr("fd00::9").AsSlice()
	header := func(protocol, length byte) []byte {
		b := append(make([]byte, 12), 0x86, 0xdd, 0x60, 0, 0, 0, 0, length, protocol, hops)
		return append(b, make([]byte, 32)...)
	}
	for _, frame := range [][]byte{
		append(make([]byte, 12), 0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 2, 2, 0, 0, 0, 0, 9, 10, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), // ARP: a reply
		append(append(header(protocolICMPv6, 24), advertisement, 0, 0, 0, 0, 0, 0, 0), six...),
		append(append(header(protocolVRRP, 24), 0x31, 7, 200, 1, 0, 100, 0, 0), six...),
		vrrp,
	} {
		if heard, held := claims(frame); heard+held != 1 {
			f.Fatalf("%x is no claim", frame)
		}
		f.Add(frame)
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		p := &prober{asked: asked, heard: map[netip.Addr]net.HardwareAddr{}, held: map[netip.Addr]bool{}}
		for range 2 {
			p.take(frame)
		}
		for a := range p.heard {
			if !asked[a] {
				t.Errorf("kept who has %v, which was not asked for", a)
			}
		}
		for a := range p.held {
			if !asked[a] {
				t.Errorf("kept that VRRP holds %v, which was not asked for", a)
			}
		}
		if len(frame) >= etherLen && len(advertised(frame)) > 255 {
			t.Error("more addresses than an advertisement has room for")
		}
	})
}

// The checksum is that of x/net/icmp; the kernels of TestProbe verify that it covers the right
// addresses.
func TestQuestion(t *testing.T) {
	own := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	frame, to, err := question(own, netip.MustParseAddr("2001:db8::12:3456"))
	if err != nil {
		t.Fatal(err)
	}
	const want = "3333ff123456" + "020000000001" + "86dd" + "6000000000183aff" + "00000000000000000000000000000000" + "ff0200000000000000000001ff123456" +
		"8700e41e00000000" + "20010db8000000000000000000123456"
	if got := hex.EncodeToString(frame); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got, want := to.String(), "33:33:ff:12:34:56"; got != want {
		t.Errorf("sent to %s, want %s", got, want)
	}
}
