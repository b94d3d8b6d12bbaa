package kubevip

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Options are a person's choices.
type Options struct {
	// Interface is the nodes' network interface on the LAN.
	Interface string
	// CIDR is the network that addresses of Services are taken from.
	CIDR string
	// Exclude are addresses and networks of it that are never given away.
	Exclude []string
	// Image is kube-vip's. ProviderImage is the cloud provider's; "": without it, Services name
	// their addresses themselves.
	Image, ProviderImage string
}

// span is a range of addresses, both ends included.
type span struct{ from, to netip.Addr }

// Ranges is the CIDR without its network and broadcast addresses and the excluded ones, as
// kube-vip's cloud provider reads it: FROM-TO,FROM-TO. used are the addresses that hosts of the LAN
// have, with a word for each: the ranges must not contain any.
func (o Options) Ranges(used map[netip.Addr]string) (string, error) {
	p, err := netip.ParsePrefix(o.CIDR)
	if err != nil {
		return "", fmt.Errorf("--cidr %q: must be a network in CIDR notation, such as 192.168.10.64/28", o.CIDR)
	}
	if p != p.Masked() {
		return "", fmt.Errorf("--cidr %s has bits set behind its mask: write %s", o.CIDR, p.Masked())
	}
	// The LAN's own range is never that large, and one node holds each address.
	if p.Addr().IsLoopback() || p.Addr().IsMulticast() || p.Addr().IsUnspecified() || p.Addr().BitLen()-p.Bits() > 16 {
		return "", fmt.Errorf("--cidr %s: must be a network of at most 65536 addresses of the LAN", o.CIDR)
	}
	left := []span{{p.Addr(), last(p)}}
	if bits := p.Addr().BitLen() - p.Bits(); p.Addr().Is4() && bits > 1 {
		left = without(left, span{p.Addr(), p.Addr()})
		left = without(left, span{last(p), last(p)})
	}
	for _, text := range o.Exclude {
		x, err := parse(text)
		if err != nil {
			return "", fmt.Errorf("--exclude %q: %w", text, err)
		}
		if !p.Contains(x.from) || !p.Contains(x.to) {
			return "", fmt.Errorf("--exclude %s is not within --cidr %s", text, p)
		}
		left = without(left, x)
	}
	if len(left) == 0 {
		return "", fmt.Errorf("--cidr %s: no address is left after --exclude", p)
	}
	var problems []error
	for a, what := range used {
		if slices.ContainsFunc(left, func(s span) bool { return !a.Less(s.from) && !s.to.Less(a) }) {
			problems = append(problems, fmt.Errorf("%s is the address of %s: choose another --cidr, or --exclude %s", a, what, a))
		}
	}
	slices.SortFunc(problems, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	if err := errors.Join(problems...); err != nil {
		return "", err
	}
	text := make([]string, len(left))
	for i, s := range left {
		text[i] = s.from.String() + "-" + s.to.String()
	}
	return strings.Join(text, ","), nil
}

// parse reads an address, a network or a range.
func parse(text string) (s span, err error) {
	if a, err := netip.ParseAddr(text); err == nil {
		return span{a, a}, nil
	}
	if p, err := netip.ParsePrefix(text); err == nil {
		return span{p.Masked().Addr(), last(p)}, nil
	}
	from, to, _ := strings.Cut(text, "-")
	a, errA := netip.ParseAddr(from)
	b, errB := netip.ParseAddr(to)
	if errA != nil || errB != nil || b.Less(a) || a.BitLen() != b.BitLen() {
		return s, errors.New("must be an address, a network, or a range such as 192.168.10.70-192.168.10.75")
	}
	return span{a, b}, nil
}

// last is the last address of a network.
func last(p netip.Prefix) netip.Addr {
	raw := p.Masked().Addr().AsSlice()
	for bit := p.Bits(); bit < len(raw)*8; bit++ {
		raw[bit/8] |= 1 << (7 - bit%8)
	}
	a, _ := netip.AddrFromSlice(raw)
	return a
}

// without takes a range out of ranges.
func without(all []span, x span) (left []span) {
	for _, s := range all {
		if x.to.Less(s.from) || s.to.Less(x.from) {
			left = append(left, s)
			continue
		}
		if s.from.Less(x.from) {
			left = append(left, span{s.from, x.from.Prev()})
		}
		if x.to.Less(s.to) {
			left = append(left, span{x.to.Next(), s.to})
		}
	}
	return left
}

// checkInterface refuses a name that is no valid interface name (dev_valid_name of Linux).
func checkInterface(name string) error {
	if name == "" || len(name) > 15 || name == "." || name == ".." || strings.ContainsAny(name, "/: \t\n") {
		return fmt.Errorf("--interface %q: must be the name of the nodes' network interface on the LAN, such as eth0", name)
	}
	return nil
}
