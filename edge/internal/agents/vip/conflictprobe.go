package vip

import (
	"context"
	"net"
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/edge/internal/kernel/network/acd"
)

// askSoon is how soon an address is asked again for where there was no carrier.
const askSoon = 2 * time.Second

// probeFunc is acd.Probe.
type probeFunc = func(ctx context.Context, iface string, targets []acd.Target) (map[netip.Addr]net.HardwareAddr, error)

// claim is an address on an interface, for one VirtualIP.
type claim struct {
	uid     types.UID
	iface   string
	address netip.Addr
}

// key is how the memory names it.
func (c claim) key() string { return string(c.uid) + "/" + c.iface }

// finding is the result of a probe.
type finding struct {
	who  string // has the address; "" for no host
	err  error
	next time.Time // when to ask again
}

// conflictProbe checks, before the node first takes part in an address's election, whether a host
// outside of the pool has it. One probe runs at a time, for all waiting addresses.
type conflictProbe struct {
	asks    chan map[claim]time.Duration // with the time in which a holder of ours speaks
	answers chan map[claim]finding       // one slot: run never waits for the loop

	// Owned by the loop.
	underway bool
	findings map[claim]finding // of those that are not clear
}

func newConflictProbe() *conflictProbe {
	return &conflictProbe{asks: make(chan map[claim]time.Duration, 1), answers: make(chan map[claim]finding, 1), findings: map[claim]finding{}}
}

// run asks until ctx ends.
func (c *conflictProbe) run(ctx context.Context, probe probeFunc, done func()) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case all := <-c.asks:
			out := map[claim]finding{}
			for iface, some := range byInterface(all) {
				var targets []acd.Target
				for claim, patience := range some {
					targets = append(targets, acd.Target{Address: claim.address, Patience: patience})
				}
				found, err := probe(ctx, iface, targets)
				for claim := range some {
					f := finding{err: err}
					if who, taken := found[claim.address]; taken {
						f.who = who.String()
					}
					out[claim] = f
				}
			}
			c.answers <- out
			done()
		}
	}
}

func byInterface(all map[claim]time.Duration) map[string]map[claim]time.Duration {
	out := map[string]map[claim]time.Duration{}
	for c, d := range all {
		if out[c.iface] == nil {
			out[c.iface] = map[claim]time.Duration{}
		}
		out[c.iface][c] = d
	}
	return out
}
