package vip

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/edge/internal/kernel/network/acd"
)

// conflicts keeps the node from standing for addresses that another host has, or that have not been
// asked for yet, and on LANs that have not been listened to for long enough. An address found free
// stays so for this boot: from then on the node may have announced the address to the LAN as its
// own.
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
		if left := r.cfg.Times.Listen - r.adverts.since(c.iface, now); left > 0 {
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

// answers processes the results of the last probe.
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
			klog.FromContext(ctx).Error(f.err, "Address conflict probe failed, retrying", "address", c.address, "interface", c.iface, "in", r.cfg.Times.AskAgain)
			f.err, f.next = fmt.Errorf("the LAN could not be asked whether another host has the address: %w", f.err), now.Add(r.cfg.Times.AskAgain)
			r.probe.findings[c] = f
		case f.who != "":
			f.next = now.Add(r.cfg.Times.AskAgain)
			r.probe.findings[c] = f
		default:
			delete(r.probe.findings, c)
			clear = append(clear, c.key())
		}
	}
	if len(clear) == 0 {
		return nil
	}
	there := map[string]bool{}
	for _, v := range r.vips.List() {
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
