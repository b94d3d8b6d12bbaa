package iptables

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"

	"github.com/coreos/go-iptables/iptables"
)

// Base is a chain of ours that one of the kernel's chains jumps to.
type Base struct {
	Table, Name, Hook string
	Last              bool // jump to it after all other rules instead of before them
}

// Leaf is a few rules that belong together, behind one match. Its chain is named after its content:
// it is filled before any rule jumps to it and never changed after that, so traffic sees either the
// old rules or the new ones.
type Leaf struct {
	Base  Base
	Match []string
	Rules [][]string
}

// prefix marks our chains: a fresh process recognises them by it.
const prefix = "SKERRY-"

func (l Leaf) chain() string {
	sum := sha256.Sum256(fmt.Append(nil, l.Base, l.Match, l.Rules))
	return prefix + hex.EncodeToString(sum[:10]) // 27 of the 28 characters that a chain's name may have
}

// Rules are our chains of one family.
type Rules struct {
	tool    *iptables.IPTables
	program string // iptables or ip6tables
}

// NewRules finds the family's program: iptables or ip6tables.
func NewRules(six bool) (*Rules, error) {
	family, program := iptables.ProtocolIPv4, "iptables"
	if six {
		family, program = iptables.ProtocolIPv6, "ip6tables"
	}
	// Other programs lock the tables too: wait for them, but not forever.
	tool, err := iptables.New(iptables.IPFamily(family), iptables.Timeout(10))
	if err != nil {
		return nil, fmt.Errorf("looking for iptables: %w", err)
	}
	return &Rules{tool, program}, nil
}

// read lists a whole table in one go: the lines of each chain, the first of which declares the
// chain. Reading the chains one by one would start a process for each, every time.
func (r *Rules) read(table string) (map[string][]string, error) {
	var complaint bytes.Buffer
	cmd := exec.Command(r.program, "-t", table, "-S", "--wait", "10")
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("listing table %s: %w: %s", table, err, strings.TrimSpace(complaint.String()))
	}
	chains := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		line = strings.TrimRight(line, "\n")
		if words := strings.Fields(line); len(words) > 1 {
			chains[words[1]] = append(chains[words[1]], line)
		}
	}
	return chains, nil
}

// Apply makes the chains of the bases have exactly these leaves, adding before removing. Chains and
// rules of others are not touched. Without leaves all of our chains are removed from a base's
// table, including the jump to them.
func (r *Rules) Apply(bases []Base, leaves []Leaf) error {
	tables := map[string][]Base{}
	for _, b := range bases {
		tables[b.Table] = append(tables[b.Table], b)
	}
	var errs []error
	for table, bases := range tables {
		var mine []Leaf
		for _, l := range leaves {
			if l.Base.Table == table {
				mine = append(mine, l)
			}
		}
		errs = append(errs, r.table(table, bases, mine))
	}
	return errors.Join(errs...)
}

func (r *Rules) table(table string, bases []Base, leaves []Leaf) error {
	chains, err := r.read(table)
	if err != nil {
		return err
	}
	exists := map[string]bool{}
	for c := range chains {
		exists[c] = true
	}
	// The jumps.
	leads := map[string]map[string]int{} // base, leaf's chain: how many rules
	for _, b := range bases {
		leads[b.Name] = map[string]int{}
		for _, line := range chains[b.Name] {
			if to, ok := target(line); ok {
				leads[b.Name][to]++
			}
		}
	}
	var errs []error
	wanted := map[string]bool{}
	used, changed := map[string]bool{}, map[string]bool{}
	for _, l := range leaves {
		name := l.chain()
		wanted[name], used[l.Base.Name] = true, true
		if err := r.fill(table, name, l, len(chains[name])); err != nil {
			errs = append(errs, err)
			continue
		}
		if !exists[l.Base.Name] {
			if err := r.tool.NewChain(table, l.Base.Name); err != nil {
				errs = append(errs, fmt.Errorf("making chain %s: %w", l.Base.Name, err))
				continue
			}
			exists[l.Base.Name] = true
		}
		if leads[l.Base.Name][name] == 0 {
			errs = append(errs, wrap(r.tool.Insert(table, l.Base.Name, 1, slices.Concat(l.Match, []string{"-j", name})...), "leading to chain %s", name))
			changed[l.Base.Name] = true
		}
	}
	for _, b := range bases {
		if exists[b.Name] {
			errs = append(errs, r.hook(table, b, used[b.Name], slices.Contains(chains[b.Hook], "-A "+b.Hook+" -j "+b.Name)))
			errs = append(errs, r.prune(table, b.Name, wanted, chains[b.Name], changed[b.Name]))
		}
		if exists[b.Name] && !used[b.Name] {
			errs = append(errs, wrap(r.tool.ClearAndDeleteChain(table, b.Name), "removing chain %s", b.Name))
		}
	}
	for c := range chains {
		if strings.HasPrefix(c, prefix) && len(c) == len(prefix)+20 && !wanted[c] {
			errs = append(errs, wrap(r.tool.ClearAndDeleteChain(table, c), "removing chain %s", c))
		}
	}
	return errors.Join(errs...)
}

// Destinations are the addresses that the rules of a base are for, as a fresh process finds them in
// the kernel.
func (r *Rules) Destinations(b Base) ([]netip.Addr, error) {
	ok, err := r.tool.ChainExists(b.Table, b.Name)
	if err != nil || !ok {
		return nil, wrap(err, "looking for chain %s", b.Name)
	}
	rules, err := r.tool.List(b.Table, b.Name)
	if err != nil {
		return nil, fmt.Errorf("listing chain %s: %w", b.Name, err)
	}
	var out []netip.Addr
	for _, line := range rules {
		words := strings.Fields(line)
		if i := slices.Index(words, "-d"); i >= 0 && i+1 < len(words) {
			text, _, _ := strings.Cut(words[i+1], "/")
			if a, err := netip.ParseAddr(text); err == nil && !slices.Contains(out, a) {
				out = append(out, a)
			}
		}
	}
	return out, nil
}

func wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf(format+": %w", append(args, err)...)
}

// target returns the leaf that a rule jumps to, if it is one of ours.
func target(line string) (string, bool) {
	words := strings.Fields(line)
	i := slices.Index(words, "-j")
	if i < 0 || i+1 >= len(words) || !strings.HasPrefix(words[i+1], prefix) {
		return "", false
	}
	return words[i+1], true
}

// fill creates a leaf's chain. An existing one with the right number of rules is complete: no other
// program writes to it, and a crash leaves fewer.
func (r *Rules) fill(table, name string, l Leaf, lines int) error {
	if lines == len(l.Rules)+1 { // with the line that makes the chain
		return nil
	}
	if err := r.tool.ClearChain(table, name); err != nil { // also makes it
		return fmt.Errorf("making chain %s: %w", name, err)
	}
	for _, rule := range l.Rules {
		if err := r.tool.Append(table, name, rule...); err != nil {
			return fmt.Errorf("filling chain %s with %q: %w", name, strings.Join(rule, " "), err)
		}
	}
	return nil
}

// hook adds or removes the jump from the kernel's chain to ours.
func (r *Rules) hook(table string, b Base, want, have bool) error {
	rule := []string{"-j", b.Name}
	switch {
	case want && !have && b.Last:
		return wrap(r.tool.Append(table, b.Hook, rule...), "leading from %s to %s", b.Hook, b.Name)
	case want && !have:
		return wrap(r.tool.Insert(table, b.Hook, 1, rule...), "leading from %s to %s", b.Hook, b.Name)
	case !want && have:
		return wrap(r.tool.Delete(table, b.Hook, rule...), "leading from %s to %s no longer", b.Hook, b.Name)
	}
	return nil
}

// prune removes a base's jumps to unwanted leaves, and duplicate jumps.
func (r *Rules) prune(table, base string, wanted map[string]bool, rules []string, changed bool) error {
	if changed { // since they were listed
		var err error
		if rules, err = r.tool.List(table, base); err != nil {
			return fmt.Errorf("listing chain %s: %w", base, err)
		}
	}
	seen := map[string]bool{}
	var stale []int // numbers of rules
	for i, line := range rules[min(1, len(rules)):] {
		to, ok := target(line)
		if !ok || !wanted[to] || seen[to] {
			stale = append(stale, i+1)
		}
		seen[to] = true
	}
	for _, n := range slices.Backward(stale) { // from the end, so that the numbers stay right
		if err := r.tool.DeleteById(table, base, n); err != nil {
			return fmt.Errorf("removing rule %d of chain %s: %w", n, base, err)
		}
	}
	return nil
}
