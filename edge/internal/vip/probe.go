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

// clearing asks, before the node first stands for an address, whether somebody has it who is none of ours. One question is under way at a time, for all addresses that wait.
type clearing struct {
	asks    chan map[claim]time.Duration // with the time in which a holder of ours speaks
	answers chan map[claim]finding       // one slot: run never waits for the loop

	// Owned by the loop.
	underway bool
	findings map[claim]finding // of those that are not clear
}

func newClearing() *clearing {
	return &clearing{asks: make(chan map[claim]time.Duration, 1), answers: make(chan map[claim]finding, 1), findings: map[claim]finding{}}
}

// run asks until ctx ends.
func (c *clearing) run(ctx context.Context, probe probeFunc, told func()) error {
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
			told()
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

// hold keeps the node from standing for addresses that somebody else has, or that nobody has been asked for yet. What was clear once stays so for this boot: from then on the
// node may have told the LAN that the address is its own.
func (r *run) hold(ctx context.Context, roles []Role, again *time.Duration) error {
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
		f, asked := r.clear.findings[c]
		switch {
		case f.who != "":
			role.Duplicate = f.who
		case f.err != nil:
			role.Unasked = f.err.Error()
		}
		if left := f.next.Sub(now); asked && left > 0 {
			wait(left)
			continue
		}
		// A holder of ours speaks every interval; one word of it may be lost.
		asks[c] = 2*role.Instance.Advert + time.Second
		role.Waiting = !asked
	}
	for c := range r.clear.findings {
		if !present[c] {
			delete(r.clear.findings, c)
		}
	}
	if len(asks) > 0 && !r.clear.underway {
		r.clear.underway = true
		r.clear.asks <- asks
	}
	return err
}

// answers takes in what the last question brought.
func (r *run) answers(ctx context.Context, now time.Time) error {
	var all map[claim]finding
	select {
	case all = <-r.clear.answers:
	default:
		return nil
	}
	r.clear.underway = false
	var clear []string
	for c, f := range all {
		switch {
		case errors.Is(f.err, acd.ErrNoCarrier):
			f.err, f.next = fmt.Errorf("interface %s has no carrier", c.iface), now.Add(askSoon)
			r.clear.findings[c] = f
		case f.err != nil:
			klog.FromContext(ctx).Error(f.err, "Whether somebody has a virtual IP already could not be asked; it is tried again", "address", c.address, "interface", c.iface, "in", askAgain)
			f.err, f.next = fmt.Errorf("whether somebody has the address already could not be asked: %w", f.err), now.Add(askAgain)
			r.clear.findings[c] = f
		case f.who != "":
			f.next = now.Add(askAgain)
			r.clear.findings[c] = f
		default:
			delete(r.clear.findings, c)
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
