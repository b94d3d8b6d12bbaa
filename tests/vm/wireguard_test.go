package vm_test

import (
	"strings"
	"testing"
	"time"

	"github.com/skerry-io/skerry/tests/uml"
	"github.com/skerry-io/skerry/tests/vm"
)

// Devices of a site that share no network: the kernel's WireGuard, contact and the agent of the pod
// network, with traffic, in a kernel that has it.
func TestSite_32_WireGuardBetweenNetworks(t *testing.T) {
	if testing.Short() {
		t.Skip("boots a kernel")
	}
	file, err := uml.Build(t.Context(), t.TempDir(), "./edge/internal/site/podnet")
	if err != nil {
		t.Fatal(err)
	}
	out, code := vm.Run(t, vm.Guest{
		Memory: 1024, Patience: 12 * time.Minute,
		Modules:  []string{"wireguard", "veth", "bridge", "nf_tables", "nft_chain_nat", "nft_masq", "nft_fib_inet", "nft_fib_ipv4", "nft_fib_ipv6", "nft_ct"},
		Programs: []string{"ip", "nft", "nsenter"},
		Files:    map[string]string{"/podnet.test": file},
		Line:     "/podnet.test -test.v -test.timeout 10m -test.run '^TestWireGuard$'",
	})
	if code != 0 || !strings.Contains(out, "--- PASS: TestWireGuard") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	for line := range strings.Lines(out) {
		if strings.Contains(line, "--- ") {
			t.Log(strings.TrimSpace(line))
		}
	}
}
