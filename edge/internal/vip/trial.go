package vip

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/edge/internal/kernel/keepalived"
)

const (
	// trialPatience is how long the cloud may take to answer after the node first took an address.
	trialPatience = 10 * time.Second
	// trialRecovery is how long it may take once the address was given up: the link is dialled again.
	trialRecovery = time.Minute
	// trialAgain is the pause between two questions.
	trialAgain = 500 * time.Millisecond
)

// trial finds out, when the node holds an address for the first time while it has a link, whether the cloud
// can still be reached: the address may be that of something on the way there that no guard knows. It asks
// the cloud; where that fails the address is given up, and where the cloud answers then, it stays given up.
// An address that the node took without a link is tried at the next one. One is tried at a time.
type trial struct {
	ask  func(ctx context.Context) error // nil: there is nothing to ask
	wake func()

	mu       sync.Mutex
	wg       sync.WaitGroup
	uid      types.UID // being tried; "" for none
	withheld string    // why it is given up for now
	result   *trialResult
}

type trialResult struct {
	uid    types.UID
	proven bool
	cutOff string // why it stays given up; "" where that is not certain
}

// start tries an address unless another is being tried.
func (t *trial) start(ctx context.Context, uid types.UID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.uid != "" || t.result != nil {
		return false
	}
	t.uid, t.withheld = uid, ""
	t.wg.Go(func() { t.run(ctx, uid) })
	return true
}

func (t *trial) run(ctx context.Context, uid types.UID) {
	end := func(r trialResult) {
		t.mu.Lock()
		t.uid, t.withheld, t.result = "", "", &r
		t.mu.Unlock()
		t.wake()
	}
	why := t.answers(ctx, trialPatience)
	if ctx.Err() != nil {
		return
	}
	if why == nil {
		end(trialResult{uid: uid, proven: true})
		return
	}
	t.mu.Lock()
	t.withheld = fmt.Sprintf("the cloud did not answer after this node had taken the address (%v): it is given up to see whether that was the reason", why)
	t.mu.Unlock()
	t.wake()
	if err := t.answers(ctx, trialRecovery); err != nil {
		if ctx.Err() == nil { // the network is away for another reason
			end(trialResult{uid: uid})
		}
		return
	}
	end(trialResult{uid: uid, cutOff: fmt.Sprintf("this node lost the cloud when it took the address (%v), and reached it again when it had given the address up", why)})
}

// answers asks until the cloud answers or patience ends.
func (t *trial) answers(ctx context.Context, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := t.ask(ctx)
		if err == nil {
			return nil
		}
		if pause(ctx, trialAgain) != nil {
			return err
		}
	}
}

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
