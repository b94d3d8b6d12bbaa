package iptables

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// The flows that go in a first and in a second look, of a served address whose pod is another now.
func TestSweep(t *testing.T) {
	vip, old, current := netip.MustParseAddrPort("10.78.0.100:80"), netip.MustParseAddrPort("10.244.1.2:8080"), netip.MustParseAddrPort("10.244.1.3:8080")
	served := stale{{unix.IPPROTO_TCP, vip}: {current}, {unix.IPPROTO_UDP, vip}: {current}}
	for name, c := range map[string]struct {
		protocol      uint8
		state         uint8
		to, pod       netip.AddrPort
		first, second bool
	}{
		"open":                          {unix.IPPROTO_TCP, nl.TCP_CONNTRACK_ESTABLISHED, vip, old, false, false},
		"being closed":                  {unix.IPPROTO_TCP, nl.TCP_CONNTRACK_FIN_WAIT, vip, old, false, false},
		"answered, not yet confirmed":   {unix.IPPROTO_TCP, nl.TCP_CONNTRACK_SYN_RECV, vip, old, false, false},
		"not answered":                  {unix.IPPROTO_TCP, nl.TCP_CONNTRACK_SYN_SENT, vip, old, false, true},
		"not answered by its pod":       {unix.IPPROTO_TCP, nl.TCP_CONNTRACK_SYN_SENT, vip, current, false, false},
		"reset":                         {unix.IPPROTO_TCP, nl.TCP_CONNTRACK_CLOSE, vip, old, true, true},
		"reset by a pod that is served": {unix.IPPROTO_TCP, nl.TCP_CONNTRACK_CLOSE, vip, current, false, false},
		"of another address":            {unix.IPPROTO_TCP, nl.TCP_CONNTRACK_CLOSE, netip.MustParseAddrPort("10.78.0.101:80"), old, false, false},
		"over":                          {unix.IPPROTO_TCP, nl.TCP_CONNTRACK_TIME_WAIT, vip, old, false, false},
		"UDP":                           {unix.IPPROTO_UDP, 0, vip, old, true, true},
		"UDP to its pod":                {unix.IPPROTO_UDP, 0, vip, current, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			client := netip.MustParseAddrPort("10.78.0.200:4000")
			flow := &netlink.ConntrackFlow{
				Forward: netlink.IPTuple{Protocol: c.protocol, SrcIP: client.Addr().AsSlice(), SrcPort: client.Port(), DstIP: c.to.Addr().AsSlice(), DstPort: c.to.Port()},
				Reverse: netlink.IPTuple{Protocol: c.protocol, SrcIP: c.pod.Addr().AsSlice(), SrcPort: c.pod.Port(), DstIP: client.Addr().AsSlice(), DstPort: client.Port()},
			}
			if c.protocol == unix.IPPROTO_TCP {
				flow.ProtoInfo = &netlink.ProtoInfoTCP{State: c.state}
			}
			first := &sweep{served, nil, map[connection]bool{}}
			if got := first.MatchConntrackFlow(flow); got != c.first {
				t.Errorf("in the first look it goes: %v", got)
			}
			second := &sweep{served, first.opening, map[connection]bool{}}
			if got := second.MatchConntrackFlow(flow); got != c.second {
				t.Errorf("in the second look it goes: %v", got)
			}
			if again := len(second.opening); again != 0 {
				t.Errorf("%d would have to be looked at a third time", again)
			}
		})
	}
}
