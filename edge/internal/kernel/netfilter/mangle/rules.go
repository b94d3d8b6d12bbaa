package mangle

import (
	"fmt"
	"slices"
	"strings"
)

// Rules are the contents of our chains, by family. A rule is in the format of iptables-save(8),
// without the chain; a chain without rules does not exist.
type Rules struct{ V4, V6 Chains }

// Chains are the rules of one family.
type Chains struct {
	// Marks are the rules that mark connections that come in.
	Marks []string
	// ACE are the rules for clients of the Authorized Cluster Endpoint.
	ACE []string
}

const (
	table = "mangle"
	hook  = "PREROUTING"
	// marksChain and aceChain are always ours: a fresh process recognises them by name.
	marksChain = "SKERRY-MARKS"
	aceChain   = "SKERRY-ACE"
	// commentMax is the longest comment: XT_MAX_COMMENT_LEN of the kernel, with its end mark.
	commentMax = 255
)

// chain is one of our chains as it should be.
type chain struct {
	name  string
	match string // of the jump in PREROUTING
	first bool   // the rule is before all others; else behind all that restore marks
	rules []string
}

func chains(c Chains) []chain {
	return []chain{
		// An answer does not have the client's original destination.
		{marksChain, "-m conntrack --ctdir ORIGINAL", false, c.Marks},
		{aceChain, "-p tcp -m addrtype --dst-type LOCAL -m conntrack --ctdir ORIGINAL -m tcp --dport 6443", true, c.ACE},
	}
}

// Comment is a text as a comment of a rule: quoted, of printable ASCII, and cut to the kernel's
// limit. Every text gives a single rule.
func Comment(text string) string {
	var b strings.Builder
	for _, r := range text {
		if b.Len() == commentMax {
			break
		}
		if r < ' ' || r > '~' || r == '"' || r == '\\' || r == '\'' || r == '`' {
			r = '_'
		}
		b.WriteRune(r)
	}
	return `"` + b.String() + `"`
}

// restore returns the input of iptables-restore --noflush that changes the kernel state, as written
// by iptables-save, to these chains; "" if it has them. One COMMIT: traffic meets the old rules or
// the new ones.
func restore(want Chains, saved string) string {
	have := parse(saved)
	var declare, fill, end []string
	for _, c := range chains(want) {
		lead := c.match + " -j " + c.name
		at := positions(have[hook], lead)
		old, there := have[c.name]
		if len(c.rules) == 0 {
			for range at {
				end = append(end, "-D "+hook+" "+lead)
			}
			if there {
				declare = append(declare, ":"+c.name+" - [0:0]")
				end = append(end, "-X "+c.name)
			}
			continue
		}
		if !there || !slices.Equal(old, c.rules) {
			declare = append(declare, ":"+c.name+" - [0:0]") // also empties it
			for _, r := range c.rules {
				fill = append(fill, "-A "+c.name+" "+r)
			}
		}
		if len(at) == 1 && placed(have[hook], at[0], c.first) {
			continue
		}
		for range at {
			fill = append(fill, "-D "+hook+" "+lead)
		}
		if c.first {
			fill = append(fill, "-I "+hook+" 1 "+lead)
		} else {
			fill = append(fill, "-A "+hook+" "+lead)
		}
	}
	lines := slices.Concat(declare, fill, end)
	if len(lines) == 0 {
		return ""
	}
	return fmt.Sprintf("*%s\n%s\nCOMMIT\n", table, strings.Join(lines, "\n"))
}

func positions(rules []string, rule string) (at []int) {
	for i, r := range rules {
		if r == rule {
			at = append(at, i)
		}
	}
	return at
}

// placed reports whether our rule is where it should be among those of PREROUTING: before all that
// are not Skerry's, or behind the last that restores a mark, which would undo ours.
func placed(rules []string, at int, first bool) bool {
	if first {
		return !slices.ContainsFunc(rules[:at], func(r string) bool { return !strings.Contains(r, "-j SKERRY-") })
	}
	return !slices.ContainsFunc(rules[at+1:], func(r string) bool { return strings.Contains(r, "-j CONNMARK --restore-mark") })
}

// parse reads the output of iptables-save: the rules by chain, without "-A CHAIN ". A chain without
// rules is included.
func parse(saved string) map[string][]string {
	have := map[string][]string{}
	for line := range strings.Lines(saved) {
		line = strings.TrimRight(line, "\r\n")
		if rest, ok := strings.CutPrefix(line, ":"); ok {
			name, _, _ := strings.Cut(rest, " ")
			have[name] = []string{}
		} else if rest, ok := strings.CutPrefix(line, "-A "); ok {
			name, rule, _ := strings.Cut(rest, " ")
			have[name] = append(have[name], strings.TrimSpace(rule))
		}
	}
	return have
}

// Len is how many rules there are.
func (r Rules) Len() int { return len(r.V4.Marks) + len(r.V4.ACE) + len(r.V6.Marks) + len(r.V6.ACE) }
