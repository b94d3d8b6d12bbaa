// Package lan is the device's place on its networks, as the devices of a site need it: the socket
// on which they speak, the beacons by which they find each other, whether a host answers, and
// whether a network has a carrier.
//
// It owns no kernel state except its sockets. It refuses interfaces without a network of their own,
// such as those of pods. All methods see the network namespace of the calling thread, may be called
// from any goroutine, and start no other; Watch's reader ends with it.
package lan

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"github.com/skerry-io/skerry/edge/internal/kernel/network/acd"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/dump"
)

// Group is where beacons go: a group of the site's scope (RFC 2365, 6.1), which routers
// don't carry further.
func Group() netip.Addr { return netip.AddrFrom4([4]byte{239, 255, 105, 52}) }

// gather is how long changes are gathered before they are reported.
const gather = 20 * time.Millisecond

// Network is one network that the device is on.
type Network struct {
	Interface string
	Prefix    netip.Prefix // with the device's own address
	Carrier   bool
	MTU       int
	Tunnel    bool // it has no neighbours to ask for an address: a VPN's, or a modem's link
}

// LAN is the driver.
type LAN struct{}

// New returns a LAN.
func New() *LAN { return &LAN{} }

// Networks are the networks of interfaces that are up, with carrier or without, but for loopback.
// Networks of a single address, as on a pod's interface, are excluded.
func (*LAN) Networks() ([]Network, error) {
	links, addresses, err := dump.Interfaces()
	if err != nil {
		return nil, err
	}
	var all []Network
	for _, l := range links {
		a := l.Attrs()
		if a.RawFlags&unix.IFF_UP == 0 || a.RawFlags&unix.IFF_LOOPBACK != 0 {
			continue
		}
		for _, x := range addresses[a.Index] {
			ip, ok := netip.AddrFromSlice(x.IP)
			ones, _ := x.Mask.Size()
			if ip = ip.Unmap(); !ok || ones >= ip.BitLen() || ip.IsLinkLocalUnicast() {
				continue
			}
			all = append(all, Network{a.Name, netip.PrefixFrom(ip, ones), a.RawFlags&unix.IFF_RUNNING != 0, a.MTU, a.RawFlags&(unix.IFF_POINTOPOINT|unix.IFF_NOARP) != 0})
		}
	}
	return all, nil
}

// Listen opens the socket of the site: one for both families and all interfaces.
func (*LAN) Listen(port int) (*net.UDPConn, error) {
	conn, err := net.ListenUDP("udp", &net.UDPAddr{Port: port})
	if err != nil {
		return nil, fmt.Errorf("listening for the devices of the site: %w", err)
	}
	return conn, nil
}

// Join subscribes the socket to beacons on the interfaces of all networks. It may be repeated for
// new ones.
func (d *LAN) Join(conn *net.UDPConn) error {
	all, err := d.Networks()
	if err != nil {
		return err
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return fmt.Errorf("joining the group of beacons: %w", err)
	}
	var errs []error
	for _, n := range all {
		ifi, err := net.InterfaceByName(n.Interface)
		if err != nil || !n.Prefix.Addr().Is4() || ifi.Flags&net.FlagMulticast == 0 {
			continue
		}
		// On a socket for both families too, ip(7).
		request := &unix.IPMreqn{Multiaddr: Group().As4(), Ifindex: int32(ifi.Index)}
		var failed error
		err = raw.Control(func(fd uintptr) {
			failed = unix.SetsockoptIPMreqn(int(fd), unix.IPPROTO_IP, unix.IP_ADD_MEMBERSHIP, request)
		})
		if err = errors.Join(err, failed); err != nil && !errors.Is(err, unix.EADDRINUSE) {
			errs = append(errs, fmt.Errorf("joining the group of beacons on %s: %w", n.Interface, err))
		}
	}
	return errors.Join(errs...)
}

// Beacon sends a packet to the group on every network with carrier.
func (d *LAN) Beacon(packet []byte, port int) error {
	all, err := d.Networks()
	if err != nil {
		return err
	}
	var errs []error
	for _, n := range all {
		if !n.Carrier || !n.Prefix.Addr().Is4() {
			continue
		}
		errs = append(errs, beacon(n, packet, port))
	}
	return errors.Join(errs...)
}

func beacon(n Network, packet []byte, port int) error {
	ifi, err := net.InterfaceByName(n.Interface)
	if err != nil || ifi.Flags&net.FlagMulticast == 0 {
		return nil //nolint:nilerr // it has gone in the meantime
	}
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: n.Prefix.Addr().AsSlice()})
	if err != nil {
		return fmt.Errorf("opening a socket on %s: %w", n.Interface, err)
	}
	defer conn.Close()
	p := ipv4.NewPacketConn(conn)
	if err := errors.Join(p.SetMulticastInterface(ifi), p.SetMulticastTTL(1), p.SetMulticastLoopback(false)); err != nil {
		return fmt.Errorf("sending a beacon on %s: %w", n.Interface, err)
	}
	if _, err := conn.WriteToUDPAddrPort(packet, netip.AddrPortFrom(Group(), uint16(port))); err != nil {
		return fmt.Errorf("sending a beacon on %s: %w", n.Interface, err)
	}
	return nil
}

// On finds the network that an address is on; ok is false for one behind a router. Of several the
// one with carrier is taken.
func (d *LAN) On(address netip.Addr) (n Network, ok bool, err error) {
	all, err := d.Networks()
	if err != nil {
		return n, false, err
	}
	for _, x := range all {
		if x.Prefix.Contains(address) && (!ok || !n.Carrier) {
			n, ok = x, true
		}
	}
	return n, ok, nil
}

// Answers reports whether the kernel that has an address answers within patience: to ARP or
// neighbour discovery on the same network, else to ICMP echo.
func (d *LAN) Answers(ctx context.Context, address netip.Addr, patience time.Duration) (bool, error) {
	n, ok, err := d.On(address)
	if err != nil {
		return false, err
	}
	if !ok {
		return echo(ctx, address, patience)
	}
	answered, err := acd.Answers(ctx, n.Interface, address, patience)
	if errors.Is(err, acd.ErrNoCarrier) {
		return false, nil
	}
	return answered, err
}

// echo asks by ICMP, RFC 792 and RFC 4443, 4.1.
func echo(ctx context.Context, address netip.Addr, patience time.Duration) (bool, error) {
	network, local, protocol := "ip4:icmp", "0.0.0.0", 1
	var ask, answer icmp.Type = ipv4.ICMPTypeEcho, ipv4.ICMPTypeEchoReply
	if address.Is6() {
		network, local, protocol = "ip6:ipv6-icmp", "::", 58
		ask, answer = ipv6.ICMPTypeEchoRequest, ipv6.ICMPTypeEchoReply
	}
	conn, err := icmp.ListenPacket(network, local)
	if err != nil {
		return false, fmt.Errorf("opening a socket for ICMP: %w", err)
	}
	defer conn.Close()
	id := os.Getpid() & 0xffff
	end := time.Now().Add(patience)
	buffer := make([]byte, 1500)
	for n := 0; time.Now().Before(end); n++ {
		if ctx.Err() != nil {
			return false, fmt.Errorf("asking %s: %w", address, context.Cause(ctx))
		}
		body, err := (&icmp.Message{Type: ask, Body: &icmp.Echo{ID: id, Seq: n}}).Marshal(nil)
		if err != nil {
			return false, fmt.Errorf("making an echo request: %w", err)
		}
		if _, err := conn.WriteTo(body, &net.IPAddr{IP: address.AsSlice(), Zone: address.Zone()}); err != nil && !unreachable(err) {
			return false, fmt.Errorf("asking %s: %w", address, err)
		}
		if err := conn.SetReadDeadline(earlier(time.Now().Add(100*time.Millisecond), end)); err != nil {
			return false, fmt.Errorf("asking %s: %w", address, err)
		}
		for {
			size, from, err := conn.ReadFrom(buffer)
			if err != nil {
				break // timeout, or the network is unreachable
			}
			m, err := icmp.ParseMessage(protocol, buffer[:size])
			if err != nil || m.Type != answer {
				continue
			}
			e, ok := m.Body.(*icmp.Echo)
			if host, _ := from.(*net.IPAddr); ok && e.ID == id && host != nil && host.IP.Equal(address.AsSlice()) {
				return true, nil
			}
		}
	}
	return false, nil
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func unreachable(err error) bool {
	for _, e := range []syscall.Errno{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.ENETDOWN, unix.EHOSTDOWN, unix.EPERM, unix.ENOBUFS, unix.EINVAL} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// Changes is a subscription to changes of interfaces and addresses.
type Changes struct {
	wake   chan struct{}
	failed chan error
	done   chan struct{}
}

// Subscribe opens a subscription in the namespace of the calling thread (rtnetlink(7)). Messages
// lost by the kernel count as a change.
func (*LAN) Subscribe() (*Changes, error) {
	c := &Changes{make(chan struct{}, 1), make(chan error, 2), make(chan struct{})}
	fail := func(err error) {
		if errors.Is(err, unix.ENOBUFS) {
			c.tell()
			return
		}
		select {
		case c.failed <- err:
		default:
		}
	}
	links, addresses := make(chan netlink.LinkUpdate, 64), make(chan netlink.AddrUpdate, 64)
	if err := netlink.LinkSubscribeWithOptions(links, c.done, netlink.LinkSubscribeOptions{ErrorCallback: fail}); err != nil {
		close(c.done)
		return nil, fmt.Errorf("subscribing to links: %w", err)
	}
	go forward(links, c.tell)
	if err := netlink.AddrSubscribeWithOptions(addresses, c.done, netlink.AddrSubscribeOptions{ErrorCallback: fail}); err != nil {
		close(c.done)
		return nil, fmt.Errorf("subscribing to addresses: %w", err)
	}
	go forward(addresses, c.tell)
	return c, nil
}

func (c *Changes) tell() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// forward reads a subscription until it ends; it does when Run returns.
func forward[T any](updates <-chan T, tell func()) {
	for range updates {
		tell()
	}
}

// Run calls changed after changes until ctx ends, and closes the subscription.
func (c *Changes) Run(ctx context.Context, changed func()) error {
	defer close(c.done)
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-c.failed:
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("reading changes of the network: %w", err)
		case <-c.wake:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(gather):
		}
		changed()
	}
}
