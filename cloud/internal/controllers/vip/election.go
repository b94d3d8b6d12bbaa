package vip

import (
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"time"

	"github.com/skerry-io/skerry/cloud/internal/controllers/vip/vrid"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

const (
	// lowVRIDs are given last: routers and examples of keepalived's manual have them.
	lowVRIDs = 63
	mostVRID = vrid.Most
)

func (p *planner) vridsOf(network string, f family) map[int32]string {
	k := lanFamily{p.lans.of(network), f}
	if p.vrids[k] == nil {
		p.vrids[k] = map[int32]string{}
	}
	return p.vrids[k]
}

// listen notes the nodes' reports of other routers with the number of a virtual IP.
func (p *planner) listen(v *v1alpha1.VirtualIP) {
	lan := p.lans.of(v.Spec.Network)
	if p.words[lan] == nil {
		p.words[lan] = vrid.Words{}
	}
	p.words[lan].Listen(v.Status.Nodes)
}

// hear determines for each LAN which numbers other routers use.
func (p *planner) hear() {
	before := map[string][]v1alpha1.ForeignVRID{}
	for _, x := range p.order {
		lan := p.lans.of(x.object.Spec.Network)
		before[lan] = append(before[lan], x.object.Status.ForeignVRIDs...)
	}
	for lan, known := range before {
		var again time.Time
		if p.heard[lan], again = vrid.Decide(p.now, known, p.words[lan]); !again.IsZero() {
			p.next(again)
		}
	}
}

func (p *planner) reserved(pool *pool, n int32) bool {
	if _, heard := p.heard[p.lans.of(pool.object.Spec.Network)][n]; heard || slices.Contains(p.policy.ReservedVRIDs, n) {
		return true
	}
	for _, other := range p.order {
		if p.lans.same(other.object.Spec.Network, pool.object.Spec.Network) && slices.Contains(other.object.Spec.ReservedVRIDs, n) {
			return true
		}
	}
	return false
}

// freeVRID is a number that is free, or 0. Each network begins at another one above lowVRIDs, by a
// hash: numbers of different LANs that touch by mistake are then likely to differ.
func (p *planner) freeVRID(pool *pool, f family) int32 {
	set := p.vridsOf(pool.object.Spec.Network, f)
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(pool.object.Spec.Network)) // never fails
	const high = mostVRID - lowVRIDs
	begin := int32(hash.Sum32() % high)
	for i := range int32(mostVRID) {
		n := lowVRIDs + 1 + (begin+i)%high
		if i >= high {
			n = mostVRID - i
		}
		if _, used := set[n]; !used && !p.reserved(pool, n) {
			return n
		}
	}
	return 0
}

// number gives an object that stays another VRID where its own is another's too, or not to be used.
// followElections serves one that shares the election of another.
func (p *planner) number(c claim, v *v1alpha1.VirtualIP) {
	set := p.vridsOf(v.Spec.Network, c.family)
	if v.Spec.SharesElectionOf != "" || set[v.Spec.VRID] == v.Name && !p.reserved(c.pool, v.Spec.VRID) {
		return
	}
	if n := p.freeVRID(c.pool, c.family); n != 0 {
		if set[v.Spec.VRID] == v.Name {
			delete(set, v.Spec.VRID)
		}
		v.Spec.VRID = n
		set[n] = v.Name
	}
}

// newNumber finds the VRID for a new address, or 0. Where all are taken it may share the election
// of an address that always has the same holder: one of the same pods in the same pool.
func (p *planner) newNumber(c claim) (number int32, shares string) {
	if n := p.freeVRID(c.pool, c.family); n != 0 {
		return n, ""
	}
	wanted := &v1alpha1.VirtualIP{Spec: v1alpha1.VirtualIPSpec{
		Pool: c.pool.object.Name, Network: c.pool.object.Spec.Network,
		Service: v1alpha1.VirtualIPService{Namespace: c.service.Namespace, Name: c.service.Name, UID: c.service.UID},
	}}
	p.describe(c, wanted)
	if v := p.electionFor(wanted, c.family); v != nil {
		return v.Spec.VRID, v.Name
	}
	return 0, ""
}

func (p *planner) numbersExhausted(c claim) *problem {
	return &problem{ReasonVRIDsExhausted, fmt.Sprintf("all numbers of VRRP for %s are taken on network %q, and no address there serves the same pods: "+
		"give the pools of other places networks of their own", c.family, c.pool.object.Spec.Network)}
}

// electionFor finds the oldest address whose holder can be that of another one too.
func (p *planner) electionFor(v *v1alpha1.VirtualIP, f family) *v1alpha1.VirtualIP {
	var best *v1alpha1.VirtualIP
	for _, held := range p.held {
		for _, o := range held {
			if o.Name != v.Name && o.Spec.SharesElectionOf == "" && familyOfVIP(o) == f && sameHolder(o, v) && (best == nil || older(o, best) < 0) {
				best = o
			}
		}
	}
	return best
}

// sameHolder reports whether two addresses are served by the same pods, so that a node that may
// hold the one may hold the other.
func sameHolder(a, b *v1alpha1.VirtualIP) bool {
	x, y := a.Spec, b.Spec
	return x.Pool == y.Pool && x.Service.Namespace == y.Service.Namespace && len(x.Selector) > 0 && maps.Equal(x.Selector, y.Selector) &&
		x.PublishNotReady == y.PublishNotReady && x.PreferredNode == y.PreferredNode && x.Interface == y.Interface
}

// followElections gives addresses that share an election the number of its owner, or another
// election where that one is not theirs any more.
func (p *planner) followElections() {
	all := slices.Concat(slices.Collect(maps.Values(p.held))...)
	slices.SortFunc(all, func(a, b *v1alpha1.VirtualIP) int { return older(a, b) })
	for _, v := range all {
		if v.Spec.SharesElectionOf == "" {
			continue
		}
		number, of := v.Spec.VRID, v.Spec.SharesElectionOf
		p.follow(v)
		if (v.Spec.VRID != number || v.Spec.SharesElectionOf != of) && !slices.Contains(p.plan.Update, v) {
			p.plan.Update = append(p.plan.Update, v)
		}
	}
}

func (p *planner) follow(v *v1alpha1.VirtualIP) {
	f := familyOfVIP(v)
	for _, held := range p.held {
		for _, o := range held {
			if o.Name == v.Spec.SharesElectionOf && o.Spec.SharesElectionOf == "" && sameHolder(o, v) {
				v.Spec.VRID = o.Spec.VRID
				return
			}
		}
	}
	if pool := p.pools[v.Spec.Pool]; pool != nil {
		if n := p.freeVRID(pool, f); n != 0 {
			v.Spec.VRID, v.Spec.SharesElectionOf = n, ""
			p.vridsOf(v.Spec.Network, f)[n] = v.Name
			return
		}
	}
	if o := p.electionFor(v, f); o != nil {
		v.Spec.VRID, v.Spec.SharesElectionOf = o.Spec.VRID, o.Name
	}
}
