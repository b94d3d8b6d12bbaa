package keepalived

import (
	"bytes"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/skerry-io/skerry/tests/golden"
)

// The configuration as keepalived reads it.
func TestRender(t *testing.T) {
	a := func(s string) netip.Addr { return netip.MustParseAddr(s) }
	for name, instances := range map[string][]Instance{
		"none": nil,
		"multicast": {{
			Name: "vip_192.168.1.100", Interface: "lan0", VRID: 51, Priority: 200, Advert: time.Second, Address: a("192.168.1.100"),
		}},
		"preferred, unicast, shared": {{
			Name: "vip_192.168.1.100.shop", Interface: "lan0", VRID: 51, Priority: 190, Advert: 200 * time.Millisecond, Preempt: true, Address: a("192.168.1.100"),
			More:    []netip.Addr{a("192.168.1.101"), a("192.168.1.102")},
			Unicast: Unicast{Source: a("192.168.1.2"), Peers: []netip.Addr{a("192.168.1.3"), a("192.168.1.4")}},
		}},
		"both families": {
			{Name: "vip_192.168.1.100", Interface: "lan0", VRID: 51, Priority: 200, Advert: time.Second, Address: a("192.168.1.100")},
			{Name: "vip_2001-db8", Interface: "lan0", VRID: 51, Priority: 200, Advert: time.Second, Address: a("2001:db8::100")},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := render(Config{Dir: "/run/skerry/keepalived", Extra: "/etc/skerry/keepalived.conf"}, instances)
			golden.Check(t, filepath.Join("testdata", strings.NewReplacer(" ", "_", ",", "").Replace(name)+".golden"), string(got))
		})
	}
}

// hostile are words with a meaning for keepalived's parser, a shell or a path.
var hostile = []string{
	"a b", "a\nvrrp_script x {", "a}", "{", "a#", "!a", "\"a\"", "'a'", "$(reboot)", "`reboot`", "$HOME", "../../etc/passwd", "/etc/passwd", "..", "a\x00b", "a;b",
	"@include", "include /etc/x", "~SEQ(a,1,2)", strings.Repeat("a", 64<<10), "", " ", "\r", "a\tb", "\u2028",
}

// Values from objects reach the configuration as plain words or not at all, and the other addresses
// are held.
func TestHostile_17_NamesInTheConfigurationAreInert(t *testing.T) {
	good := Instance{Name: "good", Interface: "lan0", VRID: 51, Priority: 200, Advert: time.Second, Address: netip.MustParseAddr("192.168.1.100")}
	want := render(Config{Dir: "/run/d"}, []Instance{good})
	for _, word := range hostile {
		for field, bad := range map[string]Instance{
			"name":      {Name: word, Interface: "lan0", VRID: 52, Priority: 200, Advert: time.Second, Address: netip.MustParseAddr("192.168.1.101")},
			"interface": {Name: "bad", Interface: word, VRID: 52, Priority: 200, Advert: time.Second, Address: netip.MustParseAddr("192.168.1.101")},
			"zone":      {Name: "bad", Interface: "lan0", VRID: 52, Priority: 200, Advert: time.Second, Address: netip.MustParseAddr("fe80::1").WithZone(word)},
		} {
			if field == "zone" && word == "" {
				continue // no zone
			}
			kept, problems := valid([]Instance{bad, good}, func(string) bool { return false })
			if got := render(Config{Dir: "/run/d"}, kept); !bytes.Equal(got, want) {
				t.Errorf("%s %.40q: the configuration is\n%.2000s", field, word, got)
			}
			if len(problems) != 1 {
				t.Errorf("%s %.40q: problems: %v", field, word, problems)
			}
			for _, err := range problems {
				if len(err.Error()) > 300 {
					t.Errorf("%s: a problem of %d bytes", field, len(err.Error()))
				}
			}
		}
	}
}

// A name never escapes the directory of tracked files.
func TestHostile_17_NamesOfTrackedFilesStayInTheirDirectory(t *testing.T) {
	dir := t.TempDir()
	d := New(Config{Dir: filepath.Join(dir, "run")})
	for _, word := range hostile {
		if err := d.SetReady(word, true); err == nil {
			t.Errorf("%.40q is accepted", word)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) > 0 {
		t.Errorf("files were made: %v, %v", entries, err)
	}
}

func FuzzValid(f *testing.F) {
	for _, word := range hostile {
		f.Add(word, word)
	}
	f.Add("vip_192.168.1.101", "lan0")
	lines := func(instances []Instance) int { return bytes.Count(render(Config{Dir: "/d"}, instances), []byte("\n")) }
	want := lines([]Instance{{Name: "a", Interface: "b", VRID: 52, Priority: 200, Advert: time.Second, Address: netip.MustParseAddr("192.168.1.101")}})
	f.Fuzz(func(t *testing.T, name, iface string) {
		i := Instance{Name: name, Interface: iface, VRID: 52, Priority: 200, Advert: time.Second, Address: netip.MustParseAddr("192.168.1.101")}
		kept, _ := valid([]Instance{i}, func(string) bool { return false })
		for _, k := range kept {
			if got := lines(kept); got != want {
				t.Errorf("%+v makes %d lines, a plain name %d", k, got, want)
			}
			if strings.ContainsAny(k.Name+k.Interface, " \t\r\n{}#!\"'$`/;~") || strings.Contains(k.Name, "..") && strings.HasPrefix(k.Name, ".") {
				t.Errorf("%+v is accepted", k)
			}
		}
	})
}
