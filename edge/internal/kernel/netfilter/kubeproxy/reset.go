package kubeproxy

import (
	"context"
	"fmt"
	"slices"

	"sigs.k8s.io/knftables"
)

const (
	table       = "kube-proxy"
	rejectChain = "reject-chain"
	// resetComment marks our rule in the proxy's chain.
	resetComment = "edgecore: a client of TCP gets a reset"
)

// ResetTCP makes the proxy refuse TCP by a reset, which is part of the connection, instead of ICMP,
// which may be rate-limited, filtered or ignored. done is false while the proxy has not made its
// chain yet, or made it anew. Other protocols, and the iptables mode, stay with ICMP.
func (d *Driver) ResetTCP(ctx context.Context) (done bool, err error) {
	if d.refusals == nil {
		for _, family := range []knftables.Family{knftables.IPv4Family, knftables.IPv6Family} {
			n, err := knftables.New(family, table)
			if err != nil {
				return false, fmt.Errorf("opening nftables: %w", err)
			}
			d.refusals = append(d.refusals, n)
		}
	}
	for i, n := range d.refusals {
		there, err := reset(ctx, n)
		if err != nil {
			return false, fmt.Errorf("refusing TCP by a reset: %w", err)
		}
		if !there && i > 0 && done {
			continue // a kernel without IPv6
		}
		done = there
	}
	return done, nil
}

// reset inserts the rule before the chain's own if it is missing; there is false without the chain.
func reset(ctx context.Context, n knftables.Interface) (there bool, err error) {
	rules, err := n.ListRules(ctx, rejectChain)
	if knftables.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if len(rules) == 0 { // it is being made
		return false, nil
	}
	if slices.ContainsFunc(rules, func(r *knftables.Rule) bool { return r.Comment != nil && *r.Comment == resetComment }) {
		return true, nil
	}
	tx := n.NewTransaction()
	tx.Insert(&knftables.Rule{Chain: rejectChain, Rule: "meta l4proto tcp reject with tcp reset", Comment: new(resetComment)})
	return true, n.Run(ctx, tx)
}
