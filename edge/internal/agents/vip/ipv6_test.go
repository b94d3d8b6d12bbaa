package vip_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/tests/cluster/poll"
)

// An IPv6 address is elected, served, handed over and dropped as an IPv4 one is.
func TestIPv6(t *testing.T) {
	const address = "2001:db8:79::100"
	s := newSystem(t, 2)
	s.client.Shell("ip addr add 2001:db8:79::200/64 dev lan0")
	for _, n := range s.nodes {
		n.host.Shell(fmt.Sprintf("ip addr add 2001:db8:79::%d/64 dev lan0", n.octet))
		at := fmt.Sprintf("2001:db8:244:%d::2", n.octet)
		n.host.Pod(mustAddr(at)).Serve(8080, n.name+"six")
		n.api.put(pod(n.name+"1", n.name, fmt.Sprintf("10.244.%d.2", n.octet), at))
	}
	s.give(s.at(address, 51))
	s.start()
	answers := func(n *node) bool {
		word, _, err := s.client.Ask("tcp", "["+address+"]:80", patience)
		return err == nil && word == n.name+"six"
	}
	name := s.at(address, 51).Name
	var h *node
	poll.True(t, "one node holds it and serves the client", func() bool {
		for _, n := range s.nodes {
			if n.has(address) && !s.other(n).has(address) && n.report(name).State == v1alpha1.VIPHolder && answers(n) {
				h = n
				return true
			}
		}
		return false
	})
	if e := h.report(name); !strings.HasPrefix(e.Address, "2001:db8:79::") || !strings.HasSuffix(e.Address, "/64") {
		t.Errorf("the node says that it is at %s", e.Address)
	}
	o := s.other(h)
	poll.True(t, "the other is a backup", func() bool { return o.report(name).State == v1alpha1.VIPBackup })
	h.stop()
	if h.has(address) {
		t.Error("the address is still there")
	}
	poll.True(t, "the other holds it and serves the client", func() bool { return o.has(address) && answers(o) })
}
