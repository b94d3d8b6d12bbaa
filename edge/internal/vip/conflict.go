package vip

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/edge/internal/kernel/acd"
)

const (
	// askAgain is how long an address is left alone that somebody else has.
	askAgain = 15 * time.Second
	// askSoon is how soon it is asked again where asking failed: most often there is no carrier.
	askSoon = 2 * time.Second
)

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

// finding is what a question brought.
type finding struct {
	who  string // has the address; "" for nobody
	err  error
	next time.Time // when to ask again
}

// conflictProbe asks, before the node first stands for an address, whether another host has it that is no
// node of the pool. One question is under way at a time, for all addresses that wait.
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

// conflicts keeps the node from standing for addresses that another host has, or that have not been asked
// for yet, and on LANs that have not been listened to for long enough. What was clear once stays so for this
// boot: from then on the node may have told the LAN that the address is its own.
func (r *run) conflicts(ctx context.Context, roles []Role, again *time.Duration) error {
	now := time.Now()
	err := r.answers(ctx, now)
	r.mu.Lock()
	clear := map[string]bool{}
	for _, key := range r.memory.Clear {
		clear[key] = true
	}
	r.mu.Unlock()
	wait := func(d time.Duration) {
		if *again == 0 || d < *again {
			*again = d
		}
	}
	asks := map[claim]time.Duration{}
	present := map[claim]bool{}
	for i := range roles {
		role := &roles[i]
		c := claim{role.VIP.UID, role.Instance.Interface, role.Instance.Address}
		present[c] = true
		if role.Fault != "" || !role.Ready || clear[c.key()] {
			continue
		}
		role.Ready = false
		f, asked := r.probe.findings[c]
		switch {
		case f.who != "":
			role.Duplicate = f.who
		case f.err != nil:
			role.Unasked = f.err.Error()
		case role.ForeignRouter != "":
			role.Unasked = fmt.Sprintf("router %s uses number %d of VRRP on %s for other addresses", role.ForeignRouter, role.Instance.VRID, c.iface)
			continue
		}
		if left := listenFor - r.adverts.since(c.iface, now); left > 0 {
			role.Waiting = !asked
			wait(left)
			continue
		}
		if left := f.next.Sub(now); asked && left > 0 {
			wait(left)
			continue
		}
		// A holder of ours speaks every interval; one word of it may be lost.
		asks[c] = 2*role.Instance.Advert + time.Second
		role.Waiting = !asked
	}
	for c := range r.probe.findings {
		if !present[c] {
			delete(r.probe.findings, c)
		}
	}
	if len(asks) > 0 && !r.probe.underway {
		r.probe.underway = true
		r.probe.asks <- asks
	}
	return err
}

// answers takes in what the last question brought.
func (r *run) answers(ctx context.Context, now time.Time) error {
	var all map[claim]finding
	select {
	case all = <-r.probe.answers:
	default:
		return nil
	}
	r.probe.underway = false
	var clear []string
	for c, f := range all {
		switch {
		case errors.Is(f.err, acd.ErrNoCarrier):
			f.err, f.next = fmt.Errorf("interface %s has no carrier", c.iface), now.Add(askSoon)
			r.probe.findings[c] = f
		case f.err != nil:
			klog.FromContext(ctx).Error(f.err, "Address conflict probe failed; it is tried again", "address", c.address, "interface", c.iface, "in", askAgain)
			f.err, f.next = fmt.Errorf("the LAN could not be asked whether another host has the address: %w", f.err), now.Add(askAgain)
			r.probe.findings[c] = f
		case f.who != "":
			f.next = now.Add(askAgain)
			r.probe.findings[c] = f
		default:
			delete(r.probe.findings, c)
			clear = append(clear, c.key())
		}
	}
	if len(clear) == 0 {
		return nil
	}
	vips, err := r.listVIPs()
	if err != nil {
		return err
	}
	there := map[string]bool{}
	for _, v := range vips {
		there[string(v.UID)] = true
	}
	return r.change(ctx, func(m *memory) {
		all := slices.Concat(m.Clear, clear)
		slices.Sort(all)
		m.Clear = slices.DeleteFunc(slices.Compact(all), func(key string) bool {
			uid, _, _ := strings.Cut(key, "/")
			return !there[uid]
		})
	})
}
