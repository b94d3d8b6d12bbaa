package redirect

import (
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
)

// kube-proxy in nftables mode has chains of the priority that iptables' nat table has
// (NF_IP_PRI_NAT_DST, -100), and of two such chains the kernel asks the one first that was
// registered last (nf_hook_entries_grow): a kube-proxy that starts after us would redirect pods
// elsewhere, and no order among iptables' own rules helps. So the same redirection is also in a
// table of nftables one priority earlier. If that matches, later chains are not evaluated: packets
// for the device's own server are left as they are, which a pod's hostPort would else redirect (the
// portmap plugin matches each address of the device).
const (
	earlyTable    = "skerry-api"
	earlyPriority = "-101"
)

// applyEarly creates or removes the table. Without the program nft, or nftables in the kernel,
// there is no table.
func applyEarly(want []Rule) error {
	if _, err := exec.LookPath("nft"); err != nil {
		return nil //nolint:nilerr // see above
	}
	tables, err := nft("", "list", "tables", "ip")
	if err != nil {
		return nil //nolint:nilerr // see above
	}
	there := slices.Contains(strings.Split(tables, "\n"), "table ip "+earlyTable)
	if len(want) == 0 {
		if there {
			_, err = nft("", "delete", "table", "ip", earlyTable)
		}
		return err
	}
	if there {
		listed, err := nft("", "list", "table", "ip", earlyTable)
		if err != nil {
			return err
		}
		if slices.Equal(earlyRules(listed), earlyRules(earlyText(want))) {
			return nil
		}
	}
	_, err = nft(earlyText(want), "-f", "-")
	return err
}

// earlyText is the table as nft(8) reads it, in one transaction. The first two lines remove an
// existing table, and succeed without one.
func earlyText(want []Rule) string {
	var b strings.Builder
	fmt.Fprintf(&b, "table ip %s\ndelete table ip %[1]s\ntable ip %[1]s {\n", earlyTable)
	for _, hook := range []string{"prerouting", "output"} {
		fmt.Fprintf(&b, "\tchain %s {\n\t\ttype nat hook %[1]s priority %s; policy accept;\n", hook, earlyPriority)
		for _, r := range want {
			fmt.Fprintf(&b, "\t\tip daddr %s tcp dport %d dnat to %s\n", r.From.Addr(), r.From.Port(), r.To)
		}
		for _, a := range servers(want) {
			fmt.Fprintf(&b, "\t\tip daddr %s dnat to %[1]s\n", a)
		}
		b.WriteString("\t}\n")
	}
	b.WriteString("}\n")
	return b.String()
}

// earlyRules are the rules of a table with the chains that they are in. How a priority is written
// depends on the version of nft.
func earlyRules(text string) (rules []string) {
	chain := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "chain "); ok {
			chain = strings.TrimSuffix(name, " {")
		} else if chain != "" && line != "" && line != "}" && !strings.HasPrefix(line, "type ") {
			rules = append(rules, chain+": "+line)
		}
	}
	return rules
}

func nft(input string, args ...string) (string, error) {
	c := exec.Command("nft", args...)
	var errs strings.Builder
	c.Stdin, c.Stderr = strings.NewReader(input), &errs
	out, err := c.Output()
	if err != nil {
		return "", errors.Join(fmt.Errorf("nft %s: %w", strings.Join(args, " "), err), errors.New(strings.TrimSpace(errs.String())))
	}
	return string(out), nil
}
