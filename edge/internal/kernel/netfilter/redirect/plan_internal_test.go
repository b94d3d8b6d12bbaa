package redirect

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/skerry-io/skerry/tests/golden"
)

// The plans, for states of the kernel that the driver's own test doesn't reach. UPDATE=1 writes the
// file.
func TestPlan(t *testing.T) {
	rule := func(from, to string) Rule { return Rule{netip.MustParseAddrPort(from), netip.MustParseAddrPort(to)} }
	ip := netip.MustParseAddr
	one := []Rule{rule("10.96.0.1:443", "169.254.20.20:10550")}
	empty := func() map[string][]string {
		return map[string][]string{"PREROUTING": {"-P PREROUTING ACCEPT"}, "OUTPUT": {"-P OUTPUT ACCEPT"}}
	}
	full := state{
		addresses: []address{{ip("127.0.0.1"), false}, {ip("169.254.20.20"), true}},
		chain: []string{
			"-N SKERRY-API",
			"-A SKERRY-API -d 10.96.0.1/32 -p tcp -m tcp --dport 443 -j DNAT --to-destination 169.254.20.20:10550",
		},
		hooks: map[string][]string{
			"PREROUTING": {"-P PREROUTING ACCEPT", "-A PREROUTING -j SKERRY-API"},
			"OUTPUT":     {"-P OUTPUT ACCEPT", "-A OUTPUT -j SKERRY-API"},
		},
	}
	behind := full
	behind.hooks = map[string][]string{
		"PREROUTING": {"-P PREROUTING ACCEPT", "-A PREROUTING -j KUBE-SERVICES", "-A PREROUTING -j SKERRY-API"}, "OUTPUT": full.hooks["OUTPUT"],
	}
	emptied := full
	emptied.chain = full.chain[:1]
	foreign := state{addresses: []address{{ip("169.254.20.20"), false}}, hooks: empty()}
	var text strings.Builder
	for _, c := range []struct {
		name string
		want []Rule
		have state
	}{
		{"nothing there", one, state{hooks: empty()}},
		{"all there", one, full},
		{"another rule came before ours", one, behind},
		{"the chain was emptied by hand", one, emptied},
		{"the address is not ours", one, foreign},
		{"the Service and the listener moved", []Rule{rule("10.97.0.1:443", "169.254.20.21:10550")}, full},
		{"switched off", nil, full},
		{"switched off, nothing there", nil, state{hooks: empty()}},
		{"switched off, the address is not ours", nil, foreign},
	} {
		fmt.Fprintf(&text, "# %s\n", c.name)
		for _, change := range plan(c.want, c.have) {
			fmt.Fprintln(&text, change)
		}
		fmt.Fprintln(&text)
	}
	golden.Check(t, "testdata/plan.golden", text.String())
}
