package vip

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/kernel/acd"
	"github.com/skerry-io/skerry/edge/internal/kernel/balance"
	"github.com/skerry-io/skerry/edge/internal/kernel/keepalived"
	"github.com/skerry-io/skerry/edge/internal/kernel/netif"
	"github.com/skerry-io/skerry/edge/internal/linkstate"
	"github.com/skerry-io/skerry/edge/internal/object"
)

// Name is the module's.
const Name message.Name = "vip"

const (
	// resync is how often everything is looked at although nothing was told: others meddle with rules.
	resync = 30 * time.Second
	// firstElection is for how long the highest priority may take a new address from whoever was first.
	firstElection = 15 * time.Second
	// retryMin and retryMax bound the waits after a failure.
	retryMin = time.Second
	retryMax = 30 * time.Second
	// settle is for how long a fault is not believed after the elector was told that an instance may stand: it looks up what it was told first.
	settle = 2 * time.Second
)

// Elector is what holds elections: *keepalived.Daemon.
type Elector interface {
	Run(ctx context.Context) error
	Apply(ctx context.Context, instances []keepalived.Instance) error
	SetReady(name string, ready bool) error
	States() map[string]keepalived.State
	Changed() <-chan struct{}
	Problems() map[string]error
	ExtraProblem() error
	Restarts() uint64
}

// Plane is what carries traffic: *iptables.Plane or *ipvs.Plane.
type Plane interface {
	Name() string
	Apply(ctx context.Context, want []balance.Service) error
}

// Reporter brings a node's entry to the cloud, now or later: *meta.Manager.
type Reporter interface {
	Report(ctx context.Context, ref object.Ref, uid types.UID, body []byte) error
}

// Memory is what outlives a restart: a few bytes in the store.
type Memory interface {
	Load() ([]byte, error)
	Save(ctx context.Context, state []byte) error
}

// Config is what an Agent needs.
type Config struct {
	NodeName string
	// API leads to the edge API.
	API      *rest.Config
	Elector  Elector
	Plane    Plane
	Reporter Reporter
	Memory   Memory
	// Events opens the recorder of events for one run; nil for none.
	Events func(ctx context.Context) (events record.EventRecorder, done func(), err error)
	// Interfaces lists the device's; default netif.List.
	Interfaces func() ([]netif.Interface, error)
	// Watch calls changed when Interfaces gives something else, until ctx ends; default netif.Watch.
	Watch func(ctx context.Context, changed func()) error
	// Guards are networks whose addresses the node never claims: what leads to the cloud, name servers;
	// nil for none. It is asked whenever everything is looked at.
	Guards func() []Guard
	// Hub is the module that has the link, which the cloud is asked through; "" for none. Linked reports
	// whether there is a link; nil for never.
	Hub    message.Name
	Linked func() bool
	// Ask asks the cloud anything, end to end; default: over the link of Hub.
	Ask func(ctx context.Context) error
	// Monitor hears other hosts' VRRP on an interface; default acd.Monitor.
	Monitor func(ctx context.Context, iface string, heard func(acd.Advert)) error
	// Probe finds out who on an interface's LAN has an address already; default acd.Probe.
	Probe func(ctx context.Context, iface string, targets []acd.Target) (taken map[netip.Addr]net.HardwareAddr, err error)
	// BootID tells one boot from another, and BootTime when this one was, by the present clock.
	BootID   string
	BootTime func() time.Time
}

// Agent is the module.
type Agent struct {
	cfg    Config
	wake   chan struct{}
	orders sync.Mutex // held while memory is changed

	mu      sync.Mutex
	memory  memory
	loaded  bool
	leaving bool                // the device shuts down: as memory.Draining, but for this boot only
	entries map[string]reported // by name
	held    map[string]holding  // by name: what the node holds, or would
	untaken map[string]time.Time
	// releases are by name of the VirtualIP: those that exist and are handed over, no more.
	releases map[string]*release
	ordered  uint64 // orders so far, and how many of them the last look at everything knew
	looked   uint64
	problem  error
	counts   counts
	adverts  *advertLog // of the present run
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
	entry   v1alpha1.VirtualIPNodeStatus
	sent    bool
}

// New makes an Agent. It starts nothing.
func New(cfg Config) *Agent {
	if cfg.Interfaces == nil {
		cfg.Interfaces = netif.List
	}
	if cfg.Watch == nil {
		cfg.Watch = netif.Watch
	}
	if cfg.Probe == nil {
		cfg.Probe = acd.Probe
	}
	if cfg.Monitor == nil {
		cfg.Monitor = acd.Monitor
	}
	if cfg.Linked == nil {
		cfg.Linked = func() bool { return false }
	}
	return &Agent{cfg: cfg, wake: make(chan struct{}, 1), entries: map[string]reported{}, held: map[string]holding{}, untaken: map[string]time.Time{}, releases: map[string]*release{}, counts: counts{transitions: map[string]uint64{}}}
}

// Name implements beehive.Module.
func (*Agent) Name() message.Name { return Name }

// Topics implements beehive.Topics.
func (*Agent) Topics() []message.Key { return []message.Key{linkstate.Up.Key(), linkstate.Down.Key()} }

func (a *Agent) poke() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// run is one run of the Agent; one goroutine owns it.
type run struct {
	*Agent
	vips  cache.GenericLister
	pods  cache.Indexer
	first map[types.UID]time.Time // when a new address was first seen
	ready map[string]bool         // what the elector was told
	// readySince is since when an instance may stand: for a moment after that its state is still the one
	// of before.
	readySince map[string]time.Time
	probe      *conflictProbe
	trial      *trial
	// suspects are addresses with which the cloud could not be reached together. The first may be claimed,
	// since suspected; the others wait.
	suspects  []types.UID
	suspected time.Time
	// events may be nil.
	events record.EventRecorder
}

func (r *run) listPods() []*corev1.Pod {
	var out []*corev1.Pod
	for _, o := range r.pods.List() {
		if p, ok := o.(*corev1.Pod); ok {
			out = append(out, p)
		}
	}
	return out
}

func (r *run) listVIPs() ([]*v1alpha1.VirtualIP, error) {
	all, err := r.vips.List(everything())
	if err != nil {
		return nil, fmt.Errorf("listing virtual IPs: %w", err)
	}
	var out []*v1alpha1.VirtualIP
	var errs []error
	for _, o := range all {
		u, ok := o.(*unstructured.Unstructured)
		if !ok {
			continue
		}
		v := &v1alpha1.VirtualIP{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, v); err != nil {
			errs = append(errs, fmt.Errorf("reading VirtualIP %s: %w", u.GetName(), err))
			continue
		}
		out = append(out, v)
	}
	return out, errors.Join(errs...)
}

func everything() labels.Selector { return labels.Everything() }

// counts are for metrics.
type counts struct {
	syncs, failures uint64
	transitions     map[string]uint64 // by the state entered
}

// memory is what Memory keeps, as JSON.
type memory struct {
	BootID            string   `json:"bootID"`
	PreBootContainers []string `json:"preBootContainers,omitempty"`
	Maintenance       bool     `json:"maintenance,omitempty"`
	Draining          bool     `json:"draining,omitempty"` // HandOver's; an operator's own maintenance is not touched by it
	// Clear are the addresses, as claim.key has them, that no other host was found to have in this boot.
	Clear []string `json:"clear,omitempty"`
	// Clouds are addresses of cloudcore, the latest first.
	Clouds []netip.Addr `json:"clouds,omitempty"`
	// Proven are the addresses with which the cloud was reached; Trying are those that are being tried, and
	// CutOff says of those with which it was not what was seen. All by UID.
	Proven []types.UID          `json:"proven,omitempty"`
	Trying []types.UID          `json:"trying,omitempty"`
	CutOff map[types.UID]string `json:"cutOff,omitempty"`
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
