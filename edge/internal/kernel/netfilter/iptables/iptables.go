// Package iptables is the data plane for virtual IPs that every Linux kernel has: DNAT to the
// node's own pods, each in turn.
//
// It owns the chains whose names begin with SKERRY-, and one rule in each of the kernel's chains
// that jumps to them. It refuses to touch anything else and never flushes. New rules are added
// before old ones are removed. Plane.Apply is called by one goroutine at a time.
package iptables

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/skerry-io/skerry/common/rerun"
	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/balance"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/dump"
)

// Bases are the rules that jump to our chains. DNAT applies to arriving packets and to those of the
// node itself.
func Bases() []Base {
	return []Base{natIn(), natOut(), Source(), sources(), Input(), Forward(), loop()}
}

func natIn() Base  { return Base{Table: "nat", Name: prefix + "VIP", Hook: "PREROUTING"} }
func natOut() Base { return Base{Table: "nat", Name: prefix + "VIP-LOCAL", Hook: "OUTPUT"} }

// Source changes the addresses that pods see.
func Source() Base { return Base{Table: "nat", Name: prefix + "VIP-SOURCE", Hook: "POSTROUTING"} }

// Input closes the ports that are not served.
func Input() Base { return Base{Table: "filter", Name: prefix + "VIP-PORTS", Hook: "INPUT"} }

// Forward accepts packets to pods if the policy is DROP; after all other rules, so that it does not
// override a drop of another rule.
func Forward() Base {
	return Base{Table: "filter", Name: prefix + "VIP-FORWARD", Hook: "FORWARD", Last: true}
}

// loop drops packets that would leave by the LAN interface on which they arrived: a packet for an
// address that no node holds would travel between a router and this node.
func loop() Base { return Base{Table: "mangle", Name: prefix + "VIP-LOOP", Hook: "FORWARD"} }

// sources drops packets from sources that the service does not allow, before translation.
func sources() Base {
	return Base{Table: "mangle", Name: prefix + "VIP-RANGES", Hook: "PREROUTING"}
}

// Plane is the data plane.
type Plane struct {
	four, six *Rules
}

// New finds the programs. ip6tables may be missing on a device without IPv6.
func New() (*Plane, error) {
	four, err := NewRules(false)
	if err != nil {
		return nil, err
	}
	six, err := NewRules(true)
	if err != nil {
		six = nil
	}
	return &Plane{four, six}, nil
}

// Name of the data plane.
func (*Plane) Name() string { return "iptables" }

// Apply makes the kernel serve exactly this.
func (p *Plane) Apply(ctx context.Context, want []balance.Service) error {
	if err := balance.Validate(want); err != nil {
		return fmt.Errorf("virtual IPs: %w", err)
	}
	var errs []error
	want = balance.Normal(want)
	for _, f := range []struct {
		rules *Rules
		six   bool
	}{{p.four, false}, {p.six, true}} {
		mine := slices.DeleteFunc(slices.Clone(want), func(s balance.Service) bool { return s.Address.Is6() != f.six })
		if f.rules == nil {
			if len(mine) > 0 {
				errs = append(errs, errors.New("there are IPv6 addresses, and there is no ip6tables"))
			}
			continue
		}
		var leaves []Leaf
		for _, s := range mine {
			leaves = append(leaves, nat(s)...)
			leaves = append(leaves, Guard(s, false)...)
		}
		errs = append(errs, f.rules.Apply(Bases(), leaves), Forget(ctx, mine, f.six))
	}
	return errors.Join(errs...)
}

func whole(a netip.Addr) string { return netip.PrefixFrom(a, a.BitLen()).String() }

// nat are the rules for the ports of a service: the n-th of every n new connections is forwarded to
// the n-th pod.
func nat(s balance.Service) []Leaf {
	var out []Leaf
	for _, p := range s.Ports {
		if len(p.Backends) == 0 {
			continue
		}
		match := []string{"-d", whole(s.Address), "-p", string(p.Protocol), "-m", string(p.Protocol), "--dport", strconv.Itoa(int(p.Number))}
		rules := append(again(s, p), inTurn(s, p)...)
		of := []string{
			"-p", string(p.Protocol), "-m", "conntrack", "--ctstate", "DNAT", "--ctorigdst", whole(s.Address), "--ctorigdstport", strconv.Itoa(int(p.Number)),
			"--ctdir", "ORIGINAL",
		}
		out = append(out,
			Leaf{Base: natIn(), Match: match, Rules: rules},
			Leaf{Base: natOut(), Match: match, Rules: rules},
			Leaf{Base: Source(), Match: of, Rules: SourceRules(s, p)},
			Leaf{Base: Forward(), Match: slices.Concat(of[:8], []string{"--ctorigdstport", strconv.Itoa(int(p.Number))}), Rules: [][]string{{"-j", "ACCEPT"}}},
		)
	}
	return out
}

// inTurn forwards each new client to the next pod, and records it for affinity.
func inTurn(s balance.Service, p balance.Port) [][]string {
	var rules [][]string
	for i, b := range p.Backends {
		rule := []string{"-p", string(p.Protocol)}
		if left := len(p.Backends) - i; left > 1 {
			rule = append(rule, "-m", "statistic", "--mode", "nth", "--every", strconv.Itoa(left), "--packet", "0")
		}
		if s.Affinity > 0 {
			rule = append(rule, "-m", "recent", "--name", list(s, p, b), "--set", "--rsource")
		}
		rules = append(rules, append(rule, "-j", "DNAT", "--to-destination", b.String()))
	}
	return rules
}

// again forwards clients to their last pod. The kernel remembers the last 100 clients of each pod
// (xt_recent's ip_list_tot); earlier ones count as new.
func again(s balance.Service, p balance.Port) [][]string {
	if s.Affinity == 0 || len(p.Backends) < 2 {
		return nil
	}
	var rules [][]string
	for _, b := range p.Backends {
		rules = append(rules, []string{
			"-p", string(p.Protocol), "-m", "recent", "--name", list(s, p, b), "--update", "--seconds", strconv.Itoa(int(s.Affinity.Seconds())), "--reap", "--rsource",
			"-j", "DNAT", "--to-destination", b.String(),
		})
	}
	return rules
}

// list names the kernel's list of a pod's recent clients.
func list(s balance.Service, p balance.Port, b netip.AddrPort) string {
	sum := sha256.Sum256(fmt.Append(nil, s.Address, p.Protocol, p.Number, b))
	return prefix + hex.EncodeToString(sum[:10])
}

// SourceRules are the rules for the client's address. It is kept only on demand; a pod that reaches
// itself by way of the address must not see its own.
func SourceRules(s balance.Service, p balance.Port) [][]string {
	if !s.KeepSource {
		return [][]string{{"-j", "MASQUERADE"}}
	}
	var rules [][]string
	for _, b := range p.Backends {
		rules = append(rules, []string{"-s", whole(b.Addr()), "-d", whole(b.Addr()), "-j", "MASQUERADE"})
	}
	return rules
}

// Guard are the rules that keep an address to itself: ports that are not served are refused, and
// forwarding loops are prevented. local is for a data plane that delivers on the node itself,
// behind INPUT: its ports must pass.
func Guard(s balance.Service, local bool) []Leaf {
	icmp, refuse := "icmp", "icmp-port-unreachable"
	if s.Address.Is6() {
		icmp, refuse = "ipv6-icmp", "icmp6-port-unreachable"
	}
	rules := [][]string{
		{"-p", icmp, "-j", "RETURN"}, // echo, neighbours, path MTU
		{"-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED", "-j", "RETURN"},
	}
	if local {
		for _, p := range s.Ports {
			if len(p.Backends) > 0 {
				rules = append(rules, []string{"-p", string(p.Protocol), "-m", string(p.Protocol), "--dport", strconv.Itoa(int(p.Number)), "-j", "RETURN"})
			}
		}
	}
	rules = append(rules,
		[]string{"-p", "tcp", "-j", "REJECT", "--reject-with", "tcp-reset"},
		[]string{"-j", "REJECT", "--reject-with", refuse},
	)
	out := []Leaf{{Base: Input(), Match: []string{"-d", whole(s.Address)}, Rules: rules}}
	if s.Sources != nil {
		// A pod's answers are sent to the address too if the node's own, which the pod sees, is the
		// address itself: for IPv6 the kernel may choose it.
		from := [][]string{{"-p", icmp, "-j", "RETURN"}, {"-m", "conntrack", "--ctdir", "REPLY", "-j", "RETURN"}}
		for _, r := range s.Sources {
			from = append(from, []string{"-s", r.Masked().String(), "-j", "RETURN"})
		}
		out = append(out, Leaf{Base: sources(), Match: []string{"-d", whole(s.Address)}, Rules: append(from, []string{"-j", "DROP"})})
	}
	if s.Interface != "" {
		out = append(out, Leaf{Base: loop(), Match: []string{"-d", whole(s.Address), "-i", s.Interface, "-o", s.Interface}, Rules: [][]string{{"-j", "DROP"}}})
	}
	return out
}

// unanswered is how long a pod that lives may take for its SYN+ACK, which its kernel sends.
const unanswered = 200 * time.Millisecond

// Forget removes the kernel's entries of flows to pods that are no longer served. A client that
// keeps sending UDP from one port would be sent to the dead pod for as long as it does. A TCP
// connection that is open stays: a pod may end it in its own time. One that the pod has reset, or
// never answered, would send a client that reconnects from the same port to the previous pod:
// nf_conntrack_proto_tcp creates a new entry only after a FIN, not after the pod's RST; and the
// retransmissions of an unanswered client belong to its first attempt.
//
// The kernel deletes an entry in whatever state it is by then, and a connection without its entry
// is reset. So a flow in TIME_WAIT stays, which a new connection replaces, and one that waits for
// an answer is looked at again after a while: Forget blocks that long.
func Forget(ctx context.Context, all []balance.Service, six bool) error {
	served := stale{}
	for _, s := range all {
		for _, p := range s.Ports {
			served[port{number(p.Protocol), netip.AddrPortFrom(s.Address, p.Number)}] = p.Backends
		}
	}
	if len(served) == 0 {
		return nil
	}
	opening, err := forget(served, nil, six)
	if err != nil || len(opening) == 0 {
		return err
	}
	if err := rerun.Pause(ctx, unanswered); err != nil {
		return nil // the next Apply forgets them
	}
	_, err = forget(served, opening, six)
	return err
}

// forget removes stale flows. Of those that wait for an answer it removes the ones that waited
// before, and returns the others.
func forget(served stale, before map[connection]bool, six bool) (opening map[connection]bool, err error) {
	family := netlink.InetFamily(netlink.FAMILY_V4)
	if six {
		family = netlink.FAMILY_V6
	}
	err = dump.Repeat(func() error {
		opening = map[connection]bool{}
		_, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, &sweep{served, before, opening})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("forgetting flows to pods that are gone: %w", err)
	}
	return opening, nil
}

// port is one of an address, by the protocol's number.
type port struct {
	protocol uint8
	at       netip.AddrPort
}

// stale finds flows to served addresses whose pod is no longer served.
type stale map[port][]netip.AddrPort

// connection is a flow by its ends, as the client sees them, and its pod.
type connection struct{ from, to, pod netip.AddrPort }

// number is a protocol's (IANA).
func number(p balance.Protocol) uint8 {
	switch p {
	case balance.TCP:
		return unix.IPPROTO_TCP
	case balance.UDP:
		return unix.IPPROTO_UDP
	}
	return unix.IPPROTO_SCTP
}

// sweep is one pass over the flows.
type sweep struct {
	stale
	before  map[connection]bool // waited for an answer in the pass before
	opening map[connection]bool // wait now
}

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (s *sweep) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	c, ok := s.find(flow)
	if !ok {
		return false
	}
	tcp, ok := flow.ProtoInfo.(*netlink.ProtoInfoTCP)
	if !ok {
		return flow.Forward.Protocol == unix.IPPROTO_UDP
	}
	switch tcp.State {
	case nl.TCP_CONNTRACK_SYN_SENT:
		if !s.before[c] {
			s.opening[c] = true
		}
		return s.before[c]
	case nl.TCP_CONNTRACK_LAST_ACK, nl.TCP_CONNTRACK_CLOSE:
		return true
	}
	return false
}

// find returns the flow if it is stale.
func (s stale) find(flow *netlink.ConntrackFlow) (connection, bool) {
	from, _ := netip.AddrFromSlice(flow.Forward.SrcIP)
	to, _ := netip.AddrFromSlice(flow.Forward.DstIP)
	pod, ok := netip.AddrFromSlice(flow.Reverse.SrcIP)
	c := connection{
		netip.AddrPortFrom(from.Unmap(), flow.Forward.SrcPort), netip.AddrPortFrom(to.Unmap(), flow.Forward.DstPort), netip.AddrPortFrom(pod.Unmap(), flow.Reverse.SrcPort),
	}
	backends, ours := s[port{flow.Forward.Protocol, c.to}]
	return c, ok && ours && !slices.Contains(backends, c.pod)
}
