package app

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/edge/internal/agents/probation"
	"github.com/skerry-io/skerry/edge/internal/agents/vip"
	"github.com/skerry-io/skerry/edge/internal/core/edgehub"
	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/balance"
	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/iptables"
	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/ipvs"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/keepalived"
)

func newVIPs(b *base, core *coreWing, tested *probation.Probation) *vip.Agent {
	c := b.config.Modules.VIP
	var hubName message.Name
	if b.config.Modules.EdgeHub.Enable {
		hubName = edgehub.Name
	}
	return vip.New(vip.Config{
		Hub: hubName, Guards: b.guards, Probation: tested,
		NodeName: b.node, API: core.client(), Plane: &dataPlane{choice: c.DataPlane}, Reporter: core.meta, Memory: b.memory(vip.Name),
		Elector: keepalived.New(keepalived.Config{Dir: c.Keepalived.RunDir, Extra: c.Keepalived.Sections, Program: c.Keepalived.Program}),
		Events:  core.recorder(vip.Name), BootID: bootID(), BootTime: bootTime,
	})
}

// bootTime is when the device booted, by the present clock: CLOCK_BOOTTIME counts from there,
// suspended time included (clock_gettime(2)).
func bootTime() time.Time {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return time.Time{} // no container is older than that
	}
	return time.Now().Add(-time.Duration(t.Nano()))
}

// dataPlane is the configured one, or the one that the kernel supports. It is chosen when it is
// first needed: a device without virtual IPs needs neither.
type dataPlane struct {
	choice string

	mu     sync.Mutex
	chosen vip.Plane
}

func (p *dataPlane) Name() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.chosen == nil {
		return p.choice
	}
	return p.chosen.Name()
}

func (p *dataPlane) Apply(ctx context.Context, want []balance.Service) error {
	chosen, err := p.choose()
	if err != nil {
		if len(want) == 0 {
			return nil // there can be no leftovers to remove
		}
		return err
	}
	return chosen.Apply(ctx, want)
}

func (p *dataPlane) choose() (vip.Plane, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.chosen != nil {
		return p.chosen, nil
	}
	if p.choice != "iptables" {
		plane, err := ipvs.New()
		if err == nil {
			p.chosen = plane
			return plane, nil
		}
		if p.choice == "ipvs" || !errors.Is(err, ipvs.ErrUnsupported) {
			return nil, err
		}
	}
	plane, err := iptables.New()
	if err != nil {
		return nil, err
	}
	if err := withdrawIPVS(); err != nil {
		return nil, err
	}
	p.chosen = plane
	return plane, nil
}

// withdrawIPVS removes leftovers of an earlier run that was configured for ipvs: they would take
// precedence over the rules of iptables. Without IPVS in the kernel there are none.
func withdrawIPVS() error {
	if _, err := os.Stat("/proc/net/ip_vs"); err != nil {
		return nil
	}
	old, err := ipvs.New()
	if errors.Is(err, ipvs.ErrUnsupported) {
		return nil
	}
	if err != nil {
		return err
	}
	return old.Withdraw()
}
