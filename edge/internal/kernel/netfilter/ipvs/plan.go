package ipvs

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/moby/ipvs"
	"golang.org/x/sys/unix"

	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/balance"
)

const (
	scheduler = "rr"
	oneHost   = 0xffffffff // netmask of an IPv4 service; of IPv6 it is the length
	// persistent marks a service whose clients stay with their backend (IP_VS_SVC_F_PERSISTENT,
	// linux/ip_vs.h).
	persistent = 0x1
)

// key identifies a virtual service in the kernel.
type key struct {
	at       netip.AddrPort
	protocol balance.Protocol
}

func (k key) compare(o key) int {
	return cmp.Or(k.at.Compare(o.at), cmp.Compare(k.protocol, o.protocol))
}

// virtual is a virtual service as the kernel has it.
type virtual struct {
	service      *ipvs.Service
	destinations []*ipvs.Destination
}

// operation is the kind of a change, as in ipvsadm(8).
type operation string

const (
	addService    operation = "-A"
	editService   operation = "-E"
	deleteService operation = "-D"
	addServer     operation = "-a"
	editServer    operation = "-e"
	deleteServer  operation = "-d"
)

// change is one command to the kernel.
type change struct {
	operation   operation
	key         key
	service     *ipvs.Service
	destination *ipvs.Destination // of the last three
}

// String is the change as `ipvsadm -R` reads it.
func (c change) String() string {
	kind := map[balance.Protocol]string{balance.TCP: "-t", balance.UDP: "-u", balance.SCTP: "--sctp-service"}[c.key.protocol]
	text := fmt.Sprintf("%s %s %s", c.operation, kind, c.key.at)
	switch c.operation {
	case addService, editService:
		text += " -s " + c.service.SchedName
		if c.service.Flags&persistent != 0 {
			text += fmt.Sprintf(" -p %d", c.service.Timeout)
		}
	case addServer, editServer:
		text += fmt.Sprintf(" -r %s -m -w %d", podOf(c.destination), c.destination.Weight)
	case deleteServer:
		text += " -r " + podOf(c.destination).String()
	}
	return text
}

func podOf(d *ipvs.Destination) netip.AddrPort {
	a, _ := netip.AddrFromSlice(d.Address)
	return netip.AddrPortFrom(a.Unmap(), d.Port)
}

func number(p balance.Protocol) uint16 {
	switch p {
	case balance.UDP:
		return unix.IPPROTO_UDP
	case balance.SCTP:
		return unix.IPPROTO_SCTP
	}
	return unix.IPPROTO_TCP
}

// plan lists the changes from the kernel's virtual services to the desired ones, which are Normal:
// first additions, each service before its pods, then removals.
func plan(want []balance.Service, have map[key]virtual) (changes []change) {
	rest := maps.Clone(have)
	for _, s := range want {
		for _, p := range s.Ports {
			if len(p.Backends) == 0 {
				continue
			}
			k := key{netip.AddrPortFrom(s.Address, p.Number), p.Protocol}
			changes = append(changes, planService(k, s, p, have[k])...)
			delete(rest, k)
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(rest), key.compare) {
		changes = append(changes, change{deleteService, k, rest[k].service, nil})
	}
	return changes
}

func planService(k key, want balance.Service, p balance.Port, have virtual) (changes []change) {
	family, mask := uint16(unix.AF_INET), uint32(oneHost)
	if want.Address.Is6() {
		family, mask = unix.AF_INET6, 128
	}
	flags, timeout := uint32(0), uint32(want.Affinity.Seconds())
	if timeout > 0 {
		flags = persistent
	}
	s := have.service
	if s == nil {
		s = &ipvs.Service{
			Address: want.Address.AsSlice(), Protocol: number(p.Protocol), Port: p.Number, SchedName: scheduler, Netmask: mask, AddressFamily: family, Flags: flags,
			Timeout: timeout,
		}
		changes = append(changes, change{addService, k, s, nil})
	} else if s.SchedName != scheduler || s.Flags&persistent != flags || flags != 0 && s.Timeout != timeout {
		mended := *s
		mended.SchedName, mended.Flags, mended.Timeout = scheduler, s.Flags&^persistent|flags, timeout
		s = &mended
		changes = append(changes, change{editService, k, s, nil})
	}
	rest := map[netip.AddrPort]*ipvs.Destination{}
	for _, d := range have.destinations {
		rest[podOf(d)] = d
	}
	for _, b := range p.Backends {
		d := rest[b]
		delete(rest, b)
		switch {
		case d == nil:
			d = &ipvs.Destination{Address: b.Addr().AsSlice(), Port: b.Port(), Weight: 1, ConnectionFlags: ipvs.ConnectionFlagMasq, AddressFamily: family}
			changes = append(changes, change{addServer, k, s, d})
		case d.Weight != 1 || d.ConnectionFlags&ipvs.ConnectionFlagFwdMask != ipvs.ConnectionFlagMasq:
			mended := *d
			mended.Weight, mended.ConnectionFlags = 1, ipvs.ConnectionFlagMasq
			changes = append(changes, change{editServer, k, s, &mended})
		}
	}
	for _, b := range slices.SortedFunc(maps.Keys(rest), netip.AddrPort.Compare) {
		if c, ok := retire(k, s, rest[b]); ok {
			changes = append(changes, c)
		}
	}
	return changes
}

// retire drains a pod's TCP connections; UDP has no connections to lose, and moves at once.
func retire(k key, s *ipvs.Service, d *ipvs.Destination) (change, bool) {
	if k.protocol == balance.UDP || d.ActiveConnections+d.InactiveConnections == 0 {
		return change{deleteServer, k, s, d}, true
	}
	if d.Weight == 0 {
		return change{}, false
	}
	last := *d
	last.Weight = 0
	return change{editServer, k, s, &last}, true
}
