package wireguard

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// text is a change as a person would write it down.
func text(c wgtypes.Config, differs bool) string {
	if !differs {
		return "nothing"
	}
	var b strings.Builder
	if c.ListenPort != nil {
		fmt.Fprintf(&b, "port %d\n", *c.ListenPort)
	}
	for _, p := range c.Peers {
		fmt.Fprintf(&b, "peer %d", p.PublicKey[0])
		if p.Remove {
			b.WriteString(" remove")
		}
		if p.ReplaceAllowedIPs {
			for _, n := range p.AllowedIPs {
				fmt.Fprintf(&b, " %s", n.String())
			}
		}
		if p.Endpoint != nil {
			fmt.Fprintf(&b, " at %s", p.Endpoint)
		}
		if p.PersistentKeepaliveInterval != nil {
			fmt.Fprintf(&b, " each %s", *p.PersistentKeepaliveInterval)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func TestPlan(t *testing.T) {
	now := time.Now()
	here, there := netip.MustParseAddrPort("192.0.2.7:10553"), netip.MustParseAddrPort("198.51.100.7:4711")
	peer := func(at netip.AddrPort, allowed ...string) Peer {
		p := Peer{Key: Key{7}, Endpoint: at}
		for _, a := range allowed {
			p.Allowed = append(p.Allowed, netip.MustParsePrefix(a))
		}
		return p
	}
	kernel := func(at netip.AddrPort, heard time.Time, allowed ...string) wgtypes.Peer {
		p := peer(at, allowed...)
		return wgtypes.Peer{PublicKey: wgtypes.Key(p.Key), Endpoint: net.UDPAddrFromAddrPort(at), LastHandshakeTime: heard, AllowedIPs: nets(p.Allowed), PersistentKeepaliveInterval: keepalive}
	}
	said := map[Key]netip.AddrPort{{7}: here}
	for name, tc := range map[string]struct {
		have []wgtypes.Peer
		said map[Key]netip.AddrPort
		want []Peer
		text string
	}{
		"no peer":      {text: "nothing"},
		"a first peer": {want: []Peer{peer(here, "10.1.1.0/24")}, text: "peer 7 10.1.1.0/24 at 192.0.2.7:10553 each 25s\n"},
		"one that is nowhere yet": {want: []Peer{peer(netip.AddrPort{}, "10.1.1.0/24")},
			text: "peer 7 10.1.1.0/24 each 25s\n"},
		"again": {have: []wgtypes.Peer{kernel(here, now, "10.1.1.0/24", "2001:db8::/64")}, said: said, want: []Peer{peer(here, "2001:db8::/64", "10.1.1.0/24")}, text: "nothing"},
		"another range": {have: []wgtypes.Peer{kernel(here, now, "10.1.1.0/24")}, said: said, want: []Peer{peer(here, "10.1.2.0/24")},
			text: "peer 7 10.1.2.0/24\n"},
		"it speaks from behind a NAT":              {have: []wgtypes.Peer{kernel(there, now, "10.1.1.0/24")}, said: said, want: []Peer{peer(here, "10.1.1.0/24")}, text: "nothing"},
		"the same, after a restart of edgecore":    {have: []wgtypes.Peer{kernel(there, now, "10.1.1.0/24")}, want: []Peer{peer(here, "10.1.1.0/24")}, text: "nothing"},
		"it has been silent where it spoke from":   {have: []wgtypes.Peer{kernel(there, now.Add(-time.Hour), "10.1.1.0/24")}, said: said, want: []Peer{peer(here, "10.1.1.0/24")}, text: "peer 7 at 192.0.2.7:10553\n"},
		"its connection now comes from elsewhere":  {have: []wgtypes.Peer{kernel(here, now, "10.1.1.0/24")}, said: said, want: []Peer{peer(there, "10.1.1.0/24")}, text: "peer 7 at 198.51.100.7:4711\n"},
		"it has left the site, or has another key": {have: []wgtypes.Peer{kernel(here, now, "10.1.1.0/24")}, said: said, text: "peer 7 remove\n"},
	} {
		have := &wgtypes.Device{ListenPort: 10553, Peers: tc.have}
		got := text(plan(have, Config{Port: 10553, Peers: tc.want}, tc.said, now))
		if diff := cmp.Diff(tc.text, got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
	if got := text(plan(&wgtypes.Device{ListenPort: 1}, Config{Port: 2}, nil, now)); got != "port 2\n" {
		t.Errorf("another port: %s", got)
	}
}
