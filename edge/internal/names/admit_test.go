package names_test

import (
	"context"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/skerry-io/skerry/edge/internal/agent/agenttest"
	"github.com/skerry-io/skerry/edge/internal/names"
	"github.com/skerry-io/skerry/tests/cluster/poll"
)

// The server answers the device and its pods: a host of the LAN that reaches its address gets
// nothing, a pod that is known a moment later is answered then, and one address has its share of
// the connections.
func TestClaims_06_NamesAreForThisDevicesPods(t *testing.T) {
	var pods atomic.Bool
	pods.Store(true)
	l := newLab(t, agenttest.NewAPI(), func(c *names.Config) {
		c.Admits = func(context.Context, netip.Addr) bool { return pods.Load() }
	})
	ask := func(network string, patience time.Duration) error {
		q := new(dns.Msg).SetQuestion("kubernetes.default.svc.cluster.local.", dns.TypeA)
		_, _, err := (&dns.Client{Net: network, Timeout: patience}).Exchange(q, l.at.String())
		return err
	}
	answers := func(what string, want bool) {
		t.Helper()
		for _, network := range []string{"udp", "tcp"} {
			if err := ask(network, 5*time.Second); (err == nil) != want {
				t.Errorf("%s by %s: %v, want an answer: %v", what, network, err, want)
			}
		}
	}
	poll.True(t, "the server answers", func() bool { return ask("udp", time.Second) == nil })
	answers("a pod", true)
	pods.Store(false)
	answers("a host of the LAN", false)
	time.AfterFunc(500*time.Millisecond, func() { pods.Store(true) })
	answers("a pod that has just started", true)
}
