package vip

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/cloud/internal/controllers/vip/vrid"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// entries are the addresses as they are written, those that were added for Services last.
func (p *planner) entries(o *v1alpha1.NodePool) []string {
	var own, added []string
	for _, text := range slices.Concat(o.Spec.Addresses, o.Spec.AddressesOfProposal) {
		if a, err := netip.ParseAddr(text); err == nil && p.added(o.Name, a) {
			added = append(added, text)
		} else {
			own = append(own, text)
		}
	}
	return append(own, added...)
}

// added reports whether an address is in a pool's list because a Service asked for it.
func (p *planner) added(pool string, a netip.Addr) bool {
	return slices.ContainsFunc(p.state.VIPs, func(v *v1alpha1.VirtualIP) bool {
		return v.Spec.AddedToPool && v.Spec.Pool == pool && v.Spec.Address == a.String()
	})
}

// readPools reads the ranges, the oldest pool first: it keeps addresses that a younger one has too.
// An invalid entry does not spoil the others.
func (p *planner) readPools() {
	objects := slices.Clone(p.state.Pools)
	slices.SortFunc(objects, func(a, b *v1alpha1.NodePool) int { return older(a, b) })
	for _, o := range objects {
		x := &pool{object: o}
		var err error
		if x.nodes, err = nodesOf(o, p.state.Nodes); err != nil {
			x.invalid = append(x.invalid, fmt.Sprintf("nodeSelector: %v", err))
		}
		var all, usable []span
		for _, text := range p.entries(o) {
			s, err := parseSpan(text)
			if err != nil {
				x.invalid = append(x.invalid, err.Error())
				continue
			}
			if s.from == s.to && p.added(o.Name, s.from) && union(all...).contains(s.from) {
				continue // it was added for a Service, and a range around it was written later
			}
			if i := slices.IndexFunc(all, s.overlaps); i >= 0 {
				x.invalid = append(x.invalid, fmt.Sprintf("%s overlaps %s", text, all[i]))
				continue
			}
			all = append(all, s)
			if other, in := p.overlapped(o, s); other != nil {
				x.overlap = append(x.overlap, fmt.Sprintf("%s overlaps %s of pool %s", text, in, other.object.Name))
				continue
			}
			usable = append(usable, s)
		}
		x.all, x.usable = union(all...), union(usable...)
		p.pools[o.Name] = x
		p.order = append(p.order, x)
	}
}

// overlapped finds the older pool on the same network that has a part of a range.
func (p *planner) overlapped(o *v1alpha1.NodePool, s span) (*pool, span) {
	for _, other := range p.order {
		if !p.lans.same(other.object.Spec.Network, o.Spec.Network) {
			continue
		}
		for _, in := range other.usable {
			if s.overlaps(in) {
				return other, in
			}
		}
	}
	return nil, span{}
}

// fillPools keeps addresses that were asked for in their pool's list, and takes them out with
// their VirtualIP.
func (p *planner) fillPools() {
	add, drop := map[string][]netip.Addr{}, map[string][]netip.Addr{}
	freed := map[string]bool{}
	for _, v := range p.plan.Free {
		freed[v.Name] = true
	}
	for name, v := range p.taken {
		a, err := netip.ParseAddr(v.Spec.Address)
		if err != nil || !v.Spec.AddedToPool {
			continue
		}
		if freed[name] {
			drop[v.Spec.Pool] = append(drop[v.Spec.Pool], a)
		} else if x := p.pools[v.Spec.Pool]; x != nil && !x.all.contains(a) {
			add[v.Spec.Pool] = append(add[v.Spec.Pool], a)
		}
	}
	for _, x := range p.order {
		name := x.object.Name
		if len(add[name])+len(drop[name]) == 0 || x.object.DeletionTimestamp != nil {
			continue
		}
		o := x.object.DeepCopy()
		o.Spec.Addresses = slices.DeleteFunc(o.Spec.Addresses, func(text string) bool {
			a, err := netip.ParseAddr(strings.TrimSpace(text))
			return err == nil && slices.Contains(drop[name], a)
		})
		slices.SortFunc(add[name], netip.Addr.Compare)
		for _, a := range add[name] {
			o.Spec.Addresses = append(o.Spec.Addresses, a.String())
		}
		if !slices.Equal(o.Spec.Addresses, x.object.Spec.Addresses) {
			p.plan.Pools = append(p.plan.Pools, o)
		}
	}
}

// poolStatus reports the state of the pools' addresses.
func (p *planner) poolStatus() {
	for _, x := range p.order {
		o := x.object.DeepCopy()
		s := &o.Status
		s.ObservedGeneration = o.Generation
		s.Used, s.Nodes = x.used, int32(len(x.nodes))
		s.Free = union(slices.Concat(p.free(x, corev1.IPv4Protocol), p.free(x, corev1.IPv6Protocol))...).size()
		if !x.serves() {
			s.Free = 0
		}
		s.LastAllocated = nil
		var waiting []string
		for _, f := range []family{corev1.IPv4Protocol, corev1.IPv6Protocol} {
			k := at{o.Name, f}
			if a := p.last(k, x); a.IsValid() {
				s.LastAllocated = append(s.LastAllocated, a.String())
			}
			if n := p.waiting[k]; n > 0 {
				waiting = append(waiting, fmt.Sprintf("%d for %s", n, f))
			}
		}
		p.poolCondition(s, v1alpha1.PoolAddressesValid, len(x.invalid) == 0, "Valid", "InvalidAddresses", x.invalid)
		p.poolCondition(s, v1alpha1.PoolOverlap, len(x.overlap) > 0, "Overlap", "NoOverlap", x.overlap)
		s.ForeignVRIDs = vrid.List(p.heard[p.lans.of(o.Spec.Network)])
		var shared []string
		if why := p.lans.why(o.Spec.Network); why != "" {
			shared = []string{why + "; give these pools one network"}
		}
		p.poolCondition(s, v1alpha1.PoolSharedNetwork, len(shared) > 0, "SameInterface", "NotShared", shared)
		p.poolCondition(s, v1alpha1.PoolExhausted, len(waiting) > 0, "ServicesWait", "NobodyWaits", waiting)
		if !equalPoolStatus(&x.object.Status, s) {
			p.plan.PoolStatus = append(p.plan.PoolStatus, o)
		}
	}
}

func (p *planner) poolCondition(s *v1alpha1.NodePoolStatus, kind string, is bool, yes, no string, words []string) {
	c := metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: no, ObservedGeneration: s.ObservedGeneration}
	if is {
		c.Status, c.Reason = metav1.ConditionTrue, yes
	}
	switch {
	case len(words) == 0:
	case kind == v1alpha1.PoolExhausted:
		c.Message = "Services wait: " + strings.Join(words, ", ")
	default:
		c.Message = short(strings.Join(words, "; "))
	}
	setCondition(&s.Conditions, p.now, c)
}

func equalPoolStatus(a, b *v1alpha1.NodePoolStatus) bool {
	return a.ObservedGeneration == b.ObservedGeneration && a.Used == b.Used && a.Free == b.Free && a.Nodes == b.Nodes && slices.EqualFunc(a.ForeignVRIDs, b.ForeignVRIDs, vrid.Equal) &&
		slices.Equal(a.LastAllocated, b.LastAllocated) && slices.Equal(a.Conditions, b.Conditions)
}

// last is the address after which RoundRobin continues.
func (p *planner) last(k at, pool *pool) netip.Addr {
	if a, ok := p.cursor[k]; ok {
		return a
	}
	for _, text := range pool.object.Status.LastAllocated {
		if a, err := netip.ParseAddr(text); err == nil && familyOf(a) == k.family {
			return a
		}
	}
	return netip.Addr{}
}

// free lists the addresses of a family that a pool can give away.
func (p *planner) free(pool *pool, f family) spans {
	var gone []span
	for _, v := range p.taken {
		if !p.lans.same(v.Spec.Network, pool.object.Spec.Network) {
			continue
		}
		if a, err := netip.ParseAddr(v.Spec.Address); err == nil && familyOf(a) == f {
			gone = append(gone, one(a))
		}
	}
	for a := range p.nodeIPs {
		gone = append(gone, one(a))
	}
	for _, prefix := range p.lans.prefixes(pool.object.Spec.Network) {
		gone = append(gone, noHosts(prefix)...)
	}
	return pool.usable.of(f).without(union(gone...)).without(p.protectedSpans.of(f))
}
