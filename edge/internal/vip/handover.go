package vip

import (
	"context"
	"errors"
	"time"

	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/edge/internal/kernel/keepalived"
)

const (
	// handover is how long HandOver waits for keepalived to let go.
	handover = 15 * time.Second
	// takeover is how long others have to take what this node let go: a backup that is told by priority 0 waits for less than one advertisement
	// (RFC 5798, 6.4.2), and the interval is 1 s unless a pool says otherwise.
	takeover   = 1500 * time.Millisecond
	handedPoll = 50 * time.Millisecond
)

// SetMaintenance hands all addresses over, or lets the node stand for them again. It holds over reboots.
func (a *Agent) SetMaintenance(ctx context.Context, on bool) error {
	return a.order(ctx, func(m *memory) { m.Maintenance = on })
}

// HandOver hands all addresses over for a drain, and returns when this node holds none and others had the time to take them. An address that keepalived does not
// let go in time is told in the log and holds nobody up. It holds over reboots, until TakePart. An operator's own maintenance is another matter.
func (a *Agent) HandOver(ctx context.Context) error {
	held := a.holds()
	if err := a.order(ctx, func(m *memory) { m.Draining = true }); err != nil {
		return err
	}
	if !held {
		return nil
	}
	end := time.Now().Add(handover)
	for a.holds() {
		if time.Now().After(end) {
			klog.FromContext(ctx).Info("Virtual IPs were not let go in time; the drain does not wait for them", "waited", handover)
			return nil
		}
		if err := pause(ctx, handedPoll); err != nil {
			return err
		}
	}
	return pause(ctx, takeover)
}

// TakePart ends what HandOver began.
func (a *Agent) TakePart(ctx context.Context) error {
	return a.order(ctx, func(m *memory) { m.Draining = false })
}

// holds reports whether this node is the holder of any address.
func (a *Agent) holds() bool {
	for _, s := range a.cfg.Elector.States() {
		if s == keepalived.Master {
			return true
		}
	}
	return false
}

func (a *Agent) order(ctx context.Context, change func(*memory)) error {
	a.orders.Lock()
	defer a.orders.Unlock()
	a.mu.Lock()
	m, loaded := a.memory, a.loaded
	a.mu.Unlock()
	if !loaded {
		return errors.New("the module vip has not started yet")
	}
	before := m
	if change(&m); m.Maintenance != before.Maintenance || m.Draining != before.Draining {
		if err := a.save(ctx, m); err != nil {
			return err
		}
	}
	a.poke()
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
