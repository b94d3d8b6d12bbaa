package route

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netroute"
)

// The default probe addresses of a StaticRoute. They stand for "somewhere far away": no packet is
// sent to them.
const (
	defaultProbe4 = "10.0.0.1" // the default of IBM's static route operator, whose design is the model of this one
	defaultProbe6 = "fd00::1"
)

// claim is one StaticRoute as this node understands it.
type claim struct {
	name       string
	uid        types.UID
	generation int64
	created    time.Time

	selector labels.Selector
	inPool   func(labels.Set) bool
	// unresolved: the route names a pool, whose members have not been written down yet.
	unresolved bool
	deleting   bool
	dryRun     bool
	adopt      bool
	repair     bool

	// covers is the conflict that the cloud has found: pods of other nodes; "" without a conflict.
	covers string

	route   netroute.Route // without hops if they have to be detected
	probe   netip.Addr     // valid if the next hop has to be detected
	invalid string         // why the spec makes no sense; "" where it does
}

// read parses a StaticRoute. The CRD's rules have validated it, but a node may be older than the
// CRD: unknown values are invalid, never guessed.
func read(o *v1alpha1.StaticRoute) *claim {
	c := &claim{
		name: o.Name, uid: o.UID, generation: o.Generation, created: o.CreationTimestamp.Time,
		deleting: o.DeletionTimestamp != nil, dryRun: o.Spec.DryRun,
		adopt: o.Spec.OnConflict == v1alpha1.ConflictAdopt, repair: o.Spec.DriftPolicy != v1alpha1.DriftReport,
		covers: o.Annotations[v1alpha1.RouteCoversAnnotation], selector: labels.Everything(), inPool: func(labels.Set) bool { return true },
	}
	if o.Spec.NodePool != "" {
		members, known := o.PoolMembers()
		c.unresolved = !known
		inPool, err := members.Selector()
		if err != nil {
			inPool = func(labels.Set) bool { return false } // as the cloud counts it
		}
		c.inPool = inPool
	}
	if err := c.read(&o.Spec); err != nil {
		c.invalid = err.Error()
	}
	return c
}

func (c *claim) read(s *v1alpha1.StaticRouteSpec) error {
	var err error
	if c.selector, err = s.NodeSelector.Selector(); err != nil {
		return err
	}
	subnet, err := parseSubnet(s.Subnet)
	if err != nil {
		return fmt.Errorf("subnet: %w", err)
	}
	if s.Table < 0 || s.Table > 1<<32-1 || s.Table == 255 {
		return fmt.Errorf("table: %d is not a table for static routes", s.Table)
	}
	if s.Metric < 0 || s.Metric > 1<<32-1 {
		return fmt.Errorf("metric: %d is out of range", s.Metric)
	}
	c.route = netroute.Route{Key: netroute.NewKey(uint32(s.Table), subnet, uint32(s.Metric)), MTU: int(s.MTU)}
	switch s.Type {
	case v1alpha1.RouteUnicast, "":
		c.route.Type = netroute.Unicast
	case v1alpha1.RouteBlackhole:
		c.route.Type = netroute.Blackhole
	case v1alpha1.RouteUnreachable:
		c.route.Type = netroute.Unreachable
	case v1alpha1.RouteProhibit:
		c.route.Type = netroute.Prohibit
	default:
		return fmt.Errorf("type: %q is unknown to this version of edgecore", s.Type)
	}
	if s.PreferredSource != "" {
		if c.route.Source, err = c.address(s.PreferredSource); err != nil {
			return fmt.Errorf("preferredSource: %w", err)
		}
	}
	if c.route.Type != netroute.Unicast {
		return nil
	}
	return c.readHops(s)
}

func (c *claim) readHops(s *v1alpha1.StaticRouteSpec) error {
	hops := s.NextHops
	if s.Gateway != "" {
		hops = []v1alpha1.NextHop{{Gateway: s.Gateway}}
	}
	for i, h := range hops {
		hop := netroute.Hop{Interface: h.Interface, Weight: int(max(h.Weight, 1)), OnLink: h.OnLink}
		if h.Gateway != "" {
			var err error
			if hop.Gateway, err = c.address(h.Gateway); err != nil {
				return fmt.Errorf("gateway %d: %w", i+1, err)
			}
		}
		c.route.Hops = append(c.route.Hops, hop)
	}
	if len(c.route.Hops) > 0 {
		return nil
	}
	probe := defaultProbe4
	if c.route.Prefix.Addr().Is6() {
		probe = defaultProbe6
	}
	if s.GatewayDetection != nil {
		probe = cmp.Or(s.GatewayDetection.ProbeIP, probe)
	}
	var err error
	if c.probe, err = c.address(probe); err != nil {
		return fmt.Errorf("gatewayDetection.probeIP: %w", err)
	}
	return nil
}

// address reads an address of the subnet's family.
func (c *claim) address(text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	if err != nil || a.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("%q is no IP address", text)
	}
	if a = a.Unmap(); a.Is4() != c.route.Prefix.Addr().Is4() {
		return netip.Addr{}, fmt.Errorf("%s is not of the family of %s", a, c.route.Prefix)
	}
	return a, nil
}

func parseSubnet(text string) (netip.Prefix, error) {
	if !strings.Contains(text, "/") {
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" || a.Is4In6() {
			return netip.Prefix{}, fmt.Errorf("%q is neither a network nor an address", text)
		}
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil || p.Addr().Is4In6() {
		return netip.Prefix{}, fmt.Errorf("%q is no network", text)
	}
	if p != p.Masked() {
		return netip.Prefix{}, fmt.Errorf("%s has bits set behind its mask: %s", p, p.Masked())
	}
	return p, nil
}

// selects reports whether the route is for a node with these labels. It is asked before everything
// else.
func (c *claim) selects(l labels.Set) bool { return c.inPool(l) && c.selector.Matches(l) }

// before orders claims for one key. The older wins; creationTimestamp counts whole seconds, so of
// two of one second the lower UID does, which is arbitrary and the same on every node, and which a
// name can't be chosen to beat.
func (c *claim) before(other *claim) int {
	return cmp.Or(c.created.Compare(other.created), cmp.Compare(c.uid, other.uid), cmp.Compare(c.name, other.name))
}

// beaten gives the reason c loses against the winner of its key.
func (c *claim) beaten(winner *claim) *rejection {
	why := "which is older"
	if winner.created.Equal(c.created) {
		why = "which was created in the same second and has the lower UID"
	}
	return reject(v1alpha1.RouteConflict, "StaticRoute %s, %s, has the same table, subnet and metric", winner.name, why)
}
