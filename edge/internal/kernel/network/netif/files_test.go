package netif_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/skerry-io/skerry/edge/internal/kernel/network/netif"
)

func file(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// The listener of systemd-resolved on the device itself is no server that could be cut off;
// those behind it are.
func TestResolvers(t *testing.T) {
	dir := t.TempDir()
	stub := file(t, filepath.Join(dir, "stub"), "# a comment\nnameserver 127.0.0.53\noptions edns0\nnameserver\nnameserver nonsense\n")
	real := file(t, filepath.Join(dir, "real"), "search example.com\nnameserver 192.0.2.53\n nameserver  2001:db8::53\nnameserver 192.0.2.53\n")
	want := []netip.Addr{netip.MustParseAddr("192.0.2.53"), netip.MustParseAddr("2001:db8::53")}
	got := netif.Resolvers(stub, filepath.Join(dir, "missing"), real)
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestPodRanges(t *testing.T) {
	dir := t.TempDir()
	file(t, filepath.Join(dir, "10-bridge.conflist"), `{"cniVersion":"1.0.0","plugins":[{"type":"bridge","ipam":{"type":"host-local",
		"ranges":[[{"subnet":"10.88.0.0/16","gateway":"10.88.0.1"}],[{"subnet":"fd00:88::/64"}]]}},{"type":"portmap"}]}`)
	file(t, filepath.Join(dir, "20-old.conf"), `{"type":"ptp","ipam":{"type":"host-local","subnet":"10.89.1.7/24"}}`)
	file(t, filepath.Join(dir, "30-broken.json"), `{"ipam":{"subnet":"10.90.0.0/16"`)
	file(t, filepath.Join(dir, "40-other.conf"), `{"ipam":{"type":"dhcp"},"subnet":"not a network"}`)
	file(t, filepath.Join(dir, "README"), `{"subnet":"10.91.0.0/16"}`)
	want := []netip.Prefix{netip.MustParsePrefix("10.88.0.0/16"), netip.MustParsePrefix("10.89.1.0/24"), netip.MustParsePrefix("fd00:88::/64")}
	got := netif.PodRanges(dir)
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Prefix{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := netif.PodRanges(filepath.Join(dir, "missing")); len(got) > 0 {
		t.Errorf("of a directory that is not there: %v", got)
	}
}
