package app

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/edge/internal/agents/apiredirect"
	"github.com/skerry-io/skerry/edge/internal/agents/probation"
	"github.com/skerry-io/skerry/edge/internal/core/agent"
	"github.com/skerry-io/skerry/edge/internal/core/edgeapi"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/conntrack"
	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/kubeproxy"
	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/masquerade"
	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/redirect"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/lan"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netif"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netroute"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/wireguard"
	edgeconfig "github.com/skerry-io/skerry/edge/internal/setup/config"
	"github.com/skerry-io/skerry/edge/internal/site/contact"
	"github.com/skerry-io/skerry/edge/internal/site/endpoints"
	"github.com/skerry-io/skerry/edge/internal/site/names"
	"github.com/skerry-io/skerry/edge/internal/site/peers"
	"github.com/skerry-io/skerry/edge/internal/site/podnet"
	"github.com/skerry-io/skerry/edge/internal/site/protect"
	"github.com/skerry-io/skerry/edge/internal/site/services"
	"github.com/skerry-io/skerry/edge/internal/site/serviceview"
)

// newCorrection makes the corrector of EndpointSlices if some part of the device reads them;
// otherwise nil.
func (a *App) newCorrection() object.Corrector {
	c := a.config.Modules
	if !c.EdgeAPI.Enable || a.on == (switched{}) {
		return nil
	}
	config := endpoints.CorrectionConfig{NodeName: a.node}
	config.API, _ = netip.ParseAddrPort(podsListen(c.EdgeAPI)) // validation has refused invalid addresses
	if a.on.names {
		config.DNS, _ = netip.ParseAddrPort(c.Names.Listen)
	}
	if a.contact != nil {
		config.Peers = knowledge{a.contact}
	}
	a.correction = endpoints.NewCorrection(config)
	return a.correction
}

// serviceParts makes the modules for Services and names, in the order in which they start: rules
// and answers are based on corrected EndpointSlices.
func (a *App) serviceParts() ([]beehive.Entry, error) {
	c := a.config.Modules
	config := services.Config{
		NodeName: a.node, Enable: a.on.services, API: a.api.ClientConfig(edgeapi.Identity{}), Driver: kubeproxy.New(c.Services.Mode, a.node),
		Memory: agent.NewMemory(a.store, string(services.Name)), Events: a.recorder(string(services.Name)),
	}
	entry := func(m beehive.Module, restart beehive.Restart) beehive.Entry {
		return beehive.Entry{Module: m, Groups: []message.Group{linkstate.Agents}, Restart: restart}
	}
	if a.correction == nil {
		return []beehive.Entry{entry(a.agent(services.New(config)), beehive.OnFailure(beehive.Backoff{}))}, nil // removes leftovers
	}
	corrected := make(chan struct{})
	var slices <-chan struct{} = corrected
	if !a.on.names && !a.on.services { // no reader
		slices = nil
	}
	view, err := serviceview.New(config.API, slices)
	if err != nil {
		return nil, err
	}
	e := endpoints.New(endpoints.Config{
		NodeName: a.node, API: config.API, Services: view.Services(), Correction: a.correction, View: a.meta, Memory: agent.NewMemory(a.store, string(endpoints.Name)), BootID: bootID(), BootTime: bootTime, Own: a.ownPods,
		Corrected: func() { close(corrected) },
	})
	a.agent(e)
	a.services = view
	config.Probation = a.probation
	config.View, config.Site, config.Rules = view, a.correction.Site, func(remote netip.Addr) services.Rules {
		return services.Rules{External: c.Services.ExternalRanges(), Guards: a.protect.Guards(remote)}
	}
	entries := []beehive.Entry{
		{Module: view, Restart: beehive.Never()},
		entry(e, beehive.OnFailure(beehive.Backoff{})),
	}
	if a.on.names {
		names, err := a.newNames(view)
		if err != nil {
			return nil, err
		}
		entries = append(entries, beehive.Entry{Module: names, Restart: beehive.OnFailure(beehive.Backoff{})})
	}
	// Never: Kubernetes' proxy can't be started twice in a process.
	return append(entries, entry(a.agent(services.New(config)), beehive.Never())), nil
}

// ReleasePages gives back the pages of the device's files that are mapped.
func (a *App) ReleasePages() error { return a.store.ReleasePages() }

func (a *App) newNames(view *serviceview.View) (*names.Module, error) {
	c := a.config.Modules.Names
	listen, err := netip.ParseAddrPort(c.Listen)
	if err != nil {
		return nil, fmt.Errorf("modules.names.listen: %w", err)
	}
	config := names.Config{
		Listen: listen, Domain: c.Domain, View: view, Sockets: names.FromEnvironment(),
		Address: func() error { return netif.KeepLoopback(listen.Addr()) }, Admits: a.api.PodSources(),
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
func (a *App) clusterDNS() (servers []string, domain string) {
	c := a.config.Modules.Names
	at, err := netip.ParseAddrPort(c.Listen)
	if !a.on.names || err != nil || at.Port() != 53 { // pods ask at port 53 and nowhere else
		return nil, ""
	}
	return []string{at.Addr().String()}, c.Domain
}

// podsListen is where the edge API serves pods; "" where it does not.
func podsListen(c edgeconfig.EdgeAPI) string {
	if !c.Pods {
		return ""
	}
	return c.PodsListen
}

// newAPIRedirect makes the agent that redirects pods to the edge API, or removes the redirection.
func (a *App) newAPIRedirect() *agent.Module {
	at, _ := netip.ParseAddrPort(podsListen(a.config.Modules.EdgeAPI)) // validation has refused invalid addresses
	return a.agent(apiredirect.New(apiredirect.Config{API: a.api.ClientConfig(edgeapi.Identity{}), Redirect: redirect.New(), Listen: at, Serve: a.api.ServePods}))
}

// contactFile has the last reports of the site's devices, for a restart of edgecore: next to its
// socket, where a reboot clears it.
const contactFile = "contact.json"

// newContact makes the holder of the device's site and the contact agent for its other devices;
// nothing if that is switched off.
func (a *App) newContact() {
	c := a.config.Modules
	if c.Site.Enable == edgeconfig.On || a.followsPool() {
		a.site = peers.New(a.node, agent.NewMemory(a.store, "site"))
		if a.store != nil { // else the wiring is only shown
			if err := a.site.Load(); err != nil {
				klog.Background().Error(err, "Failed to read the saved site, waiting for the cloud to send it")
			}
		}
	}
	a.protect = protect.New(protect.Config{Memory: agent.NewMemory(a.store, "protect"), Fixed: a.vipGuards, Site: a.site, Interfaces: netif.List, At: func(node string) netip.Addr {
		if a.contact == nil {
			return netip.Addr{}
		}
		return a.contact.Address(node)
	}})
	if ask := a.askCloud(); ask != nil {
		a.probation = probation.New(probation.Config{Memory: agent.NewMemory(a.store, string(probation.Name)), Ask: ask})
	}
	if a.on = a.switches(); !a.on.site {
		return
	}
	a.moved = make(chan struct{}, 1)
	if a.store == nil {
		a.contact = contact.New(contact.Config{Node: a.node, Site: a.site})
		return
	}
	run := ""
	if c.EdgeAPI.Socket != "" {
		run = filepath.Join(filepath.Dir(c.EdgeAPI.Socket), contactFile)
	}
	a.contact = contact.New(contact.Config{
		Node: a.node, Boot: bootID(), Port: c.Site.Port, Site: a.site, Network: lan.New(), Forget: conntrack.New().Forget,
		Memory: agent.NewMemory(a.store, string(contact.Name)), RunFile: run, Changed: a.peerChanged,
		Trust: contact.Trust{Certificate: a.identity.Certificate, Authorities: a.identity.ClientRoots, Linked: a.linked, Now: a.clock.Now},
	})
	if err := a.contact.Load(context.Background()); err != nil {
		klog.Background().Error(err, "Failed to load peer state")
	}
}

func (a *App) linked() bool { return a.meta.Linked() }

// newPodNetwork makes the agent of the pods' network.
func (a *App) newPodNetwork() *agent.Module {
	c := podnet.Config{
		NodeName: a.node, API: a.api.ClientConfig(edgeapi.Identity{}), Subnets: a.config.Modules.PodNetwork.Ranges(), LAN: lan.New(), Masquerade: masquerade.New(), CNIDir: netif.CNIConfigs,
		Routes: func() (*netroute.Driver, error) { return netroute.Open(netroute.Config{Protocol: podnet.Protocol}) },
		Events: a.recorder(string(podnet.Name)), Changed: a.moved, Guards: a.protect.Guards, WireGuard: wireguard.New(), TunnelPort: a.config.Modules.Site.Port + 1,
	}
	if a.contact != nil { // others matter where there is contact with them
		c.Probation = a.probation
		c.Site, c.At, c.Tunnel, c.SetTunnel = a.site, a.contact.Address, a.contact.Tunnel, a.contact.SetTunnel
		c.Said, c.SetLAN = a.contact.LAN, a.contact.SetLAN
	}
	return a.agent(podnet.New(c))
}

// peerChanged makes the view present the EndpointSlices of a device again.
func (a *App) peerChanged(node string) {
	select {
	case a.moved <- struct{}{}:
	default:
	}
	if a.correction != nil {
		a.correction.PeerChanged(node)
	}
}

// ownPods sends this device's pods, as its kubelet reports them, to the other devices of the site.
func (a *App) ownPods(words map[types.UID]endpoints.Word) {
	if a.contact == nil {
		return
	}
	pods := make([]contact.Pod, 0, len(words))
	for uid, w := range words {
		pods = append(pods, contact.Pod{UID: uid, Addresses: w.Addresses, Ready: w.Ready, Terminating: w.Terminating})
	}
	slices.SortFunc(pods, func(x, y contact.Pod) int { return cmp.Compare(x.UID, y.UID) })
	a.contact.SetPods(pods)
}

// knowledge is the data by which EndpointSlices are corrected.
type knowledge struct{ *contact.Agent }

func (k knowledge) Contact(device string) endpoints.Contact {
	switch k.Agent.Contact(device) {
	case contact.Unmet:
		return endpoints.Unmet
	case contact.Met:
		return endpoints.Met
	case contact.Mute:
		return endpoints.Mute
	}
	return endpoints.Dead
}

func (k knowledge) Word(device string, pod types.UID) (endpoints.Word, bool) {
	p, ok := k.Pod(device, pod)
	return endpoints.Word{Addresses: p.Addresses, Ready: p.Ready, Terminating: p.Terminating}, ok
}
