package kubeproxy

import (
	"strings"
	"testing"

	"sigs.k8s.io/knftables"
)

// The rule is added to the proxy's chain once that exists, before the chain's own, once, and again
// when the proxy has recreated the chain.
func TestClaims_29_RefusalOfTCPIsAReset(t *testing.T) {
	n := knftables.NewFake(knftables.IPv4Family, table)
	want := func(there bool, rules int) {
		t.Helper()
		got, err := reset(t.Context(), n)
		if err != nil || got != there {
			t.Fatalf("%v %v, want %v", got, err, there)
		}
		if dump := n.Dump(); strings.Count(dump, "tcp reset") != rules || rules > 0 && strings.Index(dump, "tcp reset") > strings.LastIndex(dump, "reject-chain reject") {
			t.Errorf("the rules are\n%s", dump)
		}
	}
	want(false, 0)
	chain := func() {
		t.Helper()
		tx := n.NewTransaction()
		tx.Add(&knftables.Table{})
		tx.Add(&knftables.Chain{Name: rejectChain})
		tx.Flush(&knftables.Chain{Name: rejectChain})
		tx.Add(&knftables.Rule{Chain: rejectChain, Rule: "reject"})
		if err := n.Run(t.Context(), tx); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		chain()
		want(true, 1)
		want(true, 1)
	}
}
