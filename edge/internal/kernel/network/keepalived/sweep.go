package keepalived

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/skerry-io/skerry/common/atomicfile"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/dump"
)

// place is an address on an interface.
type place struct {
	iface   string
	address netip.Addr
}

// own remembers, before keepalived may add them, which addresses are ours: a keepalived that is
// killed leaves them on their interfaces, and a fresh process must recognise them. An entry leaves
// when its address has been seen to be gone (sweep). A reboot empties /run and the kernel alike.
func (d *Daemon) own(instances []Instance) error {
	all, err := d.owned()
	if err != nil {
		return err
	}
	n := len(all)
	for _, i := range instances {
		for _, a := range i.addresses() {
			if p := (place{i.Interface, a}); !slices.Contains(all, p) {
				all = append(all, p)
			}
		}
	}
	if len(all) == n {
		return nil
	}
	return d.writeOwned(all)
}

func (d *Daemon) owned() ([]place, error) {
	raw, err := os.ReadFile(d.path(fileOwned))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the list of our addresses: %w", err)
	}
	var all []place
	for line := range strings.Lines(string(raw)) {
		iface, address, ok := strings.Cut(strings.TrimSpace(line), " ")
		if a, err := netip.ParseAddr(address); ok && err == nil {
			all = append(all, place{iface, a})
		}
	}
	return all, nil
}

func (d *Daemon) writeOwned(all []place) error {
	var b strings.Builder
	for _, p := range all {
		fmt.Fprintf(&b, "%s %s\n", p.iface, p.address)
	}
	return atomicfile.Write(d.path(fileOwned), []byte(b.String()), 0o644)
}

func (d *Daemon) sweep(all bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.applied {
		return nil
	}
	return d.sweepLocked(all)
}

// sweepLocked removes our stale addresses from interfaces: all of them while no keepalived runs,
// else those that it no longer manages.
func (d *Daemon) sweepLocked(all bool) error {
	places, err := d.owned()
	if err != nil || len(places) == 0 {
		return err
	}
	d.statesMu.Lock()
	current := map[netip.Addr]bool{}
	for _, all := range d.names {
		for _, a := range all {
			current[a] = true
		}
	}
	d.statesMu.Unlock()
	if !all && !slices.ContainsFunc(places, func(p place) bool { return !current[p.address] }) {
		return nil
	}
	var errs []error
	kept := slices.DeleteFunc(slices.Clone(places), func(p place) bool {
		if current[p.address] && !all {
			return false
		}
		present, err := remove(p, d.proc == nil || !current[p.address])
		errs = append(errs, err)
		return err == nil && !present && !current[p.address]
	})
	if len(kept) != len(places) {
		errs = append(errs, d.writeOwned(kept))
	}
	return errors.Join(errs...)
}

// Leaving are the addresses that no instance has any more and that are still on an interface:
// keepalived reads a change of its configuration with a delay, and notifies the others before it
// removes an address.
func (d *Daemon) Leaving() ([]netip.Addr, error) {
	places, err := d.owned()
	if err != nil {
		return nil, err
	}
	d.statesMu.Lock()
	names := maps.Clone(d.names)
	d.statesMu.Unlock()
	var left []netip.Addr
	for _, p := range places {
		governed := false
		for _, all := range names {
			governed = governed || slices.Contains(all, p.address)
		}
		if governed {
			continue
		}
		present, err := remove(p, false)
		if err != nil {
			return nil, err
		}
		if present {
			left = append(left, p.address)
		}
	}
	return left, nil
}

// remove removes an address from its interface if it is present with its full length (/32 or /128):
// a shorter prefix was set by another program. present reports whether it was there.
func remove(p place, really bool) (present bool, err error) {
	link, err := netlink.LinkByName(p.iface)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("looking for interface %s: %w", p.iface, err)
	}
	has, err := onLink(link, p.address)
	if err != nil || !has || !really {
		return has, err
	}
	a := &netlink.Addr{IPNet: netlink.NewIPNet(p.address.AsSlice())}
	if err := netlink.AddrDel(link, a); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
		return true, fmt.Errorf("removing %s from %s: %w", p.address, p.iface, err)
	}
	return true, nil
}

func onLink(link netlink.Link, address netip.Addr) (bool, error) {
	kind := netlink.FAMILY_V6
	if address.Is4() {
		kind = netlink.FAMILY_V4
	}
	addrs, err := dump.Addresses(link, kind)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(addrs, func(a netlink.Addr) bool {
		got, ok := netip.AddrFromSlice(a.IP)
		ones, size := a.Mask.Size()
		return ok && got.Unmap() == address && ones == size
	}), nil
}

// seedStates gives the instances of a keepalived that was taken over the state that the kernel
// shows: its own words are gone.
func (d *Daemon) seedStates() {
	places, err := d.owned()
	if err != nil {
		return // the next transition will set it
	}
	d.statesMu.Lock()
	defer d.statesMu.Unlock()
	for name, all := range d.names {
		if _, known := d.states[name]; known {
			continue
		}
		for _, p := range places {
			if p.address != all[0] {
				continue
			}
			d.states[name] = Backup
			if has, err := remove(p, false); err == nil && has {
				d.states[name] = Master
			}
		}
	}
	poke(d.changed)
}
