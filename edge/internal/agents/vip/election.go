package vip

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/acd"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/keepalived"
)

// separate keeps roles that can't be served side by side from spoiling each other: of two with one
// address, or with one number on an interface, the older is served.
func separate(roles []Role) {
	type election struct {
		iface string
		four  bool
		vrid  uint8
	}
	byAge := make([]*Role, len(roles))
	for i := range roles {
		byAge[i] = &roles[i]
	}
	slices.SortStableFunc(byAge, func(a, b *Role) int {
		at, bt := a.VIP.CreationTimestamp, b.VIP.CreationTimestamp
		return cmp.Or(at.Compare(bt.Time), cmp.Compare(a.VIP.Name, b.VIP.Name))
	})
	addresses, elections := map[netip.Addr]string{}, map[election]string{}
	for _, r := range byAge {
		if r.Fault != "" {
			continue
		}
		at := election{r.Instance.Interface, r.Instance.Address.Is4(), r.Instance.VRID}
		if other, taken := addresses[r.Instance.Address]; taken {
			r.fail(fmt.Sprintf("VirtualIP %s has the address already on this node: their networks are one LAN", other))
			continue
		}
		if other, taken := elections[at]; taken && r.VIP.Spec.SharesElectionOf == "" {
			r.fail(fmt.Sprintf("VirtualIP %s has number %d already on interface %s: their networks are one LAN", other, at.vrid, at.iface))
			continue
		}
		addresses[r.Instance.Address] = r.VIP.Name
		if r.VIP.Spec.SharesElectionOf == "" {
			elections[at] = r.VIP.Name
		}
	}
}

// fail takes a role out, with the reason.
func (r *Role) fail(why string) { r.Fault, r.Ready = why, false }

// share makes addresses that share the election of another follow it.
func share(roles []Role) {
	for i := range roles {
		r := &roles[i]
		of := r.VIP.Spec.SharesElectionOf
		if of == "" || r.Fault != "" {
			continue
		}
		j := slices.IndexFunc(roles, func(o Role) bool { return o.VIP.Name == of && o.VIP.Spec.SharesElectionOf == "" })
		switch {
		case j < 0:
			r.fail(fmt.Sprintf("the address shares the election of VirtualIP %.80q, which this node does not know", of))
		case roles[j].Fault != "":
			r.fail(fmt.Sprintf("the address shares the election of VirtualIP %.80q, in which this node can't take part", of))
		case roles[j].Instance.Interface != r.Instance.Interface || roles[j].Instance.Address.Is4() != r.Instance.Address.Is4():
			r.fail(fmt.Sprintf("the address shares the election of VirtualIP %.80q, which is on another network", of))
		default:
			r.Ready = r.Ready && roles[j].Ready
		}
	}
}

// election returns the name of the instance that elects the holder of a role's address.
func (r Role) election() string {
	if of := r.VIP.Spec.SharesElectionOf; of != "" {
		return instanceName(of)
	}
	return r.Instance.Name
}

// holding returns the node's holding for a role with an election of its own.
func (r Role) holding() holding {
	return holding{r.Instance.Name, r.Instance.Interface, r.Instance.Address.Is6(), r.Instance.VRID, r.Ready}
}

// clear reports whether there is no obstacle to holding the address together with others of its
// election.
func (r Role) clear() bool {
	return r.Fault == "" && r.Duplicate == "" && r.Unasked == "" && !r.Waiting
}

// instances are the elections of roles that have no fault, each with the addresses that follow it.
func instances(roles []Role) []keepalived.Instance {
	var out []keepalived.Instance
	for _, r := range roles {
		if r.Fault != "" || r.VIP.Spec.SharesElectionOf != "" {
			continue
		}
		i := r.Instance
		for _, o := range roles {
			if o.VIP.Spec.SharesElectionOf == r.VIP.Name && o.clear() {
				i.More = append(i.More, o.Instance.Address)
			}
		}
		out = append(out, i)
	}
	return out
}

// unicast returns the peers for a node's advertisements: the other nodes of the pool. Until all
// have reported their addresses, all use multicast. A node that reports the address of another one
// is no further peer.
func unicast(node string, v *v1alpha1.VirtualIP, own netip.Addr) keepalived.Unicast {
	if !v.Spec.Unicast {
		return keepalived.Unicast{}
	}
	u := keepalived.Unicast{Source: own}
	for _, n := range v.Spec.Nodes {
		a, err := netip.ParseAddr(n.Address)
		if err != nil || a.Is4() != own.Is4() {
			return keepalived.Unicast{}
		}
		if n.Name != node && a != own && !slices.Contains(u.Peers, a) {
			u.Peers = append(u.Peers, a)
		}
	}
	return u
}

// others finds routers that speak VRRP, are no nodes of any pool here, and advertise the address or
// use its number. Until all nodes of the address have reported their interfaces, no router is taken
// for a stranger.
func others(f Facts, v *v1alpha1.VirtualIP, i keepalived.Instance) (stranger, foreign string) {
	if slices.ContainsFunc(v.Spec.Nodes, func(n v1alpha1.VirtualIPNode) bool { return n.Name != f.Node && n.HardwareAddress == "" }) {
		return "", ""
	}
	for _, a := range f.Adverts {
		if a.Interface != i.Interface || a.IPv6 == i.Address.Is4() || a.Priority == 0 || ofPool(f, a) {
			continue
		}
		switch {
		case a.Names(i.Address):
			stranger = a.From.String()
		case a.VRID == i.VRID:
			foreign = a.Source.WithZone("").String()
		}
	}
	return stranger, foreign
}

// ofPool reports whether a node of one of the pools here sent an advertisement.
func ofPool(f Facts, a acd.Advert) bool {
	from := a.From.String()
	return slices.ContainsFunc(f.VIPs, func(v *v1alpha1.VirtualIP) bool {
		return slices.ContainsFunc(v.Spec.Nodes, func(n v1alpha1.VirtualIPNode) bool { return n.HardwareAddress == from })
	})
}
