package vip

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/keepalived"
)

// withheldNow are the addresses that are not to be claimed, and why.
func (r *run) withheldNow() map[types.UID]string {
	out := map[types.UID]string{}
	r.mu.Lock()
	maps.Copy(out, r.memory.CutOff)
	trying := r.memory.Trying
	r.mu.Unlock()
	if r.claims != nil {
		for _, v := range r.vips.List() {
			if why := r.claims.Withheld(claimOf(v)); why != "" {
				out[v.UID] = why
			}
		}
	}
	r.trial.mu.Lock()
	defer r.trial.mu.Unlock()
	if r.trial.withheld != "" {
		for _, uid := range r.trial.uids {
			out[uid] = r.trial.withheld
		}
	}
	// Until judged has taken it in: the address would be held once more, for a moment.
	if result := r.trial.result; result != nil && result.cutOff != "" {
		for _, uid := range result.uids {
			out[uid] = result.cutOff
		}
	}
	if len(r.trial.uids) == 0 && r.trial.result == nil && !r.kit.Link().Up {
		for _, uid := range trying {
			out[uid] = "edgecore ended while it was testing whether this address cuts the node off; it repeats the test when there is a link"
		}
	}
	for _, uid := range r.suspects[min(1, len(r.suspects)):] {
		out[uid] = "this node lost the cloud when it took several addresses: they are tried one by one"
	}
	return out
}

// claimOf names an address's claim in the probation: a newer object has another uid.
func claimOf(v *v1alpha1.VirtualIP) string { return fmt.Sprintf("%s (%s)", v.Name, v.UID) }

// applied passes to the probation all addresses, and those that this node has and had while it was
// linked. One that it took on an island is not a claim: no cloud answers either way, and the other
// devices rely on it.
func (r *run) applied(vips []*v1alpha1.VirtualIP, roles []Role) {
	link, states := r.kit.Link(), r.cfg.Elector.States()
	if link.Up {
		r.claims.Linked(link.Link.Epoch)
	}
	sorted := slices.SortedFunc(slices.Values(vips), func(a, b *v1alpha1.VirtualIP) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	var all, standing []string
	for _, v := range sorted {
		all = append(all, claimOf(v))
	}
	for _, role := range roles {
		uid := role.VIP.UID
		if role.Fault != "" || states[role.election()] != keepalived.Master {
			delete(r.linked, uid)
			continue
		}
		if r.linked[uid] = r.linked[uid] || link.Up; r.linked[uid] {
			standing = append(standing, claimOf(role.VIP))
		}
	}
	r.claims.Applied(all, standing)
}

// suspectFor is how long the next of several suspects has to become the holder again; else it is
// tried when it does.
const suspectFor = 15 * time.Second

// tryNew begins to try the addresses that this node holds and that were never tried, and processes
// the result of the last trial.
func (r *run) tryNew(ctx context.Context, roles []Role) error {
	if r.trial.ask == nil {
		return nil
	}
	if err := r.judged(ctx, roles); err != nil {
		return err
	}
	if !r.kit.Link().Up || r.trial.busy() {
		return nil
	}
	states := r.cfg.Elector.States()
	r.mu.Lock()
	proven := slices.Clone(r.memory.Proven)
	r.mu.Unlock()
	var uids []types.UID
	for _, role := range roles {
		if role.Fault == "" && states[role.election()] == keepalived.Master && !slices.Contains(proven, role.VIP.UID) {
			uids = append(uids, role.VIP.UID)
		}
	}
	if len(r.suspects) > 0 {
		next := r.suspects[0]
		switch {
		case slices.Contains(uids, next):
			uids = []types.UID{next}
		case time.Since(r.suspected) < suspectFor:
			return nil
		default:
			r.nextSuspect()
			return nil
		}
	}
	if len(uids) == 0 {
		return nil
	}
	// Written first, so that after a crash the next process finds the trial.
	if err := r.change(ctx, func(m *memory) { m.Trying = uids }); err != nil {
		return err
	}
	r.trial.start(ctx, uids)
	return nil
}

// nextSuspect allows the next of several addresses to be claimed.
func (r *run) nextSuspect() {
	if len(r.suspects) > 0 {
		r.suspects = r.suspects[1:]
	}
	r.suspected = time.Now()
	r.kit.Wake()
}

// judged processes the result of a trial.
func (r *run) judged(ctx context.Context, roles []Role) error {
	r.trial.mu.Lock()
	result := r.trial.result
	r.trial.result = nil
	r.trial.mu.Unlock()
	if result == nil {
		return nil
	}
	certain := result.cutOff != "" && len(result.uids) == 1
	switch {
	case result.cutOff != "" && !certain:
		r.suspects, r.suspected = slices.Clone(result.uids), time.Now()
	case len(r.suspects) > 0 && slices.Contains(result.uids, r.suspects[0]):
		r.nextSuspect()
	}
	if certain {
		klog.FromContext(ctx).Error(nil, "Released a virtual IP: it cut this device off from the cloud", "virtualIP", result.uids[0], "reason", result.cutOff)
	}
	present := map[types.UID]bool{}
	for _, role := range roles {
		present[role.VIP.UID] = true
	}
	err := r.change(ctx, func(m *memory) {
		m.Trying = nil
		m.Proven = slices.DeleteFunc(slices.Clone(m.Proven), func(uid types.UID) bool { return !present[uid] })
		cutOff := map[types.UID]string{}
		for uid, why := range m.CutOff {
			if present[uid] {
				cutOff[uid] = why
			}
		}
		switch {
		case result.proven:
			m.Proven = append(m.Proven, result.uids...)
		case certain:
			cutOff[result.uids[0]] = result.cutOff
		}
		m.CutOff = cutOff
	})
	r.kit.Wake()
	return err
}
