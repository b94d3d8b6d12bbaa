package app

import (
	"cmp"
	"context"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/edge/internal/agents/probation"
	"github.com/skerry-io/skerry/edge/internal/core/agent"
	"github.com/skerry-io/skerry/edge/internal/core/artefact"
	"github.com/skerry-io/skerry/edge/internal/core/launch"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/conntrack"
	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/masquerade"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/lan"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netif"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netroute"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/wireguard"
	edgeconfig "github.com/skerry-io/skerry/edge/internal/setup/config"
	"github.com/skerry-io/skerry/edge/internal/site/contact"
	"github.com/skerry-io/skerry/edge/internal/site/endpoints"
	"github.com/skerry-io/skerry/edge/internal/site/peers"
	"github.com/skerry-io/skerry/edge/internal/site/podnet"
	"github.com/skerry-io/skerry/edge/internal/site/protect"
	"github.com/skerry-io/skerry/edge/internal/site/sharing"
)

// siteWing has the other devices of this one's site, their pods' network, and Services and names.
type siteWing struct {
	on         switched
	holder     *peers.Holder         // nil without dependants
	contact    *contact.Agent        // nil where modules.site is switched off
	protect    *protect.Networks     // addresses that no claim of others may cover
	correction *endpoints.Correction // nil if no part of the device reads EndpointSlices
	moved      chan struct{}         // a device of the site may be elsewhere now
	programs   *sharing.Server       // programs for other devices, and programs of theirs; nil without contact
	neighbours *sharing.Client
}

// contactFile has the last reports of the site's devices, for a restart of edgecore: next to its
// socket, where a reboot clears it.
const contactFile = "contact.json"

// newSite makes the holder of the device's site and the contact agent for its other devices;
// nothing if that is switched off. linked reports whether there is a link to the cloud.
func newSite(b *base, linked func() bool) *siteWing {
	c := b.config.Modules
	w := &siteWing{}
	if c.Site.Enable == edgeconfig.On || followsPool(b.config) {
		w.holder = peers.New(b.node, b.memory("site"))
		if b.store != nil { // else the wiring is only shown
			if err := w.holder.Load(); err != nil {
				klog.Background().Error(err, "Failed to read the saved site, waiting for the cloud to send it")
			}
		}
	}
	w.protect = protect.New(protect.Config{Memory: b.memory("protect"), Fixed: b.guards, Site: w.holder, Interfaces: netif.List, At: func(node string) netip.Addr {
		if w.contact == nil {
			return netip.Addr{}
		}
		return w.contact.Address(node)
	}})
	if w.on = switches(b.config, w.holder); w.on.site {
		w.moved = make(chan struct{}, 1)
		w.contact = w.newContact(b, linked)
	}
	w.correction = w.newCorrection(b)
	return w
}

func (w *siteWing) newContact(b *base, linked func() bool) *contact.Agent {
	if b.store == nil {
		return contact.New(contact.Config{Node: b.node, Site: w.holder})
	}
	run := ""
	if socket := b.config.Modules.EdgeAPI.Socket; socket != "" {
		run = filepath.Join(filepath.Dir(socket), contactFile)
	}
	w.programs = sharing.NewServer(ownPrograms(b).Open)
	a := contact.New(contact.Config{
		Node: b.node, Boot: bootID(), Port: b.config.Modules.Site.Port, Site: w.holder, Network: lan.New(), Forget: conntrack.New().Forget,
		Memory: b.memory(contact.Name), RunFile: run, Changed: w.peerChanged,
		Trust:    contact.Trust{Certificate: b.identity.Certificate, Authorities: b.identity.ClientRoots, Linked: linked, Now: b.clock.Now},
		Programs: func(ctx context.Context, node string, s *contact.Stream) { w.programs.Serve(ctx, node, s) },
	})
	w.neighbours = sharing.NewClient(a.Connected, func(ctx context.Context, node string) (sharing.Conn, error) {
		return a.DialPrograms(ctx, node)
	})
	if err := a.Load(context.Background()); err != nil {
		klog.Background().Error(err, "Failed to load peer state")
	}
	return a
}

// ownPrograms are those that this device can give to others of its site.
func ownPrograms(b *base) *sharing.Programs {
	started, directory := slotsOf(b.config)
	p := &sharing.Programs{Directory: directory}
	if started.Program.Slot == launch.Package {
		p.Self = self
	}
	return p
}

// others are the devices of the site as a source of programs; nil where there is no contact.
func (w *siteWing) others() artefact.Neighbours {
	if w.neighbours == nil {
		return nil
	}
	return w.neighbours
}

// shared counts the bytes of programs that went between this device and others of its site.
func (w *siteWing) shared() *sharing.State {
	if w.programs == nil {
		return nil
	}
	return &sharing.State{Sent: w.programs.Sent(), Received: w.neighbours.Received()}
}

// collectors are the metrics of the site.
func (w *siteWing) collectors() []prometheus.Collector {
	if w.programs == nil {
		return nil
	}
	return []prometheus.Collector{w.programs.Metrics(), w.neighbours.Metrics()}
}

// newCorrection makes the corrector of EndpointSlices if some part of the device reads them;
// otherwise nil.
func (w *siteWing) newCorrection(b *base) *endpoints.Correction {
	c := b.config.Modules
	if !c.EdgeAPI.Enable || w.on == (switched{}) {
		return nil
	}
	config := endpoints.CorrectionConfig{NodeName: b.node}
	config.API, _ = netip.ParseAddrPort(podsListen(c.EdgeAPI)) // validation has refused invalid addresses
	if w.on.names {
		config.DNS, _ = netip.ParseAddrPort(c.Names.Listen)
	}
	if w.contact != nil {
		config.Peers = knowledge{w.contact}
	}
	return endpoints.NewCorrection(config)
}

// corrector is the correction for the metamanager.
func (w *siteWing) corrector() object.Corrector {
	if w.correction == nil {
		return nil
	}
	return w.correction
}

// contacting follows the site's devices.
func (w *siteWing) contacting() []beehive.Entry {
	if !w.on.site {
		return nil
	}
	return []beehive.Entry{restarted(w.contact)}
}

// network is the pods' network. It needs a kubelet: an edgecore without one, as in tests, must not
// change the machine's network.
func (w *siteWing) network(b *base, core *coreWing, r *reporters, tested *probation.Probation) []beehive.Entry {
	c := b.config.Modules
	if !c.PodNetwork.Enable || !c.Edged.Enable || !c.EdgeAPI.Enable {
		return nil
	}
	return []beehive.Entry{restarted(r.add(w.newPodNetwork(b, core, tested)), linkstate.Agents)}
}

// switching restarts edgecore for another NodePool.
func (w *siteWing) switching(b *base) []beehive.Entry {
	if !followsPool(b.config) {
		return nil
	}
	return []beehive.Entry{{Module: &switchModule{b.config, w.holder, w.on}, Restart: beehive.Never()}}
}

// current is this device's site; nil without one.
func (w *siteWing) current() *peers.Site {
	if w.holder == nil {
		return nil
	}
	return w.holder.Current()
}

// newPodNetwork makes the agent of the pods' network.
func (w *siteWing) newPodNetwork(b *base, core *coreWing, tested *probation.Probation) *agent.Module {
	c := podnet.Config{
		NodeName: b.node, API: core.client(), Subnets: b.config.Modules.PodNetwork.Ranges(), LAN: lan.New(), Masquerade: masquerade.New(), CNIDir: netif.CNIConfigs,
		Routes: func() (*netroute.Driver, error) { return netroute.Open(netroute.Config{Protocol: podnet.Protocol}) },
		Events: core.recorder(podnet.Name), Changed: w.moved, Guards: w.protect.Guards, WireGuard: wireguard.New(), TunnelPort: b.config.Modules.Site.Port + 1,
	}
	if w.contact != nil { // others matter where there is contact with them
		c.Probation = tested
		c.Site, c.At, c.Tunnel, c.SetTunnel = w.holder, w.contact.Address, w.contact.Tunnel, w.contact.SetTunnel
		c.Said, c.SetLAN = w.contact.LAN, w.contact.SetLAN
	}
	return podnet.New(c)
}

// peerChanged makes the view present the EndpointSlices of a device again.
func (w *siteWing) peerChanged(node string) {
	select {
	case w.moved <- struct{}{}:
	default:
	}
	if w.correction != nil {
		w.correction.PeerChanged(node)
	}
}

// ownPods sends this device's pods, as its kubelet reports them, to the other devices of the site.
func (w *siteWing) ownPods(statuses map[types.UID]endpoints.PodStatus) {
	if w.contact == nil {
		return
	}
	pods := make([]contact.Pod, 0, len(statuses))
	for uid, w := range statuses {
		pods = append(pods, contact.Pod{UID: uid, Addresses: w.Addresses, Ready: w.Ready, Terminating: w.Terminating})
	}
	slices.SortFunc(pods, func(x, y contact.Pod) int { return cmp.Compare(x.UID, y.UID) })
	w.contact.SetPods(pods)
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

func (k knowledge) PodStatus(device string, pod types.UID) (endpoints.PodStatus, bool) {
	p, ok := k.Pod(device, pod)
	return endpoints.PodStatus{Addresses: p.Addresses, Ready: p.Ready, Terminating: p.Terminating}, ok
}
