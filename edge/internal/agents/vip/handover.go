package vip

import (
	"context"
	"errors"
	"time"

	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/rerun"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/keepalived"
)

const (
	// handover is how long HandOver waits for keepalived to let go.
	handover = 15 * time.Second
	// takeover is the time for others to take an address released by this node: a backup that hears
	// priority 0 waits for less than one advertisement (RFC 5798, 6.4.2), and the interval is 1 s
	// unless a pool sets another; the rest is for a busy node. The wait ends once another node
	// advertises the address.
	takeover   = 3 * time.Second
	handedPoll = 50 * time.Millisecond
)

// SetMaintenance hands all addresses over, or makes the node take part in elections again. It
// survives reboots.
func (a *Agent) SetMaintenance(ctx context.Context, on bool) error {
	return a.order(ctx, func(m *memory) { m.Maintenance = on })
}

// HandOver hands over, for a drain, the addresses that another node can take, and returns when this
// node has released these and others had the time to take them. An address that no other node
// reported it could take stays here, and so does one that was released and that no other node took:
// the last holder keeps it until its pod goes, and hands it over as soon as another node can take
// it. An address that keepalived does not release in time is logged and does not block the drain.
// It survives reboots, until TakePart. An operator's own maintenance is independent of it.
func (a *Agent) HandOver(ctx context.Context) error {
	return a.handOver(ctx, func() error { return a.order(ctx, func(m *memory) { m.Draining = true }) })
}

// Leave is HandOver for a shutdown of the device: it holds until Stay, and not over the
// boot that follows.
func (a *Agent) Leave(ctx context.Context) error {
	return a.handOver(ctx, func() error { return a.setLeaving(ctx, true) })
}

// Stay ends the maintenance begun by Leave.
func (a *Agent) Stay(ctx context.Context) error { return a.setLeaving(ctx, false) }

func (a *Agent) setLeaving(ctx context.Context, yes bool) error {
	a.mu.Lock()
	a.leaving = yes
	a.mu.Unlock()
	return a.order(ctx, func(*memory) {})
}

func (a *Agent) handOver(ctx context.Context, order func() error) error {
	before := a.holds()
	if err := order(); err != nil {
		return err
	}
	if len(before) == 0 {
		return nil
	}
	began := time.Now()
	for a.handingOver() {
		if time.Since(began) > handover {
			klog.FromContext(ctx).Info("Failed to release virtual IPs in time, continuing the drain", "waited", handover)
			return nil
		}
		if err := rerun.Pause(ctx, handedPoll); err != nil {
			return err
		}
	}
	return nil
}

// TakePart ends the hand-over begun by HandOver.
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

// handingOver reports whether an address is being handed over for a drain, or whether the node has
// not looked yet which these are.
func (a *Agent) handingOver() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.looked < a.ordered || len(a.releases) > 0
}

// untakenFor is how long an address that no other node took is not handed over again.
const untakenFor = 5 * time.Minute

// followReleases records which addresses a drain hands over, and reclaims those that no other node
// has advertised since: a drain may hand over when it begins or at any later time, when it learns
// of a node that can take an address. It is called before the drivers are. again is the time until
// the next call, 0 for no deadline.
func (r *run) followReleases(ctx context.Context, roles []Role, now time.Time) (again time.Duration) {
	states := r.cfg.Elector.States()
	r.mu.Lock()
	defer r.mu.Unlock()
	wanted := map[string]bool{}
	soon := func(wait time.Duration) {
		if again == 0 || wait < again {
			again = wait
		}
	}
	for _, role := range roles {
		if !role.HandingOver || role.VIP.Spec.SharesElectionOf != "" {
			continue
		}
		name := role.VIP.Name
		wanted[name] = true
		if r.releases[name] == nil && states[role.Instance.Name] == keepalived.Master {
			r.releases[name] = &release{holding: role.holding(), began: now}
		}
	}
	for name, l := range r.releases {
		switch {
		case !wanted[name]:
			delete(r.releases, name)
		case states[l.election] == keepalived.Master:
			l.gone = time.Time{}
		case r.adverts.takenSince(l.iface, l.ipv6, l.vrid, l.began):
			delete(r.releases, name)
		case l.gone.IsZero():
			l.gone = now
			soon(takeover)
		case now.Sub(l.gone) < takeover:
			soon(takeover - now.Sub(l.gone))
		default:
			delete(r.releases, name)
			klog.FromContext(ctx).Info("Reclaiming a handed-over virtual IP: no other node took it", "virtualIP", name)
			r.untaken[name] = now.Add(untakenFor)
			r.kit.Wake()
		}
	}
	return again
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
	a.wake()
	return nil
}
