// Package wire gives tests hosts that are network namespaces, and cables between them.
//
// It owns the namespaces: they have no names, and go with the test. It needs root and skips the
// test without it. A Host may be used by many goroutines at once.
package wire

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// Host is a network namespace with its loopback up, which forwards packets as a router does.
type Host struct {
	ns     netns.NsHandle
	handle *netlink.Handle
}

// NewHost makes a host for the length of the test.
func NewHost(t testing.TB) *Host {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	h := &Host{}
	err := elsewhere(func() (err error) {
		if h.ns, err = netns.New(); err != nil {
			return fmt.Errorf("making a network namespace: %w", err)
		}
		if h.handle, err = netlink.NewHandle(); err != nil {
			return fmt.Errorf("opening netlink: %w", err)
		}
		for _, key := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
			if err := sysctl(key, "1"); err != nil {
				return err
			}
		}
		// Duplicate address detection would keep IPv6 addresses from being used for a
		// second or two.
		for _, name := range []string{"all", "default"} {
			if err := errors.Join(sysctl("ipv6/conf/"+name+"/accept_dad", "0"), sysctl("ipv6/conf/"+name+"/dad_transmits", "0")); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		h.handle.Close()
		h.ns.Close()
	})
	h.Up(t, "lo")
	return h
}

func sysctl(key, value string) error {
	return os.WriteFile("/proc/sys/net/"+key, []byte(value), 0o644)
}

// elsewhere runs f on a thread of its own, which ends afterwards.
func elsewhere(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked
		result <- f()
	}()
	return <-result
}

// Do runs f in the host's network. f must not start goroutines that shall be there too.
func (h *Host) Do(f func() error) error {
	return elsewhere(func() error {
		if err := netns.Set(h.ns); err != nil {
			return fmt.Errorf("entering the network namespace: %w", err)
		}
		return f()
	})
}

// Must is Do for functions that must not fail.
func (h *Host) Must(t testing.TB, f func() error) {
	t.Helper()
	if err := h.Do(f); err != nil {
		t.Fatal(err)
	}
}

// Netlink is a handle in the host's network. It lives as long as the host.
func (h *Host) Netlink() *netlink.Handle { return h.handle }

// Sysctl sets a kernel parameter below net, such as ipv4/conf/all/rp_filter.
func (h *Host) Sysctl(t testing.TB, key, value string) {
	t.Helper()
	h.Must(t, func() error { return sysctl(key, value) })
}

// Cable joins two hosts. Both ends are up.
func Cable(t testing.TB, a *Host, aName string, b *Host, bName string) {
	t.Helper()
	cable := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: aName}, PeerName: bName, PeerNamespace: netlink.NsFd(b.ns)}
	if err := a.handle.LinkAdd(cable); err != nil {
		t.Fatalf("making the cable %s - %s: %v", aName, bName, err)
	}
	a.Up(t, aName)
	b.Up(t, bName)
}

func (h *Host) link(t testing.TB, name string) netlink.Link {
	t.Helper()
	l, err := h.handle.LinkByName(name)
	if err != nil {
		t.Fatalf("finding %s: %v", name, err)
	}
	return l
}

// Up and Down switch an interface.
func (h *Host) Up(t testing.TB, name string) {
	t.Helper()
	if err := h.handle.LinkSetUp(h.link(t, name)); err != nil {
		t.Fatalf("setting %s up: %v", name, err)
	}
}

// Down switches an interface off.
func (h *Host) Down(t testing.TB, name string) {
	t.Helper()
	if err := h.handle.LinkSetDown(h.link(t, name)); err != nil {
		t.Fatalf("setting %s down: %v", name, err)
	}
}

// Address gives an interface an address, such as 10.0.0.1/24.
func (h *Host) Address(t testing.TB, name, address string) {
	t.Helper()
	p := netip.MustParsePrefix(address)
	if err := h.handle.AddrReplace(h.link(t, name), &netlink.Addr{IPNet: IPNet(p)}); err != nil {
		t.Fatalf("giving %s the address %s: %v", name, address, err)
	}
}

// LinkLocal is the interface's own IPv6 address.
func (h *Host) LinkLocal(t testing.TB, name string) netip.Addr {
	t.Helper()
	all, err := h.handle.AddrList(h.link(t, name), netlink.FAMILY_V6)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if ip, ok := netip.AddrFromSlice(a.IP); ok && ip.IsLinkLocalUnicast() {
			return ip
		}
	}
	t.Fatalf("%s has no link-local address", name)
	return netip.Addr{}
}

// Route makes a route by hand, such as an administrator does: protocol boot.
func (h *Host) Route(t testing.TB, to, via string) {
	t.Helper()
	r := &netlink.Route{Dst: IPNet(netip.MustParsePrefix(to)), Gw: net.ParseIP(via), Protocol: 3}
	if err := h.handle.RouteReplace(r); err != nil {
		t.Fatalf("routing %s via %s: %v", to, via, err)
	}
}

// IPNet is a prefix as package net has it.
func IPNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
