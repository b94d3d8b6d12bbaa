// Package ipvs is the data plane for virtual IPs that Linux Virtual Server gives: round robin with NAT to the node's own pods.
//
// It owns the virtual services at addresses for which it has chains of its own (../iptables): the chains are made first and removed last, so that a fresh process
// knows what is ours. It refuses kernels without IPVS, and never flushes: services of others are not looked at. A TCP connection stays with its pod; a pod that
// is not served any more gets no new ones, and goes when its last one has ended. Plane.Apply is called by one goroutine at a time.
package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/ipvs"
	"golang.org/x/sys/unix"

	"github.com/skerry-io/skerry/edge/internal/kernel/balance"
	"github.com/skerry-io/skerry/edge/internal/kernel/iptables"
)

// ErrUnsupported says that the kernel has no IPVS, or iptables no match for it.
var ErrUnsupported = errors.New("the kernel has no IPVS")

const (
	scheduler = "rr"
	oneHost   = 0xffffffff // netmask of an IPv4 service; of IPv6 it is the length
)

// Plane is the data plane.
type Plane struct {
	rules map[bool]*iptables.Rules // by: is it IPv6
}

// New asks the kernel for IPVS, which loads its modules. The error is ErrUnsupported where there is none.
func New() (*Plane, error) {
	h, err := open()
	if err != nil {
		return nil, err
	}
	h.Close()
	p := &Plane{rules: map[bool]*iptables.Rules{}}
	if p.rules[false], err = iptables.NewRules(false); err != nil {
		return nil, err
	}
	if six, err := iptables.NewRules(true); err == nil {
		p.rules[true] = six
	}
	return p, nil
}

// sysctlDir is there when the kernel has IPVS.
const sysctlDir = "/proc/sys/net/ipv4/vs/"

func open() (*ipvs.Handle, error) {
	if _, err := os.Stat(sysctlDir + "conntrack"); err != nil {
		// The library would load the module too, but complains on standard error where there is none.
		if out, err := exec.Command("modprobe", "ip_vs").CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%w: %w: %s", ErrUnsupported, err, strings.TrimSpace(string(out)))
		}
	}
	h, err := ipvs.New("")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	if _, err := h.GetServices(); err != nil {
		h.Close()
		return nil, fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	return h, nil
}

// Name of the data plane.
func (*Plane) Name() string { return "ipvs" }

// Apply makes the kernel serve exactly this.
func (p *Plane) Apply(_ context.Context, want []balance.Service) error {
	if err := balance.Validate(want); err != nil {
		return fmt.Errorf("virtual IPs: %w", err)
	}
	want = balance.Normal(want)
	if len(want) > 0 {
		if err := sysctls(); err != nil {
			return err
		}
	}
	h, err := open()
	if err != nil {
		return err
	}
	defer h.Close()
	var errs []error
	for _, six := range []bool{false, true} {
		mine := slices.DeleteFunc(slices.Clone(want), func(s balance.Service) bool { return s.Address.Is6() != six })
		rules := p.rules[six]
		if rules == nil {
			if len(mine) > 0 {
				errs = append(errs, errors.New("there are IPv6 addresses, and there is no ip6tables"))
			}
			continue
		}
		errs = append(errs, family(h, rules, mine))
	}
	return errors.Join(errs...)
}

// Withdraw removes our virtual services and nothing else, for a node whose addresses another data plane
// serves from now on.
func (p *Plane) Withdraw() error {
	h, err := open()
	if err != nil {
		return err
	}
	defer h.Close()
	owned := map[netip.Addr]bool{}
	for _, rules := range p.rules {
		had, err := rules.Destinations(iptables.Input())
		if err != nil {
			return err
		}
		for _, a := range had {
			owned[a] = true
		}
	}
	return services(h, nil, owned)
}

// family applies what one family has: rules, then services, then what rules are too many.
func family(h *ipvs.Handle, rules *iptables.Rules, want []balance.Service) error {
	had, err := rules.Destinations(iptables.Input())
	if err != nil {
		return err
	}
	owned := map[netip.Addr]bool{}
	for _, s := range want {
		owned[s.Address] = true
	}
	first := slices.Clone(want)
	for _, a := range had {
		if !owned[a] {
			owned[a] = true
			first = append(first, balance.Service{Address: a}) // closed, and still ours
		}
	}
	if err := rules.Apply(iptables.Bases(), leaves(first)); err != nil {
		return err
	}
	if err := services(h, want, owned); err != nil {
		return err
	}
	if len(first) == len(want) {
		return nil
	}
	return rules.Apply(iptables.Bases(), leaves(want))
}

func whole(a netip.Addr) string { return netip.PrefixFrom(a, a.BitLen()).String() }

func leaves(all []balance.Service) []iptables.Leaf {
	var out []iptables.Leaf
	for _, s := range all {
		out = append(out, iptables.Guard(s, true)...)
		for _, p := range s.Ports {
			if len(p.Backends) == 0 {
				continue
			}
			match := []string{"-m", "ipvs", "--vproto", string(p.Protocol), "--vaddr", whole(s.Address), "--vport", strconv.Itoa(int(p.Number))}
			out = append(out,
				iptables.Leaf{Base: iptables.Source(), Match: slices.Concat(match, []string{"--vdir", "ORIGINAL"}), Rules: iptables.SourceRules(s, p)},
				iptables.Leaf{Base: iptables.Forward(), Match: match, Rules: [][]string{{"-j", "ACCEPT"}}},
			)
		}
	}
	return out
}

// sysctls switches on what NAT of IPVS and iptables together need: connections of IPVS are tracked, so that MASQUERADE knows them, and those to a pod that is not
// served any more are forgotten when their next packet comes, and so is which client came to it (Linux, Documentation/networking/ipvs-sysctl.rst).
func sysctls() error {
	for _, name := range []string{"conntrack", "expire_nodest_conn", "expire_quiescent_template"} {
		path := sysctlDir + name
		now, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("net.ipv4.vs.%s: %w", name, err)
		}
		if strings.TrimSpace(string(now)) == "1" {
			continue
		}
		if err := os.WriteFile(path, []byte("1"), 0o644); err != nil {
			return fmt.Errorf("net.ipv4.vs.%s: %w", name, err)
		}
	}
	return nil
}

type key struct {
	at       netip.AddrPort
	protocol balance.Protocol
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

// services makes the virtual services at our addresses what they should be.
func services(h *ipvs.Handle, want []balance.Service, owned map[netip.Addr]bool) error {
	all, err := h.GetServices()
	if err != nil {
		return fmt.Errorf("listing the services of IPVS: %w", err)
	}
	have := map[key]*ipvs.Service{}
	for _, s := range all {
		a, ok := netip.AddrFromSlice(s.Address)
		if a = a.Unmap(); !ok || s.FWMark != 0 || !owned[a] {
			continue
		}
		for _, p := range []balance.Protocol{balance.TCP, balance.UDP, balance.SCTP} {
			if number(p) == s.Protocol {
				have[key{netip.AddrPortFrom(a, s.Port), p}] = s
			}
		}
	}
	var errs []error
	for _, s := range want {
		for _, p := range s.Ports {
			if len(p.Backends) == 0 {
				continue
			}
			k := key{netip.AddrPortFrom(s.Address, p.Number), p.Protocol}
			errs = append(errs, serve(h, s, p, have[k]))
			delete(have, k)
		}
	}
	for k, s := range have {
		if err := h.DelService(s); err != nil {
			errs = append(errs, fmt.Errorf("removing service %s/%s: %w", k.at, k.protocol, err))
		}
	}
	return errors.Join(errs...)
}

// persistent marks a service whose clients stay with their backend (IP_VS_SVC_F_PERSISTENT, linux/ip_vs.h).
const persistent = 0x1

// serve makes one virtual service what it should be; s is what the kernel has of it, or nil.
func serve(h *ipvs.Handle, want balance.Service, p balance.Port, s *ipvs.Service) error {
	a := want.Address
	family, mask := uint16(unix.AF_INET), uint32(oneHost)
	if a.Is6() {
		family, mask = unix.AF_INET6, 128
	}
	flags, timeout := uint32(0), uint32(want.Affinity.Seconds())
	if timeout > 0 {
		flags = persistent
	}
	if s == nil {
		s = &ipvs.Service{
			Address: a.AsSlice(), Protocol: number(p.Protocol), Port: p.Number, SchedName: scheduler, Netmask: mask, AddressFamily: family, Flags: flags, Timeout: timeout,
		}
		if err := h.NewService(s); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("making service %s port %d/%s: %w", a, p.Number, p.Protocol, err)
		}
	} else if s.SchedName != scheduler || s.Flags&persistent != flags || flags != 0 && s.Timeout != timeout {
		s.SchedName, s.Flags, s.Timeout = scheduler, s.Flags&^persistent|flags, timeout
		if err := h.UpdateService(s); err != nil {
			return fmt.Errorf("mending service %s port %d/%s: %w", a, p.Number, p.Protocol, err)
		}
	}
	dests, err := h.GetDestinations(s)
	if err != nil {
		return fmt.Errorf("listing the pods of service %s port %d/%s: %w", a, p.Number, p.Protocol, err)
	}
	have := map[netip.AddrPort]*ipvs.Destination{}
	for _, d := range dests {
		if pod, ok := netip.AddrFromSlice(d.Address); ok {
			have[netip.AddrPortFrom(pod.Unmap(), d.Port)] = d
		}
	}
	var errs []error
	for _, b := range p.Backends {
		d := have[b]
		delete(have, b)
		switch {
		case d == nil:
			d = &ipvs.Destination{Address: b.Addr().AsSlice(), Port: b.Port(), Weight: 1, ConnectionFlags: ipvs.ConnectionFlagMasq, AddressFamily: family}
			if err := h.NewDestination(s, d); err != nil && !errors.Is(err, unix.EEXIST) {
				errs = append(errs, fmt.Errorf("adding pod %s: %w", b, err))
			}
		case d.Weight != 1 || d.ConnectionFlags&ipvs.ConnectionFlagFwdMask != ipvs.ConnectionFlagMasq:
			d.Weight, d.ConnectionFlags = 1, ipvs.ConnectionFlagMasq
			if err := h.UpdateDestination(s, d); err != nil {
				errs = append(errs, fmt.Errorf("mending pod %s: %w", b, err))
			}
		}
	}
	for b, d := range have {
		errs = append(errs, retire(h, s, b, d))
	}
	return errors.Join(errs...)
}

// retire lets a pod's TCP connections end; UDP has none to lose, and moves at once.
func retire(h *ipvs.Handle, s *ipvs.Service, b netip.AddrPort, d *ipvs.Destination) error {
	if s.Protocol != unix.IPPROTO_UDP && d.ActiveConnections+d.InactiveConnections > 0 {
		if d.Weight == 0 {
			return nil
		}
		d.Weight = 0
		if err := h.UpdateDestination(s, d); err != nil {
			return fmt.Errorf("retiring pod %s: %w", b, err)
		}
		return nil
	}
	if err := h.DelDestination(s, d); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("removing pod %s: %w", b, err)
	}
	return nil
}
