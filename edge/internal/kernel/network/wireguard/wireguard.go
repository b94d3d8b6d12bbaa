// Package wireguard keeps one WireGuard interface of the kernel's, by which packets reach devices
// that are on no network of this one.
//
// It owns the interface skerry-wg, whole: its key, its addresses and its peers. A fresh process
// recognises it by the name, and the key is made with it and is in the kernel only: it survives
// edgecore but not a boot, and is on no disk. It refuses an interface of that name that is no
// WireGuard, and implementations outside of the kernel. The changes are computed by plan, which is
// pure. A Driver sees the network namespace of the calling thread, and is used by one goroutine at
// a time.
package wireguard

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/skerry-io/skerry/edge/internal/kernel/network/dump"
)

// Interface is the interface's name.
const Interface = "skerry-wg"

// The overhead of a packet, for each outer family: the header of IP, that of UDP, and 32 bytes of
// WireGuard's (wireguard.com/papers/wireguard.pdf, 5.4.6).
const (
	Overhead4 = 60
	Overhead6 = 80
)

const (
	// keepalive keeps the mapping of a NAT on the path open; RFC 4787, 4.3, allows it to expire
	// after two minutes, and many do after half of one.
	keepalive = 25 * time.Second
	// silence is the time without packets of a peer after which its reported endpoint is used: a
	// session ends after 180 s (the paper's 6.1, REJECT-AFTER-TIME).
	silence = 3 * time.Minute
)

// ErrUnsupported: this kernel has no WireGuard.
var ErrUnsupported = errors.New("this kernel has no WireGuard")

// Key is a public key.
type Key [wgtypes.KeyLen]byte

// Peer is a device at the other end.
type Peer struct {
	Key Key
	// Endpoint is where it was seen; the zero value where that is not known. The kernel follows it
	// to where its packets come from.
	Endpoint netip.AddrPort
	// Allowed are the addresses whose packets go to it, and the only ones that may come from it.
	Allowed []netip.Prefix
}

// Config is the desired state of the interface.
type Config struct {
	Port      int
	MTU       int
	Addresses []netip.Addr // of the interface: the source addresses of this device's own packets
	Peers     []Peer
}

// Driver keeps the interface.
type Driver struct {
	said map[Key]netip.AddrPort // endpoints that were set: those in the kernel may be newer by now
}

// New returns a Driver.
func New() *Driver { return &Driver{said: map[Key]netip.AddrPort{}} }

// Apply makes the interface equal to want, and returns its public key. It is safe to repeat.
func (d *Driver) Apply(want Config) (Key, error) {
	link, err := ensure(want.MTU)
	if err != nil {
		return Key{}, err
	}
	client, err := wgctrl.New()
	if err != nil {
		return Key{}, fmt.Errorf("opening the kernel's WireGuard: %w", err)
	}
	defer client.Close()
	have, err := client.Device(Interface)
	if err != nil {
		return Key{}, fmt.Errorf("reading %s: %w", Interface, err)
	}
	private := have.PrivateKey
	if private == (wgtypes.Key{}) { // the interface was made just now, or the process that made it has died there
		if private, err = wgtypes.GeneratePrivateKey(); err != nil {
			return Key{}, fmt.Errorf("making a key: %w", err)
		}
	}
	change, differs := plan(have, want, d.said, time.Now())
	if private != have.PrivateKey {
		change.PrivateKey, differs = &private, true
	}
	if differs {
		if err := client.ConfigureDevice(Interface, change); err != nil {
			return Key{}, fmt.Errorf("configuring %s: %w", Interface, err)
		}
	}
	clear(d.said)
	for _, p := range want.Peers {
		d.said[p.Key] = p.Endpoint
	}
	if err := addresses(link, want.Addresses); err != nil {
		return Key{}, err
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return Key{}, fmt.Errorf("starting %s: %w", Interface, err)
	}
	return Key(private.PublicKey()), nil
}

// Remove removes the interface, and its key with it.
func (d *Driver) Remove() error {
	clear(d.said)
	link, err := find()
	if err != nil || link == nil {
		return err
	}
	if err := netlink.LinkDel(link); err != nil {
		return fmt.Errorf("removing %s: %w", Interface, err)
	}
	return nil
}

// find returns the interface; nil without one.
func find() (netlink.Link, error) {
	link, err := netlink.LinkByName(Interface)
	if missing := (netlink.LinkNotFoundError{}); errors.As(err, &missing) {
		return nil, nil //nolint:nilnil // it does not exist
	}
	if err != nil {
		return nil, fmt.Errorf("looking for %s: %w", Interface, err)
	}
	if link.Type() != "wireguard" {
		return nil, fmt.Errorf("there is an interface %s of type %s, which is another program's", Interface, link.Type())
	}
	return link, nil
}

func ensure(mtu int) (netlink.Link, error) {
	link, err := find()
	if err != nil {
		return nil, err
	}
	if link == nil {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = Interface, mtu
		err := netlink.LinkAdd(&netlink.Wireguard{LinkAttrs: attrs})
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENODEV) { // rtnetlink has no such type, and there is no module
			return nil, ErrUnsupported
		}
		if err != nil {
			return nil, fmt.Errorf("making %s: %w", Interface, err)
		}
		if link, err = netlink.LinkByName(Interface); err != nil {
			return nil, fmt.Errorf("looking for %s: %w", Interface, err)
		}
	}
	if link.Attrs().MTU != mtu {
		if err := netlink.LinkSetMTU(link, mtu); err != nil {
			return nil, fmt.Errorf("setting the MTU of %s: %w", Interface, err)
		}
	}
	return link, nil
}

// addresses makes the addresses of the interface exactly these.
func addresses(link netlink.Link, want []netip.Addr) error {
	have, err := dump.Addresses(link, netlink.FAMILY_ALL)
	if err != nil {
		return err
	}
	missing := slices.Clone(want)
	var errs []error
	for _, a := range have {
		ip, _ := netip.AddrFromSlice(a.IP)
		ip = ip.Unmap()
		if i := slices.Index(missing, ip); i >= 0 {
			missing = slices.Delete(missing, i, i+1)
			continue
		}
		if ip.IsLinkLocalUnicast() {
			continue // the kernel's own
		}
		if err := netlink.AddrDel(link, &a); err != nil {
			errs = append(errs, fmt.Errorf("removing %s from %s: %w", ip, Interface, err))
		}
	}
	for _, ip := range missing {
		a := &netlink.Addr{IPNet: &net.IPNet{IP: ip.AsSlice(), Mask: net.CIDRMask(ip.BitLen(), ip.BitLen())}, Flags: unix.IFA_F_NODAD}
		if err := netlink.AddrAdd(link, a); err != nil && !errors.Is(err, unix.EEXIST) {
			errs = append(errs, fmt.Errorf("adding %s to %s: %w", ip, Interface, err))
		}
	}
	return errors.Join(errs...)
}

// plan returns the changes, and whether there are any. A peer that sends from another endpoint than
// the reported one keeps it, until it has been silent or another endpoint is reported.
func plan(have *wgtypes.Device, want Config, said map[Key]netip.AddrPort, now time.Time) (change wgtypes.Config, differs bool) {
	if have.ListenPort != want.Port {
		change.ListenPort, differs = &want.Port, true
	}
	there := map[Key]wgtypes.Peer{}
	for _, p := range have.Peers {
		there[Key(p.PublicKey)] = p
	}
	interval := keepalive
	for _, p := range want.Peers {
		old, known := there[p.Key]
		delete(there, p.Key)
		one := wgtypes.PeerConfig{PublicKey: wgtypes.Key(p.Key)}
		changed := !known
		if allowed := nets(p.Allowed); !known || !slices.EqualFunc(sorted(old.AllowedIPs), allowed, sameNet) {
			one.ReplaceAllowedIPs, one.AllowedIPs, changed = true, allowed, true
		}
		if old.PersistentKeepaliveInterval != keepalive {
			one.PersistentKeepaliveInterval, changed = &interval, true
		}
		if p.Endpoint.IsValid() && (old.Endpoint == nil || p.Endpoint != addrPort(old.Endpoint) && moved(old, p, said, now)) {
			one.Endpoint, changed = net.UDPAddrFromAddrPort(p.Endpoint), true
		}
		if changed {
			change.Peers, differs = append(change.Peers, one), true
		}
	}
	for key := range there {
		change.Peers, differs = append(change.Peers, wgtypes.PeerConfig{PublicKey: wgtypes.Key(key), Remove: true}), true
	}
	return change, differs
}

// moved reports whether a peer's reported endpoint is newer than the one that the kernel has seen.
func moved(old wgtypes.Peer, p Peer, said map[Key]netip.AddrPort, now time.Time) bool {
	if before, ok := said[p.Key]; ok && before != p.Endpoint {
		return true
	}
	return now.Sub(old.LastHandshakeTime) > silence
}

func addrPort(a *net.UDPAddr) netip.AddrPort {
	ap := a.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

func nets(all []netip.Prefix) []net.IPNet {
	out := make([]net.IPNet, len(all))
	for i, p := range all {
		p = p.Masked()
		out[i] = net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
	}
	return sorted(out)
}

func sorted(all []net.IPNet) []net.IPNet {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b net.IPNet) int {
		if c := bytes.Compare(a.IP.To16(), b.IP.To16()); c != 0 {
			return c
		}
		return bytes.Compare(a.Mask, b.Mask)
	})
	return all
}

func sameNet(a, b net.IPNet) bool { return a.IP.Equal(b.IP) && bytes.Equal(a.Mask, b.Mask) }
