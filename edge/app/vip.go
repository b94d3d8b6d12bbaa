package app

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/edge/internal/agents/vip"
	"github.com/skerry-io/skerry/edge/internal/core/agent"
	"github.com/skerry-io/skerry/edge/internal/core/edgeapi"
	"github.com/skerry-io/skerry/edge/internal/core/edgehub"
	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/balance"
	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/iptables"
	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/ipvs"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/keepalived"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netif"
)

func (a *App) newVIPs() *vip.Agent {
	c := a.config.Modules.VIP
	var hubName message.Name
	if a.config.Modules.EdgeHub.Enable {
		hubName = edgehub.Name
	}
	vips := vip.New(vip.Config{
		Hub: hubName, Guards: a.vipGuards, Probation: a.probation,
		NodeName: a.node, API: a.api.ClientConfig(edgeapi.Identity{}), Plane: &dataPlane{choice: c.DataPlane}, Reporter: a.meta, Memory: agent.NewMemory(a.store, string(vip.Name)),
		Elector: keepalived.New(keepalived.Config{Dir: c.Keepalived.RunDir, Extra: c.Keepalived.Sections, Program: c.Keepalived.Program}),
		Events:  a.recorder(string(vip.Name)), BootID: bootID(), BootTime: bootTime,
	})
	a.agent(vips.Module)
	return vips
}

// vipGuards returns the addresses of cloudcore and of name servers.
func (a *App) vipGuards() []vip.Guard {
	var all []vip.Guard
	host := func(text, why string) {
		if ip, err := netip.ParseAddr(text); err == nil {
			ip = ip.Unmap().WithZone("")
			all = append(all, vip.Guard{Prefix: netip.PrefixFrom(ip, ip.BitLen()), Why: why})
		}
	}
	for _, server := range a.servers() {
		host(server, "an address of cloudcore")
	}
	for _, ip := range netif.Resolvers(netif.ResolverFiles()...) {
		host(ip.String(), "a name server of this device")
	}
	for _, p := range a.config.Modules.Route.Protected() {
		all = append(all, vip.Guard{Prefix: p, Why: "which edgecore.yaml protects"})
	}
	return all
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

// MaintenancePath is the path on the unix socket of the running edgecore that has it hand its
// virtual IPs over: PUT with a Maintenance.
const MaintenancePath = "/skerry/v1/maintenance"

// Maintenance is the request of `edgecore maintenance`.
type Maintenance struct {
	On bool `json:"on"`
}

// handleMaintenance answers when the order is on the disk.
func (a *App) handleMaintenance(w http.ResponseWriter, r *http.Request) {
	var m Maintenance
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<10)).Decode(&m); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if a.vips == nil {
		http.Error(w, "modules.vip is switched off on this device: there is nothing to hand over", http.StatusConflict)
		return
	}
	if err := a.vips.SetMaintenance(r.Context(), m.On); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
