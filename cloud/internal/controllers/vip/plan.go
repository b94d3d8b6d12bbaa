package vip

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/cloud/internal/controllers/vip/vrid"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	ranges "github.com/skerry-io/skerry/common/claim"
)

// Plan computes the writes. All existing allocations are read before a new address is given away.
func (c *Core) Plan(s State, now time.Time) Plan {
	p := &planner{
		Core: c, state: s, now: now,
		pools: map[string]*pool{}, nodes: map[string]bool{}, nodeIPs: map[netip.Addr]string{}, taken: map[string]*v1alpha1.VirtualIP{},
		have: map[slot]*v1alpha1.VirtualIP{}, vrids: map[lanFamily]map[int32]string{}, owners: map[lanAddress]string{}, heard: map[string]map[int32]v1alpha1.ForeignVRID{}, words: map[string]vrid.Words{}, problems: map[types.UID][]problem{}, waiting: map[at]int{},
		held: map[types.UID][]*v1alpha1.VirtualIP{}, kept: map[string]bool{},
	}
	p.lans = readLANs(s.VIPs)
	p.readNodes()
	p.readPools()
	p.readProtected()
	maps.DeleteFunc(c.cursor, func(k at, _ netip.Addr) bool { return p.pools[k.pool] == nil })
	p.readVIPs()
	p.hear()
	claims := p.claims()
	// First those that have theirs, then those that want a certain one, then the rest.
	claims = p.keep(claims)
	p.followElections()
	for _, explicit := range []bool{true, false} {
		for _, c := range claims {
			if c.explicit.IsValid() == explicit {
				p.allocate(c)
			}
		}
	}
	p.release()
	p.fillPools()
	p.poolStatus()
	p.serviceStatus()
	return p.plan
}

func (p *planner) readNodes() {
	for _, n := range p.state.Nodes {
		p.nodes[n.Name] = true
		for _, a := range ranges.Addresses(n) {
			p.nodeIPs[a] = n.Name
		}
	}
}

func (p *planner) readVIPs() {
	vips := slices.Clone(p.state.VIPs)
	slices.SortFunc(vips, func(a, b *v1alpha1.VirtualIP) int { return older(a, b) })
	for _, v := range vips {
		p.taken[v.Name] = v
		a, err := netip.ParseAddr(v.Spec.Address)
		if err != nil {
			continue // the CRD's rules refuse it
		}
		if pool := p.pools[v.Spec.Pool]; pool != nil {
			pool.used++
		}
		lan := p.lans.of(v.Spec.Network)
		if _, twice := p.owners[lanAddress{lan, a}]; !twice {
			p.owners[lanAddress{lan, a}] = v.Name
		}
		set := p.vridsOf(v.Spec.Network, familyOf(a))
		if _, twice := set[v.Spec.VRID]; !twice && v.Spec.SharesElectionOf == "" {
			set[v.Spec.VRID] = v.Name
		}
		p.listen(v)
		if v.DeletionTimestamp != nil {
			continue
		}
		s := slot{v.Spec.Service.UID, v.Spec.Pool, familyOf(a)}
		if _, twice := p.have[s]; !twice {
			p.have[s] = v // a second one is of a moment with two leaders; no claim is for it, so it goes
		}
	}
}

// claims are the Services' demands, the oldest first.
func (p *planner) claims() []claim {
	services := slices.Clone(p.state.Services)
	slices.SortFunc(services, func(a, b *corev1.Service) int { return older(a, b) })
	var all []claim
	for _, s := range services {
		if !ours(s) {
			continue
		}
		selector, err := poolSelector(s)
		switch {
		case err != nil:
			p.tell(s, ReasonInvalidSelector, fmt.Sprintf("annotation %s: %v", v1alpha1.VIPPoolSelector, err))
			// Its addresses stay until the selector is valid.
			for _, f := range families(s) {
				for _, pool := range p.order {
					if p.have[slot{s.UID, pool.object.Name, f}] != nil {
						all = append(all, claim{service: s, pool: pool, family: f})
					}
				}
			}
			continue
		case selector == nil:
			p.tell(s, ReasonNoPoolSelector, "set annotation "+v1alpha1.VIPPoolSelector+" to labels of the NodePools that shall have an address, such as key1=val1,key2=val2")
			continue
		}
		none := true
		for _, pool := range p.order {
			if !pool.serves() || !selector.Matches(pool.labels()) {
				continue
			}
			none = false
			explicit, err := asked(s, pool.object.Name)
			if err != nil {
				p.tell(s, ReasonInvalidAddress, fmt.Sprintf("annotation %s%s: %v", v1alpha1.VIPAddressPrefix, pool.object.Name, err))
			}
			for _, f := range families(s) {
				if err != nil && p.have[slot{s.UID, pool.object.Name, f}] == nil {
					continue // no address is better than one that was not asked for
				}
				all = append(all, claim{s, pool, f, explicit[f]})
			}
		}
		if none {
			p.tell(s, ReasonNoPool, fmt.Sprintf("no NodePool of type Edge has the labels %s", selector))
		}
	}
	return all
}

// keep takes out the claims that are met already and brings their objects up to date.
func (p *planner) keep(claims []claim) []claim {
	var rest []claim
	for _, c := range claims {
		v := p.have[slot{c.service.UID, c.pool.object.Name, c.family}]
		if v == nil {
			rest = append(rest, c)
			continue
		}
		p.kept[v.Name] = true
		if c.explicit.IsValid() && v.Spec.Address != c.explicit.String() {
			rest = append(rest, c) // it keeps its address until it gets the one it asks for
			continue
		}
		p.hold(c, v)
	}
	return rest
}

// hold updates an object that stays.
func (p *planner) hold(c claim, old *v1alpha1.VirtualIP) {
	v := old.DeepCopy()
	p.describe(c, v)
	// In the spec, since a status does not come down to the nodes. Once true it stays: a holder
	// that is gone is replaced by the quickest node.
	v.Spec.Elected = v.Spec.Elected || old.Status.Holder != ""
	p.number(c, v)
	if !reflect.DeepEqual(v.Spec, old.Spec) || !maps.Equal(v.Labels, old.Labels) || !slices.Equal(v.Finalizers, old.Finalizers) {
		p.plan.Update = append(p.plan.Update, v)
	}
	p.held[c.service.UID] = append(p.held[c.service.UID], v)
	if a, err := netip.ParseAddr(v.Spec.Address); err == nil {
		if bad := p.protects(a); bad != nil { // since it was given away; the nodes refuse to claim it
			p.tell(c.service, bad.reason, bad.message+"; ask for another address")
		}
		if first := p.owners[lanAddress{p.lans.of(v.Spec.Network), a}]; first != v.Name {
			p.tell(c.service, ReasonAddressInUse, fmt.Sprintf("%s is VirtualIP %s's on the same LAN, %s", a, first, p.lans.why(v.Spec.Network)))
		}
	}
	p.mark(v, c.pool)
}

// mark sets the allocator's own conditions.
func (p *planner) mark(v *v1alpha1.VirtualIP, pool *pool) {
	m := v.DeepCopy()
	changed := setCondition(&m.Status.Conditions, p.now, metav1.Condition{
		Type: v1alpha1.VIPConditionAllocated, Status: metav1.ConditionTrue, Reason: ReasonAllocated,
		Message: fmt.Sprintf("Service %s/%s has the address in pool %s", v.Spec.Service.Namespace, v.Spec.Service.Name, v.Spec.Pool),
	})
	out := metav1.Condition{Type: v1alpha1.VIPConditionOutOfRange, Status: metav1.ConditionFalse, Reason: "InRange", Message: "the pool's addresses have it"}
	if a, err := netip.ParseAddr(v.Spec.Address); err == nil && !v.Spec.AddedToPool && !pool.all.contains(a) {
		out.Status, out.Reason = metav1.ConditionTrue, "PoolShrunk"
		out.Message = "the pool's addresses don't have it any more; the Service keeps it until it goes or asks for another"
	}
	changed = setCondition(&m.Status.Conditions, p.now, out) || changed
	if len(m.Status.Nodes) == 0 { // the nodes' reports have more detail
		silent := metav1.Condition{Type: v1alpha1.VIPConditionAnnounced, Status: metav1.ConditionFalse, Reason: "NoReport",
			Message: "no node holds the address: none of the pool's has reported yet"}
		if len(pool.nodes) == 0 {
			silent.Reason, silent.Message = "NoNodes", "no node holds the address: pool "+v.Spec.Pool+" has no nodes: no Node has its label, "+v1alpha1.NodePoolLabel+"="+v.Spec.Pool+", or fits its nodeSelector; kubectl label node NODE "+v1alpha1.NodePoolLabel+"="+v.Spec.Pool+", or correct the nodeSelector"
		}
		changed = setCondition(&m.Status.Conditions, p.now, silent) || changed
	}
	if changed {
		p.plan.Mark = append(p.plan.Mark, m)
	}
}

// allocate meets a claim that is new, or returns why not.
func (p *planner) allocate(c claim) {
	address, added, bad := p.choose(c)
	old := p.have[slot{c.service.UID, c.pool.object.Name, c.family}]
	vrid, shares := int32(0), ""
	if bad == nil {
		if vrid, shares = p.newNumber(c); vrid == 0 {
			bad = p.numbersExhausted(c)
		}
	}
	if bad != nil {
		p.tell(c.service, bad.reason, bad.message)
		if bad.reason == ReasonExhausted || bad.reason == ReasonVRIDsExhausted {
			p.waiting[at{c.pool.object.Name, c.family}]++
		}
		if old != nil { // it keeps its old one
			p.hold(c, old)
		}
		return
	}
	if old != nil {
		p.kept[old.Name] = false
	}
	network := c.pool.object.Spec.Network
	v := &v1alpha1.VirtualIP{Spec: v1alpha1.VirtualIPSpec{
		Address: address.String(), Pool: c.pool.object.Name, Network: network, VRID: vrid, SharesElectionOf: shares, AddedToPool: added,
		Service: v1alpha1.VirtualIPService{Namespace: c.service.Namespace, Name: c.service.Name, UID: c.service.UID},
	}}
	v.Name = v1alpha1.VirtualIPName(address, network)
	p.describe(c, v)
	p.taken[v.Name] = v
	p.kept[v.Name] = true
	if shares == "" {
		p.vridsOf(network, c.family)[vrid] = v.Name
	}
	p.owners[lanAddress{p.lans.of(network), address}] = v.Name
	p.held[c.service.UID] = append(p.held[c.service.UID], v)
	c.pool.used++
	if !c.explicit.IsValid() {
		p.cursor[at{c.pool.object.Name, c.family}] = address
	}
	p.plan.Create = append(p.plan.Create, v)
}

// choose finds the address for a claim; added reports that the pool's ranges don't have it.
func (p *planner) choose(c claim) (a netip.Addr, added bool, bad *problem) {
	pool := c.pool
	if a = c.explicit; a.IsValid() {
		name := v1alpha1.VirtualIPName(a, pool.object.Spec.Network)
		if v := p.taken[name]; v != nil {
			return a, false, &problem{ReasonAddressInUse, fmt.Sprintf("%s belongs to Service %s/%s in pool %s%s", a, v.Spec.Service.Namespace, v.Spec.Service.Name, v.Spec.Pool,
				map[bool]string{true: ", and is being released"}[v.DeletionTimestamp != nil])}
		}
		if bad := p.protects(a); bad != nil {
			return a, false, bad
		}
		if first, ok := p.owners[lanAddress{p.lans.of(pool.object.Spec.Network), a}]; ok {
			return a, false, &problem{ReasonAddressInUse, fmt.Sprintf("%s is VirtualIP %s's on the same LAN", a, first)}
		}
		for _, other := range p.order {
			if other != pool && p.lans.same(other.object.Spec.Network, pool.object.Spec.Network) && other.usable.contains(a) {
				return a, false, &problem{ReasonAddressOfPool, fmt.Sprintf("%s is in the addresses of pool %s on the same network", a, other.object.Name)}
			}
		}
		added = !pool.all.contains(a)
		if added && !pool.object.Spec.AllowRequested {
			return a, false, &problem{ReasonOutsidePool, fmt.Sprintf("%s is not in the addresses of pool %s, which does not have allowRequested", a, pool.object.Name)}
		}
		return a, added, nil
	}
	free := p.free(pool, c.family)
	if len(free) == 0 {
		return a, false, &problem{ReasonExhausted, fmt.Sprintf("pool %s has no free %s address", pool.object.Name, c.family)}
	}
	k := at{pool.object.Name, c.family}
	switch pool.object.Spec.Allocation {
	case v1alpha1.AllocateLowest:
		a = free[0].from
	case v1alpha1.AllocateRandom:
		a = free.at(free.count().below(p.random))
	default:
		a = free.after(p.last(k, pool))
	}
	return a, false, nil
}

// release deletes objects without a claim, and frees those that their nodes have dropped.
func (p *planner) release() {
	exists := func(node string) bool { return p.nodes[node] }
	for _, v := range p.state.VIPs {
		if v.DeletionTimestamp == nil {
			if !p.kept[v.Name] {
				p.plan.Delete = append(p.plan.Delete, v.DeepCopy())
			}
			continue
		}
		if !slices.Contains(v.Finalizers, v1alpha1.VirtualIPFinalizer) {
			continue
		}
		due := v.DeletionTimestamp.Add(p.policy.Quarantine)
		if !confirmed(v, exists) && p.now.Before(due) {
			p.next(due)
			continue
		}
		f := v.DeepCopy()
		f.Finalizers = slices.DeleteFunc(f.Finalizers, func(s string) bool { return s == v1alpha1.VirtualIPFinalizer })
		p.plan.Free = append(p.plan.Free, f)
	}
}
