// Package ipvs is the data plane for virtual IPs that Linux Virtual Server gives: round robin with
// NAT to the node's own pods.
//
// It owns the virtual services at addresses for which it has chains of its own (../iptables): the
// chains are made first and removed last, so that a fresh process recognises its services. It
// refuses kernels without IPVS, and never flushes: services of others are ignored. A TCP connection
// stays with its pod; a pod that is no longer served gets no new ones, and is removed when its last
// one has ended. Plane.Apply is called by one goroutine at a time.
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

	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/balance"
	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/iptables"
)

// ErrUnsupported means that the kernel has no IPVS, or iptables no match for it.
var ErrUnsupported = errors.New("the kernel has no IPVS")

// Plane is the data plane.
type Plane struct {
	rules map[bool]*iptables.Rules // by: is it IPv6
}

// New asks the kernel for IPVS, which loads its modules. The error is ErrUnsupported if it is
// missing.
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

// sysctlDir exists if the kernel has IPVS.
const sysctlDir = "/proc/sys/net/ipv4/vs/"

func open() (*ipvs.Handle, error) {
	if _, err := os.Stat(sysctlDir + "conntrack"); err != nil {
		// The library would load the module too, but complains on standard error if it is missing.
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

// Withdraw removes only our virtual services, for a node whose addresses another data plane serves
// from now on.
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

// family applies the state of one family: rules, then services, then it removes surplus rules.
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

// sysctls sets the sysctls that NAT of IPVS and iptables together needs: connections of IPVS are
// tracked, so that MASQUERADE sees them, and those to a pod that is no longer served are dropped at
// their next packet, together with the pod's affinity (Linux,
// Documentation/networking/ipvs-sysctl.rst).
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

// services reconciles the virtual services at our addresses.
func services(h *ipvs.Handle, want []balance.Service, owned map[netip.Addr]bool) error {
	have, err := read(h, owned)
	errs := []error{err}
	if have == nil {
		return err
	}
	failed := map[key]bool{} // services without further changes
	for _, c := range plan(want, have) {
		if failed[c.key] {
			continue
		}
		if err := c.apply(h); err != nil {
			errs = append(errs, fmt.Errorf("ipvsadm %s: %w", c, err))
			failed[c.key] = c.destination == nil
		}
	}
	return errors.Join(errs...)
}

// read lists the virtual services at our addresses; nil where the kernel can't be asked.
func read(h *ipvs.Handle, owned map[netip.Addr]bool) (map[key]virtual, error) {
	all, err := h.GetServices()
	if err != nil {
		return nil, fmt.Errorf("listing the services of IPVS: %w", err)
	}
	have := map[key]virtual{}
	var errs []error
	for _, s := range all {
		a, ok := netip.AddrFromSlice(s.Address)
		if a = a.Unmap(); !ok || s.FWMark != 0 || !owned[a] {
			continue
		}
		for _, p := range []balance.Protocol{balance.TCP, balance.UDP, balance.SCTP} {
			if number(p) != s.Protocol {
				continue
			}
			k := key{netip.AddrPortFrom(a, s.Port), p}
			pods, err := h.GetDestinations(s)
			if err != nil {
				errs = append(errs, fmt.Errorf("listing the pods of service %s/%s: %w", k.at, k.protocol, err))
			}
			have[k] = virtual{s, pods}
		}
	}
	return have, errors.Join(errs...)
}

// apply makes the change. An object that exists already, or is already gone, is no error.
func (c change) apply(h *ipvs.Handle) (err error) {
	switch c.operation {
	case addService:
		err = h.NewService(c.service)
	case editService:
		err = h.UpdateService(c.service)
	case deleteService:
		err = h.DelService(c.service)
	case addServer:
		err = h.NewDestination(c.service, c.destination)
	case editServer:
		err = h.UpdateDestination(c.service, c.destination)
	case deleteServer:
		err = h.DelDestination(c.service, c.destination)
	}
	if (c.operation == addService || c.operation == addServer) && errors.Is(err, unix.EEXIST) || c.operation == deleteServer && errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}
