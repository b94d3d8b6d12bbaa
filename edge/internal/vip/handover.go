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

// HandOver hands over, for a drain, the addresses that another node can take, and returns when this node
// holds none of these and others had the time to take them. An address that no other node said it could take
// stays here, and so does one that was let go and that no other node took: the last holder keeps it until its
// pod goes, and hands it over as soon as another node can take it. An address that keepalived does not let go
// in time is told in the log and holds nothing up. It holds over reboots, until TakePart. An operator's own
// maintenance is another matter.
func (a *Agent) HandOver(ctx context.Context) error {
	before := a.holds()
	if err := a.order(ctx, func(m *memory) { m.Draining = true }); err != nil {
		return err
	}
	if len(before) == 0 {
		return nil
	}
	began := time.Now()
	for a.givingUp() {
		if time.Since(began) > handover {
			klog.FromContext(ctx).Info("Virtual IPs were not let go in time; the drain does not wait for them", "waited", handover)
			return nil
		}
		if err := pause(ctx, handedPoll); err != nil {
			return err
		}
	}
	if len(a.holds()) == len(before) {
		return nil // all stay here
	}
	if err := pause(ctx, takeover); err != nil {
		return err
	}
	a.takeBack(ctx, before, began)
	return nil
}

// TakePart ends what HandOver began.
func (a *Agent) TakePart(ctx context.Context) error {
	return a.order(ctx, func(m *memory) { m.Draining = false })
}

// holds are the VirtualIPs whose election this node has won.
func (a *Agent) holds() map[string]holding {
	states := a.cfg.Elector.States()
	a.mu.Lock()
	defer a.mu.Unlock()
	out := map[string]holding{}
	for name, h := range a.held {
		if states[h.election] == keepalived.Master {
			out[name] = h
		}
	}
	return out
}

// givingUp reports whether the node holds an address that it is to hand over, or has not looked yet which
// these are.
func (a *Agent) givingUp() bool {
	a.mu.Lock()
	behind := a.looked < a.ordered
	a.mu.Unlock()
	if behind {
		return true
	}
	for _, h := range a.holds() {
		if !h.ready {
			return true
		}
	}
	return false
}

// untakenFor is how long an address that no other node took is not handed over again.
const untakenFor = 5 * time.Minute

// takeBack takes back what was let go and what no other node has advertised since.
func (a *Agent) takeBack(ctx context.Context, before map[string]holding, began time.Time) {
	now := a.holds()
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, h := range before {
		if _, kept := now[name]; kept || a.adverts == nil || a.adverts.takenSince(h.iface, h.ipv6, h.vrid, began) {
			continue
		}
		klog.FromContext(ctx).Info("No other node took a virtual IP that was handed over; this node takes it back", "virtualIP", name)
		a.untaken[name] = time.Now().Add(untakenFor)
	}
	a.poke()
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
	a.mu.Lock()
	a.ordered++
	a.mu.Unlock()
	a.poke()
	return nil
}
