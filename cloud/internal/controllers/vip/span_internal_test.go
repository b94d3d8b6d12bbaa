package vip

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func text(s spans) string {
	var parts []string
	for _, x := range s {
		parts = append(parts, x.String())
	}
	return strings.Join(parts, " ")
}

func set(t *testing.T, words string) spans {
	t.Helper()
	var all []span
	for w := range strings.FieldsSeq(words) {
		s, err := parseSpan(w)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	return union(all...)
}

// Scenario 7: single, network, range, IPv6, both ends usable.
func TestVIPs_07_RangesKeepBothEnds(t *testing.T) {
	for in, want := range map[string]string{
		"192.168.10.5":                    "192.168.10.5",
		"192.168.10.64/28":                "192.168.10.65-192.168.10.78",
		"192.168.10.64/31":                "192.168.10.64-192.168.10.65",
		"192.168.10.64/32":                "192.168.10.64",
		"172.20.0.100-172.20.0.200":       "172.20.0.100-172.20.0.200",
		" 172.20.0.1 - 172.20.0.1 ":       "172.20.0.1",
		"2002:2:2::1-2002:2:2::100":       "2002:2:2::1-2002:2:2::100",
		"2001:db8::/64":                   "2001:db8::1-2001:db8::ffff:ffff:ffff:ffff",
		"2001:db8::/127":                  "2001:db8::-2001:db8::1",
		"2001:db8::1/128":                 "2001:db8::1",
		"172.20.0.200-172.20.0.100":       "error: 172.20.0.200-172.20.0.100: the range is reversed, write 172.20.0.100-172.20.0.200",
		"172.20.0.1-2001:db8::1":          "error: 172.20.0.1-2001:db8::1: one end is IPv4, the other is IPv6",
		"192.168.10.65/28":                "error: 192.168.10.65/28 has bits set behind its mask: write 192.168.10.64/28",
		"127.0.0.1":                       "error: 127.0.0.1 can't be a virtual IP",
		"fe80::1":                         "error: fe80::1 can't be a virtual IP",
		"224.0.0.1-224.0.0.9":             "error: 224.0.0.1 can't be a virtual IP",
		"255.255.255.255":                 "error: 255.255.255.255 can't be a virtual IP",
		"::ffff:192.168.0.1":              "error: ::ffff:192.168.0.1: write the IPv4 address as such",
		"nginx":                           `error: "nginx" is no IP address`,
		"192.168.10.0/40":                 `error: "192.168.10.0/40" is no network`,
		"":                                `error: "" is no IP address`,
		"192.168.10.1-":                   `error: "" is no IP address`,
		"192.168.10.1-192.168.10.9-1.2.3": `error: "192.168.10.9-1.2.3" is no IP address`,
	} {
		got, err := parseSpan(in)
		out := got.String()
		if err != nil {
			out = "error: " + err.Error()
		}
		if out != want {
			t.Errorf("%q: got %s, want %s", in, out, want)
		}
	}
}

func TestSpans(t *testing.T) {
	for name, c := range map[string]struct{ a, b, union, without string }{
		"apart":      {"10.0.0.1-10.0.0.3 10.0.0.9", "10.0.1.1", "10.0.0.1-10.0.0.3 10.0.0.9 10.0.1.1", "10.0.0.1-10.0.0.3 10.0.0.9"},
		"neighbours": {"10.0.0.1-10.0.0.3", "10.0.0.4", "10.0.0.1-10.0.0.4", "10.0.0.1-10.0.0.3"},
		"a hole":     {"10.0.0.1-10.0.0.9", "10.0.0.4-10.0.0.5 10.0.0.7", "10.0.0.1-10.0.0.9", "10.0.0.1-10.0.0.3 10.0.0.6 10.0.0.8-10.0.0.9"},
		"both ends":  {"10.0.0.1-10.0.0.9", "10.0.0.1 10.0.0.9", "10.0.0.1-10.0.0.9", "10.0.0.2-10.0.0.8"},
		"all":        {"10.0.0.1-10.0.0.9", "10.0.0.0-10.0.0.20", "10.0.0.0-10.0.0.20", ""},
		"families":   {"10.0.0.1 2001:db8::1-2001:db8::5", "2001:db8::2", "10.0.0.1 2001:db8::1-2001:db8::5", "10.0.0.1 2001:db8::1 2001:db8::3-2001:db8::5"},
		"across":     {"10.0.0.1-10.0.0.5 10.0.0.8-10.0.0.12", "10.0.0.4-10.0.0.9", "10.0.0.1-10.0.0.12", "10.0.0.1-10.0.0.3 10.0.0.10-10.0.0.12"},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := set(t, c.a), set(t, c.b)
			if diff := cmp.Diff(c.union, text(union(append(append([]span{}, a...), b...)...))); diff != "" {
				t.Errorf("union (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.without, text(a.without(b))); diff != "" {
				t.Errorf("without (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSpans_sizeAndPlace(t *testing.T) {
	small := set(t, "10.0.0.1-10.0.0.3 10.0.0.9 2001:db8::5")
	if n := small.size(); n != 5 {
		t.Errorf("size: got %d, want 5", n)
	}
	for i, want := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.9", "2001:db8::5"} {
		if got := small.at(u128{0, uint64(i)}).String(); got != want {
			t.Errorf("at %d: got %s, want %s", i, got, want)
		}
	}
	for _, words := range []string{"2001:db8::/32", "2001:db8::/64", "1::-fd00::ffff"} {
		if n := set(t, words).size(); n != 1<<63-1 {
			t.Errorf("%s: got %d, want as many as can be said", words, n)
		}
	}
	for after, want := range map[string]string{"10.0.0.1": "10.0.0.2", "10.0.0.3": "10.0.0.9", "10.0.0.5": "10.0.0.9", "10.0.0.0": "10.0.0.1", "ffff::": "10.0.0.1"} {
		if got := small.after(netip.MustParseAddr(after)); got.String() != want {
			t.Errorf("after %s: got %s, want %s", after, got, want)
		}
	}
	seen := map[u128]int{}
	next := uint64(0)
	for range 5000 {
		seen[u128{0, 5}.below(func() uint64 { next = next*6364136223846793005 + 1442695040888963407; return next >> 20 })]++
	}
	if len(seen) != 5 {
		t.Errorf("below 5 drew %v", seen)
	}
}

func FuzzParseSpan(f *testing.F) {
	for _, s := range []string{"10.0.0.0/8", "10.0.0.1-10.0.0.9", "2001:db8::/64", "::-ffff::", "1-2-3", "/"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		s, err := parseSpan(in)
		if err != nil {
			return
		}
		if s.to.Less(s.from) || s.from.Is4() != s.to.Is4() || s.from.Is4In6() {
			t.Fatalf("%q: %v", in, s)
		}
		all := union(s)
		if !all.contains(s.from) || !all.contains(s.to) || len(all.without(all)) != 0 || all.at(u128{}) != s.from {
			t.Fatalf("%q: %v is not itself", in, s)
		}
		again, err := parseSpan(s.String())
		if err != nil && s.from != (netip.Addr{}) && again != s {
			t.Fatalf("%q: %v reads as %v, %v", in, s, again, err)
		}
	})
}
