package redirect

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// A Rule redirects TCP connections for From to To, an address that is added to this device. Both
// are IPv4.
type Rule struct{ From, To netip.AddrPort }

const (
	// label marks our addresses: a fresh process recognises them by it (ip-address(8)).
	label = "lo:skerry"
	table = "nat"
	chain = "SKERRY-API"
)

// hooks are the chains in which arriving packets, and the device's own, jump to our chain. Before
// all other rules: kube-proxy translates the same address differently.
func hooks() []string { return []string{"PREROUTING", "OUTPUT"} }

// state is the kernel state. Rules are in the format of `iptables -S`; the first line of a list
// makes the chain or sets its policy.
type state struct {
	addresses []address           // of the loopback interface
	chain     []string            // of ours; nil: it does not exist
	hooks     map[string][]string // by name
}

type address struct {
	ip   netip.Addr
	ours bool
}

type operation uint8

const (
	addAddress operation = iota
	deleteAddress
	newChain // also empties an existing one
	appendRule
	insertRule // as the first
	deleteRule
	deleteChain
)

// change is one change to the kernel.
type change struct {
	op      operation
	address netip.Addr
	chain   string
	rule    []string
}

// String is the change as a command.
func (c change) String() string {
	ip := "ip address " + map[operation]string{addAddress: "add ", deleteAddress: "del "}[c.op] + c.address.String() + "/32 dev lo label " + label
	rule := strings.Join(c.rule, " ")
	switch c.op {
	case addAddress:
		return ip + " scope host"
	case deleteAddress:
		return ip
	case newChain:
		return "iptables -t " + table + " -N " + c.chain
	case appendRule:
		return "iptables -t " + table + " -A " + c.chain + " " + rule
	case insertRule:
		return "iptables -t " + table + " -I " + c.chain + " 1 " + rule
	case deleteRule:
		return "iptables -t " + table + " -D " + c.chain + " " + rule
	default:
		return "iptables -t " + table + " -X " + c.chain
	}
}

// plan returns the changes that make the kernel redirect exactly this. Addresses are added first
// and removed last: a rule to a missing one would forward into the network.
func plan(want []Rule, have state) []change {
	added, removed := planAddresses(want, have)
	changes := added
	if len(want) == 0 {
		for _, hook := range hooks() {
			if slices.Contains(have.hooks[hook], jump(hook)) {
				changes = append(changes, change{op: deleteRule, chain: hook, rule: toChain()})
			}
		}
		if have.chain != nil {
			changes = append(changes, change{op: deleteChain, chain: chain})
		}
		return append(changes, removed...)
	}
	changes = append(changes, planChain(want, have)...)
	for _, hook := range hooks() {
		at := slices.Index(have.hooks[hook], jump(hook))
		if at == 1 {
			continue
		}
		if at > 1 { // kube-proxy inserts its own rule before ours when it starts
			changes = append(changes, change{op: deleteRule, chain: hook, rule: toChain()})
		}
		changes = append(changes, change{op: insertRule, chain: hook, rule: toChain()})
	}
	return append(changes, removed...)
}

func toChain() []string { return []string{"-j", chain} }

func jump(hook string) string { return "-A " + hook + " -j " + chain }

func planAddresses(want []Rule, have state) (added, removed []change) {
	wanted := map[netip.Addr]bool{}
	for _, r := range want {
		wanted[r.To.Addr()] = true
	}
	for _, a := range have.addresses {
		if a.ours && !wanted[a.ip] {
			removed = append(removed, change{op: deleteAddress, address: a.ip})
		}
		delete(wanted, a.ip)
	}
	for ip := range wanted {
		added = append(added, change{op: addAddress, address: ip})
	}
	slices.SortFunc(added, func(x, y change) int { return x.address.Compare(y.address) })
	return added, removed
}

// planChain fills the chain if it is not as it should be.
func planChain(want []Rule, have state) []change {
	lines := []string{"-N " + chain}
	fill := []change{{op: newChain, chain: chain}}
	for _, r := range want {
		rule := []string{
			"-d", netip.PrefixFrom(r.From.Addr(), 32).String(), "-p", "tcp", "-m", "tcp",
			"--dport", strconv.Itoa(int(r.From.Port())), "-j", "DNAT", "--to-destination", r.To.String(),
		}
		lines = append(lines, "-A "+chain+" "+strings.Join(rule, " "))
		fill = append(fill, change{op: appendRule, chain: chain, rule: rule})
	}
	for _, a := range servers(want) { // a pod's hostPort takes no port of them
		rule := []string{"-d", netip.PrefixFrom(a, 32).String(), "-j", "ACCEPT"}
		lines = append(lines, "-A "+chain+" "+strings.Join(rule, " "))
		fill = append(fill, change{op: appendRule, chain: chain, rule: rule})
	}
	if slices.Equal(lines, have.chain) {
		return nil
	}
	return fill
}

// servers are the addresses of this device that rules lead to, each once.
func servers(want []Rule) (all []netip.Addr) {
	for _, r := range want {
		if !slices.Contains(all, r.To.Addr()) {
			all = append(all, r.To.Addr())
		}
	}
	return all
}
