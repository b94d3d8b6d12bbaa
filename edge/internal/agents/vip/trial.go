package vip

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/rerun"
)

const (
	// trialRecovery bounds the recovery once the address was released: the link is dialled again.
	trialRecovery = time.Minute
	// trialAgain is the pause between two questions.
	trialAgain = 500 * time.Millisecond
)

// trial finds out, when the node holds an address for the first time while it has a link, whether
// the cloud can still be reached: the address may be that of a host on the path that no guard has.
// It asks the cloud; if that fails the address is released, and if the cloud answers then, it stays
// released. Addresses that were taken together are tried together; if they cut the node off, one by
// one after that. An address that the node took without a link is tried at the next one.
type trial struct {
	ask  func(ctx context.Context) error // nil: no probe
	wake func()
	most time.Duration // that an answer may take

	mu       sync.Mutex
	wg       sync.WaitGroup
	uids     []types.UID // being tried
	withheld string      // why it is released for now
	result   *trialResult
}

type trialResult struct {
	uids   []types.UID
	proven bool
	cutOff string // observed failure if the addresses caused it; "" if that is uncertain
}

// start tries addresses unless others are being tried.
func (t *trial) start(ctx context.Context, uids []types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.uids) > 0 || t.result != nil {
		return
	}
	t.uids, t.withheld = uids, ""
	t.wg.Go(func() { t.run(ctx, uids) })
}

func (t *trial) busy() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.uids) > 0 || t.result != nil
}

func (t *trial) run(ctx context.Context, uids []types.UID) {
	end := func(r trialResult) {
		r.uids = uids
		t.mu.Lock()
		t.uids, t.withheld, t.result = nil, "", &r
		t.mu.Unlock()
		t.wake()
	}
	why := t.answers(ctx, t.most)
	if ctx.Err() != nil {
		return
	}
	if why == nil {
		end(trialResult{proven: true})
		return
	}
	t.mu.Lock()
	t.withheld = fmt.Sprintf("the cloud did not answer after this node had taken the address (%v): it is given up to see whether that was the reason", why)
	t.mu.Unlock()
	t.wake()
	if err := t.answers(ctx, trialRecovery); err != nil {
		if ctx.Err() == nil { // the network is away for another reason
			end(trialResult{})
		}
		return
	}
	end(trialResult{cutOff: fmt.Sprintf("this node lost the cloud when it took the address (%v), and reached it again when it had given the address up", why)})
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
		if rerun.Pause(ctx, trialAgain) != nil {
			return err
		}
	}
}
