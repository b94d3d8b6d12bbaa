package marks

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/mangle"
)

// Mark is the mark of a connection. Docs/services.md explains each.
type Mark uint8

// The marks.
const (
	ClusterStatus Mark = 23 // the device's own status port
	TCPService    Mark = 24
	UDPService    Mark = 25
	HTTPIngress   Mark = 26
	HTTPSIngress  Mark = 27
)

// multiport is how many ports one rule may name (XT_MULTI_PORTS of x_tables).
const multiport = 15

const (
	httpPort  = 80
	httpsPort = 443
)

// Settings are the device's own part of a plan.
type Settings struct {
	// ClusterStatusPort is the TCP port whose connections are marked ClusterStatus; 0 without one.
	ClusterStatusPort uint16
}

// destination is where connections that are marked go. The zero Addr is each of the device's own
// addresses.
type destination struct {
	mark     Mark
	protocol string
	address  netip.Addr
}

// port is one port of a destination, and its Services.
type port struct {
	number uint16
	by     string
}

// Plan is the wanted state of the kernel: the same list makes the same rules, in the same order.
// Later rules win where one connection matches several: an ingress before the Service that carries
// it, and the device's own port before both.
func Plan(c *Collected, s Settings) mangle.Rules {
	wanted := map[destination][]port{}
	add := func(mark Mark, protocol string, a netip.Addr, number uint16, by string) {
		d := destination{mark, protocol, a}
		wanted[d] = append(wanted[d], port{number, by})
	}
	for i := range c.Services {
		c.Services[i].mark(add)
	}
	for i := range c.Ingresses {
		e := &c.Ingresses[i]
		mark, number := HTTPIngress, uint16(httpPort)
		if e.HTTPS {
			mark, number = HTTPSIngress, httpsPort
		}
		by := e.Namespace + "/" + e.Name
		for _, a := range e.Addresses {
			add(mark, "tcp", a, number, by)
		}
		if len(e.Addresses) == 0 {
			add(mark, "tcp", netip.Addr{}, number, by)
		}
	}
	if s.ClusterStatusPort > 0 {
		add(ClusterStatus, "tcp", netip.Addr{}, s.ClusterStatusPort, "cluster status")
	}
	var out mangle.Rules
	for _, d := range sorted(wanted) {
		for _, rule := range markRules(d, wanted[d]) {
			if !d.address.Is6() {
				out.V4.Marks = append(out.V4.Marks, rule)
			}
			if !d.address.Is4() {
				out.V6.Marks = append(out.V6.Marks, rule)
			}
		}
	}
	out.V4.ACE, out.V6.ACE = aceRules(c, false), aceRules(c, true)
	return out
}

// mark names the marked ports of a Service: the ports of its addresses, and those that it has on
// each node.
func (s *Service) mark(add func(Mark, string, netip.Addr, uint16, string)) {
	mark := TCPService
	switch s.Protocol {
	case "TCP":
	case "UDP":
		mark = UDPService
	default:
		return
	}
	if s.Namespace == aceNamespace && mark == TCPService {
		return // it is the Authorized Cluster Endpoint's business
	}
	by, protocol := s.Namespace+"/"+s.Name, strings.ToLower(s.Protocol)
	for _, a := range s.Addresses {
		add(mark, protocol, a, s.Port, by)
	}
	if s.NodePort > 0 {
		add(mark, protocol, netip.Addr{}, s.NodePort, by)
	}
	if s.Type == "LoadBalancer" && len(s.Addresses) == 0 {
		add(mark, protocol, netip.Addr{}, s.Port, by)
	}
}

// order is the order of the marks in the chain: the last that matches counts.
func order(m Mark) int {
	return slices.Index([]Mark{TCPService, UDPService, HTTPIngress, HTTPSIngress, ClusterStatus}, m)
}

func sorted(wanted map[destination][]port) []destination {
	all := make([]destination, 0, len(wanted))
	for d := range wanted {
		all = append(all, d)
	}
	slices.SortFunc(all, func(a, b destination) int {
		if n := order(a.mark) - order(b.mark); n != 0 {
			return n
		}
		return a.address.Compare(b.address)
	})
	return all
}

// markRules are the rules for one destination, in chunks of the most that one rule may name.
func markRules(d destination, ports []port) (rules []string) {
	slices.SortFunc(ports, func(a, b port) int {
		if a.number != b.number {
			return int(a.number) - int(b.number)
		}
		return strings.Compare(a.by, b.by)
	})
	var numbers []uint16
	by := map[uint16][]string{}
	for _, p := range ports {
		if len(numbers) == 0 || numbers[len(numbers)-1] != p.number {
			numbers = append(numbers, p.number)
		}
		by[p.number] = append(by[p.number], p.by)
	}
	for chunk := range slices.Chunk(numbers, multiport) {
		var text, names []string
		for _, n := range chunk {
			text = append(text, strconv.Itoa(int(n)))
			names = append(names, by[n]...)
		}
		slices.Sort(names)
		match := "-p " + d.protocol
		if d.address.IsValid() {
			match = "-d " + netip.PrefixFrom(d.address, d.address.BitLen()).String() + " " + match
		} else {
			// Without it, connections of pods to others at such a port would be marked too.
			match += " -m addrtype --dst-type LOCAL"
		}
		rules = append(rules, fmt.Sprintf("%s -m multiport --dports %s -m comment --comment %s -j CONNMARK --set-xmark %#x/0xff",
			match, strings.Join(text, ","), mangle.Comment(strings.Join(slices.Compact(names), " ")), uint8(d.mark)))
	}
	return rules
}

// aceRules are the clients let through to the Authorized Cluster Endpoint; all others are dropped.
// Without such a Service the port is not ours. The device itself may.
func aceRules(c *Collected, six bool) (rules []string) {
	there := false
	for i := range c.Services {
		s := &c.Services[i]
		if s.ACE == nil {
			continue
		}
		there = true
		if !s.ACE.Enabled() {
			continue
		}
		for _, p := range s.ACE.Sources {
			if p.Addr().Is6() == six {
				from := ""
				if p.Bits() > 0 {
					from = "-s " + p.String() + " "
				}
				rules = append(rules, from+"-i "+s.ACE.Interface+" -m comment --comment "+mangle.Comment(s.Namespace+"/"+s.Name)+" -j RETURN")
			}
		}
	}
	if !there {
		return nil
	}
	slices.Sort(rules)
	return append(append([]string{"-i lo -j RETURN"}, slices.Compact(rules)...), "-j DROP")
}
