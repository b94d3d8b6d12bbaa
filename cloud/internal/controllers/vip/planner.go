package vip

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/cloud/internal/controllers/vip/vrid"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// State is the objects that a Plan is made of. They are not changed.
type State struct {
	Pools    []*v1alpha1.NodePool
	VIPs     []*v1alpha1.VirtualIP
	Services []*corev1.Service
	Nodes    []*corev1.Node
	// Protected are addresses that the objects above don't show: cloudcore, kube-apiserver, ranges
	// of Services.
	Protected []Protected
}

// Plan lists the writes that bring the objects to the desired state. Its objects are copies.
type Plan struct {
	Create []*v1alpha1.VirtualIP
	Update []*v1alpha1.VirtualIP // metadata and spec
	Delete []*v1alpha1.VirtualIP // mark as deleted: the nodes drop it
	Free   []*v1alpha1.VirtualIP // let go of a deleted one
	Mark   []*v1alpha1.VirtualIP // conditions of the status

	Pools      []*v1alpha1.NodePool // addresses of the spec
	PoolStatus []*v1alpha1.NodePool

	Services []*corev1.Service // status
	// Next is the time of the next plan without a change; zero for never.
	Next time.Time
}

// Core computes Plans.
type Core struct {
	policy Policy
	random func() uint64
	// cursor is the address after which RoundRobin continues, by pool and family. The pools' status
	// has it too, a little later.
	cursor map[at]netip.Addr
}

type at struct {
	pool   string
	family family
}

// NewCore makes a Core.
func NewCore(policy Policy) *Core {
	return &Core{policy: policy, random: rand.Uint64, cursor: map[at]netip.Addr{}}
}

// Reasons of the Service's condition skerry.io/Allocated.
const (
	ReasonAllocated       = "Allocated"
	ReasonNoPoolSelector  = "NoPoolSelector"
	ReasonInvalidSelector = "InvalidPoolSelector"
	ReasonNoPool          = "NoPool"
	ReasonInvalidAddress  = "InvalidAddress"
	ReasonAddressInUse    = "AddressInUse"
	ReasonAddressOfNode   = "AddressOfNode"
	ReasonAddressOfPool   = "AddressOfAnotherPool"
	ReasonProtected       = "AddressProtected"
	ReasonOutsidePool     = "AddressOutsidePool"
	ReasonExhausted       = "Exhausted"
	ReasonVRIDsExhausted  = "VRIDsExhausted"
)

// claim is one address that a Service should have.
type claim struct {
	service  *corev1.Service
	pool     *pool
	family   family
	explicit netip.Addr // the zero Addr: any
}

type slot struct {
	service types.UID
	pool    string
	family  family
}

// problem is why a claim is not met.
type problem struct{ reason, message string }

// planner makes one Plan.
type planner struct {
	*Core
	state State
	now   time.Time
	plan  Plan

	pools   map[string]*pool
	order   []*pool // by age
	nodes   map[string]bool
	nodeIPs map[netip.Addr]string
	// protected are networks of others, and protectedSpans the same for arithmetic.
	protected      []Protected
	protectedSpans spans
	taken          map[string]*v1alpha1.VirtualIP // by name: all there are, and those of this plan
	have           map[slot]*v1alpha1.VirtualIP   // not deleted
	lans           lans
	owners         map[lanAddress]string                     // to the name of the VirtualIP that was first
	vrids          map[lanFamily]map[int32]string            // to the name of the VirtualIP
	heard          map[string]map[int32]v1alpha1.ForeignVRID // by LAN: numbers of other routers
	words          map[string]vrid.Words                     // by LAN: nodes' reports of such
	problems       map[types.UID][]problem
	waiting        map[at]int // claims that find no free address
	held           map[types.UID][]*v1alpha1.VirtualIP
	kept           map[string]bool // names of VIPs that a claim stands for
}

func (p *planner) tell(s *corev1.Service, reason, message string) {
	p.problems[s.UID] = append(p.problems[s.UID], problem{reason, message})
}

// snapshot and restore keep a plan that is thrown away from moving RoundRobin on.
func (c *Core) snapshot() map[at]netip.Addr { return maps.Clone(c.cursor) }

func (c *Core) restore(cursor map[at]netip.Addr) { c.cursor = cursor }

// pool is a NodePool as a planner sees it.
type pool struct {
	object *v1alpha1.NodePool
	nodes  []string
	all    spans // every valid entry: the whole range
	usable spans // without overlaps with an older pool: the addresses that may be given away
	used   int64
	// The errors, as text.
	invalid []string
	overlap []string
}

func (p *pool) labels() labels.Set { return p.object.Labels }

// serves reports whether Services may have addresses here.
func (p *pool) serves() bool {
	return p.object.Spec.Type != v1alpha1.NodePoolCloud && p.object.DeletionTimestamp == nil
}

// Protected is a network whose addresses are taken by others: no virtual IP may be one of them.
type Protected struct {
	Prefix netip.Prefix
	Why    string // completes "10.96.0.1 is in 10.96.0.0/12, ..."
}

func host(a netip.Addr, why string) Protected {
	return Protected{netip.PrefixFrom(a, a.BitLen()), why}
}

// next makes the next plan no later than at a time.
func (p *planner) next(at time.Time) {
	if p.plan.Next.IsZero() || at.Before(p.plan.Next) {
		p.plan.Next = at
	}
}
