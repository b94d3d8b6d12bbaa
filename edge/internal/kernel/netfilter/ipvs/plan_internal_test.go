package ipvs

import (
	"embed"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/moby/ipvs"

	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/balance"
	"github.com/skerry-io/skerry/tests/golden"
)

// The binary of these tests runs in a kernel of its own too (tests/uml), which has no testdata.
//
//go:embed testdata
var goldens embed.FS

// does applies a plan to the kernel's state.
func does(have map[key]virtual, changes []change) {
	for _, c := range changes {
		v := have[c.key]
		switch c.operation {
		case addService, editService:
			v.service = c.service
		case deleteService:
			delete(have, c.key)
			continue
		default:
			var left []*ipvs.Destination
			for _, d := range v.destinations {
				if podOf(d) != podOf(c.destination) {
					left = append(left, d)
				}
			}
			if c.operation != deleteServer {
				left = append(left, c.destination)
			}
			v.destinations = left
		}
		have[c.key] = v
	}
}

// A plan is as ipvsadm -R reads it, and applying it leaves no further changes.
func TestPlanText(t *testing.T) {
	at := netip.MustParseAddrPort
	port := func(p balance.Protocol, number uint16, pods ...string) balance.Port {
		out := balance.Port{Protocol: p, Number: number}
		for _, pod := range pods {
			out.Backends = append(out.Backends, at(pod))
		}
		return out
	}
	service := func(address string, affinity time.Duration, ports ...balance.Port) balance.Service {
		return balance.Service{Address: netip.MustParseAddr(address), Interface: "lan0", Affinity: affinity, Ports: ports}
	}
	web := port(balance.TCP, 80, "10.244.1.2:8080", "10.244.1.3:8080")
	dns := port(balance.UDP, 53, "10.244.1.2:53", "10.244.1.3:53")
	before := []balance.Service{service("192.168.1.100", 0, web, dns), service("192.168.1.101", 0, web)}
	for name, c := range map[string]struct {
		before, want []balance.Service
		busy         string // a pod with connections
	}{
		"fresh":             {want: []balance.Service{service("192.168.1.100", 0, web, dns, port(balance.SCTP, 9, "10.244.1.2:9"), port(balance.TCP, 443))}},
		"ipv6_affinity":     {want: []balance.Service{service("2001:db8::100", time.Minute, port(balance.TCP, 443, "[2001:db8:1::2]:8443"))}},
		"same":              {before: before, want: before, busy: "10.244.1.2:8080"},
		"affinity_and_back": {before: []balance.Service{service("192.168.1.100", time.Hour, web), service("192.168.1.101", 0, web)}, want: []balance.Service{service("192.168.1.100", 0, web), service("192.168.1.101", time.Minute, web)}},
		"pods_leave": {
			before: before, busy: "10.244.1.3:8080",
			want: []balance.Service{service("192.168.1.100", 0, port(balance.TCP, 80, "10.244.1.2:8080", "10.244.1.4:8080"), port(balance.UDP, 53, "10.244.1.2:53"))},
		},
	} {
		t.Run(name, func(t *testing.T) {
			have := map[key]virtual{}
			does(have, plan(balance.Normal(c.before), have))
			for _, v := range have {
				for _, d := range v.destinations {
					if podOf(d).String() == c.busy {
						d.ActiveConnections = 1
					}
				}
			}
			want := balance.Normal(c.want)
			changes := plan(want, have)
			var b strings.Builder
			for _, c := range changes {
				fmt.Fprintln(&b, c)
			}
			golden.CheckIn(t, goldens, filepath.Join("testdata", name+".golden"), b.String())
			does(have, changes)
			if again := plan(want, have); len(again) > 0 {
				t.Errorf("after it there are changes still: %v", again)
			}
		})
	}
}
