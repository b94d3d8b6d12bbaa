package vip

import (
	"context"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/edge/internal/kernel/keepalived"
)

// withheldNow are the addresses that are not to be claimed, and why.
func (r *run) withheldNow() map[types.UID]string {
	out := map[types.UID]string{}
	r.mu.Lock()
	maps.Copy(out, r.memory.CutOff)
	trying := r.memory.Trying
	r.mu.Unlock()
	r.trial.mu.Lock()
	defer r.trial.mu.Unlock()
	if r.trial.withheld != "" {
		out[r.trial.uid] = r.trial.withheld
	}
	if trying != "" && r.trial.uid == "" && r.trial.result == nil && !r.cfg.Linked() {
		out[trying] = "edgecore ended while it was finding out whether this address cuts the node off; it is tried again when there is a link"
	}
	return out
}

// tryNew begins to try an address that this node holds and that was never tried, and takes in what came of
// the last trial.
func (r *run) tryNew(ctx context.Context, roles []Role) error {
	if r.trial.ask == nil {
		return nil
	}
	if err := r.judged(ctx, roles); err != nil {
		return err
	}
	if !r.cfg.Linked() {
		return nil
	}
	states := r.cfg.Elector.States()
	r.mu.Lock()
	proven := slices.Clone(r.memory.Proven)
	r.mu.Unlock()
	for _, role := range roles {
		if role.Fault != "" || states[role.election()] != keepalived.Master || slices.Contains(proven, role.VIP.UID) {
			continue
		}
		r.trial.mu.Lock()
		busy := r.trial.uid != "" || r.trial.result != nil
		r.trial.mu.Unlock()
		if busy {
			return nil
		}
		// Written first: a process that dies meanwhile leaves a word for the next one.
		if err := r.change(ctx, func(m *memory) { m.Trying = role.VIP.UID }); err != nil {
			return err
		}
		r.trial.start(ctx, role.VIP.UID)
		return nil
	}
	return nil
}

// judged takes in what came of a trial.
func (r *run) judged(ctx context.Context, roles []Role) error {
	r.trial.mu.Lock()
	result := r.trial.result
	r.trial.result = nil
	r.trial.mu.Unlock()
	if result == nil {
		return nil
	}
	if result.cutOff != "" {
		klog.FromContext(ctx).Error(nil, "A virtual IP was given up: with it the cloud could not be reached", "virtualIP", result.uid, "reason", result.cutOff)
	}
	present := map[types.UID]bool{}
	for _, role := range roles {
		present[role.VIP.UID] = true
	}
	err := r.change(ctx, func(m *memory) {
		m.Trying = ""
		m.Proven = slices.DeleteFunc(slices.Clone(m.Proven), func(uid types.UID) bool { return !present[uid] })
		cutOff := map[types.UID]string{}
		for uid, why := range m.CutOff {
			if present[uid] {
				cutOff[uid] = why
			}
		}
		switch {
		case result.proven:
			m.Proven = append(m.Proven, result.uid)
		case result.cutOff != "":
			cutOff[result.uid] = result.cutOff
		}
		m.CutOff = cutOff
	})
	r.poke()
	return err
}
