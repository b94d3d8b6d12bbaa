package kubevip_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/skerry-io/skerry/cloud/install/kubevip"
)

func TestOptions_Ranges(t *testing.T) {
	used := map[netip.Addr]string{netip.MustParseAddr("192.168.10.66"): "node edge1", netip.MustParseAddr("10.0.0.1"): "node edge2"}
	for name, test := range map[string]struct {
		cidr    string
		exclude []string
		want    string // ERROR: text for an error
	}{
		"a network":             {"10.20.30.0/24", nil, "10.20.30.1-10.20.30.254"},
		"two addresses":         {"10.20.30.4/31", nil, "10.20.30.4-10.20.30.5"},
		"one address":           {"10.20.30.4/32", nil, "10.20.30.4-10.20.30.4"},
		"IPv6":                  {"2001:db8::/120", nil, "2001:db8::-2001:db8::ff"},
		"exclusions":            {"192.168.10.64/28", []string{"192.168.10.66", "192.168.10.70-192.168.10.75", "192.168.10.76/31"}, "192.168.10.65-192.168.10.65,192.168.10.67-192.168.10.69,192.168.10.78-192.168.10.78"},
		"no CIDR":               {"192.168.10.0", nil, "ERROR: must be a network in CIDR notation"},
		"a word":                {"eth0", nil, "ERROR: must be a network in CIDR notation"},
		"bits behind the mask":  {"192.168.10.65/28", nil, "ERROR: has bits set behind its mask: write 192.168.10.64/28"},
		"far too much":          {"10.0.0.0/8", nil, "ERROR: at most 65536 addresses"},
		"everything":            {"0.0.0.0/0", nil, "ERROR: at most 65536 addresses"},
		"loopback":              {"127.0.0.0/24", nil, "ERROR: of the LAN"},
		"a node's address":      {"192.168.10.64/28", nil, "ERROR: 192.168.10.66 is the address of node edge1: choose another --cidr, or --exclude 192.168.10.66"},
		"nothing left":          {"10.20.30.0/30", []string{"10.20.30.0/30"}, "ERROR: no address is left"},
		"exclusion outside":     {"10.20.30.0/24", []string{"10.20.31.1"}, "ERROR: is not within"},
		"exclusion half inside": {"10.20.30.0/24", []string{"10.20.30.250-10.20.31.1"}, "ERROR: is not within"},
		"exclusion backwards":   {"10.20.30.0/24", []string{"10.20.30.9-10.20.30.1"}, "ERROR: must be an address, a network, or a range"},
		"exclusion of a word":   {"10.20.30.0/24", []string{"x"}, "ERROR: must be an address, a network, or a range"},
	} {
		got, err := kubevip.Options{Interface: "eth0", CIDR: test.cidr, Exclude: test.exclude}.Ranges(used)
		if bad, ok := strings.CutPrefix(test.want, "ERROR: "); ok {
			if err == nil || !strings.Contains(err.Error(), bad) {
				t.Errorf("%s: %q, %v, want an error with %q", name, got, err, bad)
			}
		} else if err != nil || got != test.want {
			t.Errorf("%s: %q, %v, want %q", name, got, err, test.want)
		}
	}
}

func FuzzRanges(f *testing.F) {
	f.Add("10.20.30.0/24", "10.20.30.7-10.20.30.9")
	f.Fuzz(func(t *testing.T, cidr, exclude string) {
		ranges, err := kubevip.Options{CIDR: cidr, Exclude: []string{exclude}}.Ranges(nil)
		if err != nil {
			return
		}
		p := netip.MustParsePrefix(cidr)
		before := netip.Addr{}
		for part := range strings.SplitSeq(ranges, ",") {
			from, to, _ := strings.Cut(part, "-")
			a, b := netip.MustParseAddr(from), netip.MustParseAddr(to)
			if !p.Contains(a) || !p.Contains(b) || b.Less(a) || before.IsValid() && !before.Less(a) {
				t.Errorf("%s without %s: %s", cidr, exclude, ranges)
			}
			before = b
		}
	})
}
