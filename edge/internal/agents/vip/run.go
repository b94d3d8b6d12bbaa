package vip

import (
	"cmp"
	"context"
	"net"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/agents/probation"
	"github.com/skerry-io/skerry/edge/internal/core/agent"
	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/balance"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/acd"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/keepalived"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netif"
)

// Name is the module's.
const Name message.Name = "vip"

const (
	// resync is the interval of full checks without a notification: other programs change rules.
	resync = 30 * time.Second
	// firstElection is for how long the highest priority may take a new address from the first
	// holder.
	firstElection = 15 * time.Second
	// settle is for how long a fault is ignored after SetReady enabled an instance: the elector has
	// to read that first.
	settle = 2 * time.Second
)

// Elector holds elections: *keepalived.Daemon.
type Elector interface {
	Run(ctx context.Context) error
	Apply(ctx context.Context, instances []keepalived.Instance) error
	SetReady(name string, ready bool) error
	States() map[string]keepalived.State
	Changed() <-chan struct{}
	Problems() map[string]error
	ExtraProblem() error
	// Leaving returns released addresses that are still on the device.
	Leaving() ([]netip.Addr, error)
	Restarts() uint64
}

// Plane carries traffic: *iptables.Plane or *ipvs.Plane.
type Plane interface {
	Name() string
	Apply(ctx context.Context, want []balance.Service) error
}

// Config configures an Agent.
type Config struct {
	NodeName string
	// API configures a client of the edge API.
	API      *rest.Config
	Elector  Elector
	Plane    Plane
	Reporter agent.Reporter
	Memory   agent.Memory
	// Events opens the recorder of events for one run; nil without one.
	Events func(ctx context.Context) (agent.Recorder, error)
	// Interfaces lists the device's; default netif.List.
	Interfaces func() ([]netif.Interface, error)
	// Watch calls changed when the result of Interfaces changes, until ctx ends; default
	// netif.Watch.
	Watch func(ctx context.Context, changed func()) error
	// Guards returns networks whose addresses the node never claims: those on the path to the
	// cloud, name servers; nil: no networks. It is called at each sync.
	Guards func() []Guard
	// Hub is the module that has the link, through which the cloud is asked; "" without one.
	Hub message.Name
	// Probation takes back an address that takes the link away, and with it the way to ask; nil:
	// there is no cloud to lose.
	Probation *probation.Probation
	// Ask sends the cloud any request, end to end; default: over the link of Hub.
	Ask func(ctx context.Context) error
	// Monitor receives other hosts' VRRP on an interface; default acd.Monitor.
	Monitor func(ctx context.Context, iface string, heard func(acd.Advert)) error
	// Probe finds the hosts on an interface's LAN that have an address already; default acd.Probe.
	Probe func(ctx context.Context, iface string, targets []acd.Target) (taken map[netip.Addr]net.HardwareAddr, err error)
	// BootID is the unique ID of this boot, and BootTime its time by the present clock.
	BootID   string
	BootTime func() time.Time
	// Times are the agent's timeouts; the zero value means those for devices.
	Times Times
}

// Times are an agent's.
type Times struct {
	// Listen is how long a LAN is listened to before the node first takes part in an election
	// there; default 3 s, three of VRRP's usual intervals.
	Listen time.Duration
	// AskAgain is how long an address that another host has is left alone; default 15 s.
	AskAgain time.Duration
	// Answer is how long the cloud may take to answer after the node first took an address; default
	// 10 s.
	Answer time.Duration
}

func (t Times) complete() Times {
	return Times{Listen: cmp.Or(t.Listen, 3*time.Second), AskAgain: cmp.Or(t.AskAgain, 15*time.Second), Answer: cmp.Or(t.Answer, 10*time.Second)}
}

// Agent is the module.
type Agent struct {
	*agent.Module
	cfg    Config
	orders sync.Mutex // held while memory is changed

	mu      sync.Mutex
	memory  memory
	loaded  bool
	leaving bool                // the device shuts down: as memory.Draining, but for this boot only
	entries map[string]reported // by name
	held    map[string]holding  // by name: the node's holdings, actual or prepared
	untaken map[string]time.Time
	// releases are by name of the VirtualIP: those that exist and are handed over, no more.
	releases map[string]*release
	ordered  uint64 // orders so far, and the number included in the last full check
	looked   uint64
	// transitions are for metrics: how often an address entered a state.
	transitions map[string]uint64
	adverts     *advertLog // of the present run
	kit         *agent.Run // likewise; nil before the first
}

// holding is an election of this node.
type holding struct {
	election string
	iface    string
	ipv6     bool
	vrid     uint8
	ready    bool // to go on holding
}

// release is an address that is being handed over for a drain.
type release struct {
	holding
	began time.Time
	gone  time.Time // when keepalived had let it go; zero before
}

type reported struct {
	uid     types.UID
	service v1alpha1.VirtualIPService
	address string
	pool    string
	// generation is the object's. With another one the cloud may have dropped the entry: of a node
	// that had left the address in between, maybe without a link.
	generation int64
	entry      v1alpha1.VirtualIPNodeStatus
}

// wake makes the current run, if there is one, sync again.
func (a *Agent) wake() {
	a.mu.Lock()
	kit := a.kit
	a.mu.Unlock()
	if kit != nil {
		kit.Wake()
	}
}

// run is one run of the Agent; one goroutine owns it.
type run struct {
	*Agent
	kit   *agent.Run
	vips  *agent.Objects[*v1alpha1.VirtualIP]
	pods  *agent.Objects[*corev1.Pod]
	first map[types.UID]time.Time // when a new address was first seen
	ready map[string]bool         // the last arguments of the elector's SetReady
	// readySince is since when an instance may take part: for a moment after that its state is
	// still the previous one.
	readySince map[string]time.Time
	probe      *conflictProbe
	trial      *trial
	claims     *probation.Claims
	linked     map[types.UID]bool // addresses that this node has, and had with a link
	// suspects are addresses with which the cloud could not be reached together. The first may be
	// claimed, since suspected; the others wait.
	suspects  []types.UID
	suspected time.Time
}

// memory is the content of Memory, as JSON.
type memory struct {
	BootID            string   `json:"bootID"`
	PreBootContainers []string `json:"preBootContainers,omitempty"`
	Maintenance       bool     `json:"maintenance,omitempty"`
	Draining          bool     `json:"draining,omitempty"` // HandOver's; an operator's own maintenance is not touched by it
	// Clear are the addresses, as claim.key has them, that no other host was found to have
	// in this boot.
	Clear []string `json:"clear,omitempty"`
	// Clouds are addresses of cloudcore, the latest first.
	Clouds []netip.Addr `json:"clouds,omitempty"`
	// Proven are the addresses with which the cloud was reached; Trying are those that are being
	// tried, and CutOff has the observed failure of those with which it was not. All by UID.
	Proven []types.UID          `json:"proven,omitempty"`
	Trying []types.UID          `json:"trying,omitempty"`
	CutOff map[types.UID]string `json:"cutOff,omitempty"`
}
