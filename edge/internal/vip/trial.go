package vip

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
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
