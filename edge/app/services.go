package app

import (
	"fmt"
	"net/netip"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/edge/internal/agents/probation"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/kubeproxy"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netif"
	edgeconfig "github.com/skerry-io/skerry/edge/internal/setup/config"
	"github.com/skerry-io/skerry/edge/internal/site/endpoints"
	"github.com/skerry-io/skerry/edge/internal/site/names"
	"github.com/skerry-io/skerry/edge/internal/site/services"
	"github.com/skerry-io/skerry/edge/internal/site/serviceview"
)

// newServices makes the modules for Services and names, in the order in which they start: rules and
// answers are based on corrected EndpointSlices. The view of Services is nil if no part of the
// device reads them.
func (w *siteWing) newServices(b *base, core *coreWing, r *reporters, tested *probation.Probation) (*serviceview.View, []beehive.Entry, error) {
	c := b.config.Modules
	if !c.EdgeAPI.Enable {
		return nil, nil, nil
	}
	config := services.Config{
		NodeName: b.node, Enable: w.on.services, API: core.client(), Driver: kubeproxy.New(c.Services.Mode, b.node),
		Memory: b.memory(services.Name), Events: core.recorder(services.Name),
	}
	entry := func(m beehive.Module, restart beehive.Restart) beehive.Entry {
		return beehive.Entry{Module: m, Groups: []message.Group{linkstate.Agents}, Restart: restart}
	}
	if w.correction == nil {
		return nil, []beehive.Entry{entry(r.add(services.New(config)), beehive.OnFailure(beehive.Backoff{}))}, nil // removes leftovers
	}
	corrected := make(chan struct{})
	var slices <-chan struct{} = corrected
	if !w.on.names && !w.on.services { // no reader
		slices = nil
	}
	view, err := serviceview.New(config.API, slices)
	if err != nil {
		return nil, nil, err
	}
	e := endpoints.New(endpoints.Config{
		NodeName: b.node, API: config.API, Services: view.Services(), Correction: w.correction, View: core.meta, Memory: b.memory(endpoints.Name), BootID: bootID(), BootTime: bootTime, Own: w.ownPods,
		Corrected: func() { close(corrected) },
	})
	r.add(e)
	config.Probation = tested
	config.View, config.Site, config.Rules = view, w.correction.Site, func(remote netip.Addr) services.Rules {
		return services.Rules{External: c.Services.ExternalRanges(), Guards: w.protect.Guards(remote)}
	}
	entries := []beehive.Entry{
		{Module: view, Restart: beehive.Never()},
		entry(e, beehive.OnFailure(beehive.Backoff{})),
	}
	if w.on.names {
		names, err := newNames(c.Names, core, view)
		if err != nil {
			return nil, nil, err
		}
		entries = append(entries, beehive.Entry{Module: names, Restart: beehive.OnFailure(beehive.Backoff{})})
	}
	// Never: Kubernetes' proxy can't be started twice in a process.
	return view, append(entries, entry(r.add(services.New(config)), beehive.Never())), nil
}

func newNames(c edgeconfig.Names, core *coreWing, view *serviceview.View) (*names.Module, error) {
	listen, err := netip.ParseAddrPort(c.Listen)
	if err != nil {
		return nil, fmt.Errorf("modules.names.listen: %w", err)
	}
	config := names.Config{
		Listen: listen, Domain: c.Domain, View: view, Sockets: names.FromEnvironment(),
		Address: func() error { return netif.KeepLoopback(listen.Addr()) }, Admits: core.api.PodSources(),
	}
	read := func(all []string) (out []netip.AddrPort) {
		for _, text := range all {
			if u, err := edgeconfig.Upstream(text); err == nil { // validation has refused invalid addresses
				out = append(out, u)
			}
		}
		return out
	}
	for _, z := range c.Zones {
		config.Zones = append(config.Zones, names.Zone{Zone: z.Zone, Upstream: read(z.Upstream)})
	}
	config.Upstream = func() []netip.AddrPort { return netif.NameServers(listen) }
	if all := read(c.Upstream); len(all) > 0 {
		config.Upstream = func() []netip.AddrPort { return all }
	}
	return names.New(config), nil
}

// clusterDNS returns the name server and domain for pods; empty if this device does not answer
// names.
func (w *siteWing) clusterDNS(c edgeconfig.Names) (servers []string, domain string) {
	at, err := netip.ParseAddrPort(c.Listen)
	if !w.on.names || err != nil || at.Port() != 53 { // pods ask at port 53 and nowhere else
		return nil, ""
	}
	return []string{at.Addr().String()}, c.Domain
}
