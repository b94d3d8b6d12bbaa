// Package contact detects the other devices of a site on their LAN: which are alive, and each one's
// status of its own pods. It needs no cloud.
//
// It owns one QUIC connection with each other device of the site, on which both show their node's
// certificate; the decision which device is Met, Mute or Dead; and the reports, which count from
// their own device alone and are never passed on. It refuses peers outside of the Site, revoked
// certificates, addresses that are not of the sender's own pods, and messages above the bounds of
// wire.go: a peer may be a stolen device. It stores which devices were ever met, and their last
// reports in a directory that a reboot clears.
//
// It also opens connections for programs (program.go), whose content is package sharing's.
//
// The core (core.go) is pure and guarded by mu. Contact, Pod, SetPods, SetTunnel, Tunnel, Status,
// Connected and DialPrograms may be called from any goroutine; Changed is called by one of ours,
// without mu.
package contact

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/lan"
	"github.com/skerry-io/skerry/edge/internal/site/peers"
)

// Name is the module's address on the bus. It receives no messages.
const Name message.Name = "contact"

const (
	// beaconEvery is the time between two beacons while a device of the site is missing, beaconSlow
	// after some minutes of that.
	beaconEvery = time.Second
	beaconSlow  = 10 * time.Second
	beaconEager = 5 * time.Minute
	// reportInterval bounds how often this device sends a new report.
	reportInterval = 100 * time.Millisecond
	// found bounds the addresses that beacons have named for one device: the newest stay.
	found = 4
	// lookMin and lookMost bound the pause before unreadable networks are read again.
	lookMin  = 250 * time.Millisecond
	lookMost = 30 * time.Second
)

// Network is the device's place on its networks: a *lan.LAN.
type Network interface {
	Listen(port int) (*net.UDPConn, error)
	Join(conn *net.UDPConn) error
	Beacon(packet []byte, port int) error
	Answers(ctx context.Context, address netip.Addr, patience time.Duration) (bool, error)
	Networks() ([]lan.Network, error)
	Subscribe() (*lan.Changes, error)
}

// Memory keeps small values over restarts.
type Memory interface {
	Load() (map[string][]byte, error)
	Save(ctx context.Context, changes map[string][]byte) error
}

// Config configures an Agent.
type Config struct {
	Node string
	Boot string // of this boot of the device
	Port int
	Site *peers.Holder
	Trust
	Network Network
	// Forget makes the kernel forget TCP connections to addresses.
	Forget func([]netip.Prefix) (int, error)
	Memory Memory
	// RunFile keeps the peers' reports over restarts of edgecore, not over a reboot; "": they are
	// not kept.
	RunFile string
	// Changed is called with a device whose state has changed.
	Changed func(node string)
	// Programs answers a device of the site that asks for programs, until ctx ends, which it does
	// with the connection. nil: this device has none for others.
	Programs func(ctx context.Context, node string, s *Stream)
}

// Agent is the module.
type Agent struct {
	config Config

	mu         sync.Mutex
	core       *core
	conns      map[uint64]*session
	logged     map[string]Status // as the log has it
	nextConn   uint64
	dialing    map[string]bool
	found      map[string][]netip.AddrPort
	own        []Pod
	tunnel     Tunnel // of this device
	lan        []netip.Prefix
	networks   []lan.Network // as look has read them last
	sequence   uint64
	changedOwn chan struct{} // closed and replaced when own changes
	cut        map[string]bool

	wake      chan struct{}
	keep      chan struct{} // the set of met devices has changed
	transport *quic.Transport
	admission *admission
	lost      atomic.Uint64
	dropped   atomic.Uint64
	refused   atomic.Uint64
	deaths    atomic.Uint64
	forgotten atomic.Uint64
}

// New makes an Agent.
func New(c Config) *Agent {
	if c.Changed == nil {
		c.Changed = func(string) {}
	}
	return &Agent{
		config: c, core: newCore(c.Node, map[string]bool{}), conns: map[uint64]*session{}, logged: map[string]Status{}, dialing: map[string]bool{}, found: map[string][]netip.AddrPort{},
		changedOwn: make(chan struct{}), cut: map[string]bool{}, wake: make(chan struct{}, 1), keep: make(chan struct{}, 1), admission: newAdmission(),
		// Later than that of an edgecore that ran before in this boot.
		sequence: uint64(time.Now().UnixNano()),
	}
}

const (
	metKey    = "met"
	ownersKey = "tunnels" // by key, in hexadecimal: the first device that had it
)

// runState is the state in RunFile.
type runState struct {
	Boot  string             `json:"boot"`
	Peers map[string]runPeer `json:"peers"`
}

type runPeer struct {
	At       netip.Addr `json:"at"`
	Boot     string     `json:"boot"`
	Sequence uint64     `json:"sequence"`
	Pods     []Pod      `json:"pods"`
	Tunnel   Tunnel     `json:"tunnel"`
}

// Load reads the saved state. It is called before Run, so that no decision is made without it.
func (a *Agent) Load(ctx context.Context) error {
	kept, err := a.config.Memory.Load()
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	var names []string
	if raw := kept[metKey]; raw != nil {
		if err := json.Unmarshal(raw, &names); err != nil {
			klog.FromContext(ctx).Error(err, "Failed to load peer state, using the cloud's endpoints until peers are seen")
		}
	}
	for _, n := range names {
		a.core.met[n] = true
	}
	var owners map[string]string
	if raw := kept[ownersKey]; raw != nil {
		if err := json.Unmarshal(raw, &owners); err != nil {
			klog.FromContext(ctx).Error(err, "Failed to load the owners of tunnel keys, accepting the first peer that reports each key")
		}
	}
	for text, node := range owners {
		if key, err := hex.DecodeString(text); err == nil && len(key) == 32 {
			a.core.owners[[32]byte(key)] = node
		}
	}
	a.takeSite(time.Now())
	if a.config.RunFile == "" {
		return nil
	}
	raw, err := os.ReadFile(a.config.RunFile)
	if err != nil {
		return nil //nolint:nilerr // a first start in this boot
	}
	var s runState
	if json.Unmarshal(raw, &s) != nil || s.Boot != a.config.Boot {
		return nil
	}
	for node, p := range s.Peers {
		w := &Report{Boot: p.Boot, Sequence: p.Sequence, Pods: map[types.UID]Pod{}, Tunnel: p.Tunnel}
		for _, pod := range p.Pods {
			w.Pods[pod.UID] = pod
		}
		a.core.restore(time.Now(), node, w, p.At)
	}
	return nil
}

// takeSite gives the core the devices of the site, and closes connections of those that are no
// longer members. mu is held.
func (a *Agent) takeSite(now time.Time) {
	s := a.config.Site.Current()
	if s == nil {
		return
	}
	all := map[string][]netip.Prefix{}
	for _, m := range s.Members {
		if m.Node != a.config.Node {
			all[m.Node] = m.Ranges()
		}
	}
	a.core.members(now, all)
	for _, one := range a.conns {
		if _, err := s.Admits(one.certificate); err != nil {
			a.refused.Add(1)
			one.close("not in this site any more")
		}
	}
	for node := range a.found {
		if _, in := all[node]; !in {
			delete(a.found, node)
		}
	}
}

// SetPods sets the kubelet's status of this device's pods, the oldest first.
func (a *Agent) SetPods(pods []Pod) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.sequence != 0 && slices.EqualFunc(a.own, pods, Pod.equal) {
		return
	}
	a.own = slices.Clone(pods)
	a.resend()
}

// SetTunnel is where this device takes encrypted packets now.
func (a *Agent) SetTunnel(t Tunnel) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.tunnel != t {
		a.tunnel = t
		a.resend()
	}
}

// SetLAN is this device's addresses on its networks now, by which others reach its pods.
func (a *Agent) SetLAN(lan []netip.Prefix) {
	a.mu.Lock()
	if slices.Equal(a.lan, lan) {
		a.mu.Unlock()
		return
	}
	a.lan = slices.Clone(lan)
	a.resend()
	peers := slices.Sorted(maps.Keys(a.core.peers))
	a.mu.Unlock()
	for _, node := range peers { // the peers that are reached from here have changed too
		a.config.Changed(node)
	}
}

// LAN is the addresses that a device reports of itself; empty where its last report is missing or
// outdated.
func (a *Agent) LAN(node string) []netip.Addr {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p := a.core.peers[node]; p != nil && p.holds() {
		return slices.Clone(p.report.LAN)
	}
	return nil
}

// Reaches reports whether pods of a device that have addresses of a family are reached from here:
// both devices have an address of it on one network, or a tunnel. Unknown data is no reason to
// doubt.
func (a *Agent) Reaches(node string, v4 bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.core.peers[node]
	if p == nil || !p.holds() || len(p.report.LAN) == 0 || len(a.lan) == 0 || a.tunnel != (Tunnel{}) && a.core.tunnel(node) != (Tunnel{}) {
		return true
	}
	return slices.ContainsFunc(p.report.LAN, func(at netip.Addr) bool {
		return at.Is4() == v4 && slices.ContainsFunc(a.lan, func(n netip.Prefix) bool { return n.Contains(at) })
	})
}

// resend sends this device's report to all peers. mu is held.
func (a *Agent) resend() {
	a.sequence++
	close(a.changedOwn)
	a.changedOwn = make(chan struct{})
}

// Contact is the state of a device. A mute one whose last report holds no longer is Absent.
func (a *Agent) Contact(node string) Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.core.peers[node]
	switch {
	case p == nil:
		return Unmet
	case p.status == Mute && !p.holds(), p.status == Met && p.report == nil:
		return Absent
	}
	return p.status
}

// State is the contact as `edgecore status` shows it.
type State struct {
	Peers []Peer `json:"peers"`
	// Dropped are addresses that peers claimed without owning them, Refused connections of devices
	// outside of the site, Deaths devices that died, and Forgotten the TCP connections that were
	// ended by that; all since edgecore started.
	Dropped   uint64 `json:"dropped"`
	Refused   uint64 `json:"refused"`
	Deaths    uint64 `json:"deaths"`
	Forgotten uint64 `json:"forgotten"`
}

// Peer is one other device of the site.
type Peer struct {
	Node    string     `json:"node"`
	Status  string     `json:"status"`
	Address netip.Addr `json:"address,omitzero"`
	Pods    int        `json:"pods"`
}

// State is how the contact is now.
func (a *Agent) State() State {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := State{Dropped: a.dropped.Load(), Refused: a.refused.Load(), Deaths: a.deaths.Load(), Forgotten: a.forgotten.Load()}
	for node, p := range a.core.peers {
		one := Peer{Node: node, Status: p.status.String(), Address: p.at}
		if p.holds() {
			one.Pods = len(p.report.Pods)
		}
		s.Peers = append(s.Peers, one)
	}
	slices.SortFunc(s.Peers, func(x, y Peer) int { return cmp.Compare(x.Node, y.Node) })
	return s
}

// Address returns a device's last address of a connection in this process; the zero value without
// one, or if it is dead: then it may be elsewhere, and the cloud may have its address.
func (a *Agent) Address(node string) netip.Addr {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p := a.core.peers[node]; p != nil && p.status != Dead {
		return p.at
	}
	return netip.Addr{}
}

// Tunnel is where a device takes encrypted packets, by its last report in this boot; the zero
// value without one. It stays when the device is dead: packets to it are
// lost by any way.
func (a *Agent) Tunnel(node string) Tunnel {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.core.tunnel(node)
}

// Pod is a device's status of a pod of its own; false where its report has no such pod, or where
// its report does not hold.
func (a *Agent) Pod(node string, uid types.UID) (Pod, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.core.peers[node]
	if p == nil || !p.holds() {
		return Pod{}, false
	}
	pod, ok := p.report.Pods[uid]
	if !ok {
		return pod, false
	}
	// The range of a device may have changed since its report arrived.
	pod.Addresses = slices.DeleteFunc(slices.Clone(pod.Addresses), func(x netip.Addr) bool {
		return !slices.ContainsFunc(p.ranges, func(r netip.Prefix) bool { return r.Contains(x) })
	})
	for i, x := range pod.Addresses {
		pod.Addresses[i] = a.onLAN(p, x)
	}
	return pod, true
}

// onLAN is the address of a pod in its device's network by which it is reached from here: where its
// own, the Node's, is on a network of the device's alone, such as its uplink, the device's address
// on a common network is. mu must be held.
func (a *Agent) onLAN(p *peer, at netip.Addr) netip.Addr {
	here := func(x netip.Addr) bool { // this device's own address is no way to another one, whatever that reports
		return slices.ContainsFunc(a.lan, func(n netip.Prefix) bool { return n.Contains(x) && n.Addr() != x })
	}
	if here(at) || slices.ContainsFunc(p.ranges, func(r netip.Prefix) bool { return !r.IsSingleIP() && r.Contains(at) }) {
		return at
	}
	for _, x := range p.report.LAN {
		if x.Is4() == at.Is4() && here(x) {
			return x
		}
	}
	return at
}
