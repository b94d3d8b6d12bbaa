// Package site sends devices the data of their site: the members of each Edge NodePool, the ranges
// of their pods, their last addresses, and the revoked certificates.
//
// It owns the topic Site, which has no object, and the annotation by which a device is offered a
// range for its pods (OfferAnnotation). It never writes for a device: a range becomes a Node's by
// the device's own write. An Index and Allocate are pure; a Sites serves every session of a replica
// and may be used by many goroutines; one Offers runs at a time, under a Lease.
package site

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/claim"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

const (
	// MaxDevices is how many devices a site may have: each speaks to each.
	MaxDevices = 64
	// maxAddresses is how many addresses of a device are sent: a Node's status is written by its
	// device, and may be wrong on purpose.
	maxAddresses = 8
	// maxRevoked bounds the single certificates that are sent as revoked. At the bound the rest is
	// not: the nodes themselves are banned by name.
	maxRevoked = 1024
)

// Device has the needed fields of a Node on which edgecore runs.
type Device struct {
	Name      string
	Labels    labels.Set
	PodCIDRs  []netip.Prefix
	Addresses []string // the LAN's first
	LANs      []netip.Prefix
	Offer     string // the range that it was offered
	Created   time.Time
}

// Ban describes a node's revoked certificates: those issued before Since, except those of Keys.
type Ban struct {
	Since time.Time
	Keys  []string
}

// Revocations are the cluster's.
type Revocations struct {
	Nodes        map[types.NodeName]Ban
	Fingerprints []string
}

// readDevice reads a Node. One without edgecore has no labels: its addresses and ranges count,
// it is no device.
func readDevice(o *kube.Object) (*Device, error) {
	d := &Device{Name: o.Name, Labels: o.Labels}
	n := &corev1.Node{}
	if err := kube.FromProtobuf(o.Raw, corev1.SchemeGroupVersion.WithKind("Node"), n); err != nil {
		return nil, err
	}
	for _, text := range n.Spec.PodCIDRs {
		if p, err := netip.ParsePrefix(text); err == nil {
			d.PodCIDRs = append(d.PodCIDRs, p.Masked())
		}
	}
	add := func(text string) {
		if a, err := netip.ParseAddr(strings.TrimSpace(text)); err == nil && len(d.Addresses) < maxAddresses && usable(a) && !slices.Contains(d.Addresses, a.String()) {
			d.Addresses = append(d.Addresses, a.String())
		}
	}
	for text := range strings.SplitSeq(n.Annotations[v1alpha1.LANAddressesAnnotation], ",") {
		if p, err := netip.ParsePrefix(strings.TrimSpace(text)); err == nil && len(d.LANs) < maxAddresses {
			d.LANs = append(d.LANs, p.Masked())
			add(p.Addr().String())
		}
	}
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			add(a.Address)
		}
	}
	if !v1alpha1.IsEdge(d.Labels) {
		d.Labels = nil
	} else if d.Labels == nil {
		d.Labels = labels.Set{}
	}
	d.Offer, d.Created = n.Annotations[v1alpha1.PodCIDROfferAnnotation], n.CreationTimestamp.Time
	return d, nil
}

func usable(a netip.Addr) bool {
	return a.IsGlobalUnicast() || a.Is6() && a.IsLinkLocalUnicast()
}

func sameDevice(a, b *Device) bool {
	return (a.Labels == nil) == (b.Labels == nil) && labels.Equals(a.Labels, b.Labels) && slices.Equal(a.PodCIDRs, b.PodCIDRs) &&
		slices.Equal(a.Addresses, b.Addresses) && slices.Equal(a.LANs, b.LANs) && a.Offer == b.Offer && a.Created.Equal(b.Created)
}

func readPool(o *kube.Object) (*v1alpha1.NodePool, error) {
	p := &v1alpha1.NodePool{}
	if err := json.Unmarshal(o.Raw, p); err != nil {
		return nil, fmt.Errorf("decoding it: %w", err)
	}
	if len(o.Status) > 0 {
		if err := json.Unmarshal(o.Status, &p.Status); err != nil {
			return nil, fmt.Errorf("decoding its status: %w", err)
		}
	}
	p.ResourceVersion = o.Revision
	return p, nil
}

func samePool(a, b *v1alpha1.NodePool) bool {
	return a.Generation == b.Generation && labels.Equals(a.Labels, b.Labels) && slices.Equal(a.Status.Conditions, b.Status.Conditions)
}

// Index has the members of each site, at one moment.
type Index struct {
	of map[string]*group // by node; nodes in no pool are missing
	by map[string]*Device

	reaches map[string][]string // the pools that a pool reaches

	ranges  map[string][]netip.Prefix // by node: those of its pods that count for others
	refused map[string][]string       // by pool: claims of its devices that don't, and why
}

type group struct {
	pool    *v1alpha1.NodePool
	devices []*Device // by name
}

// NewIndex sorts devices into Edge NodePools. A device that several pools take is in the oldest, so
// that a new pool moves no device.
func NewIndex(devices []*Device, pools []*v1alpha1.NodePool) *Index {
	x := &Index{of: map[string]*group{}, by: map[string]*Device{}, reaches: map[string][]string{}}
	for _, d := range devices {
		x.by[d.Name] = d
	}
	pools = slices.Clone(pools)
	slices.SortFunc(pools, func(a, b *v1alpha1.NodePool) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	for _, p := range pools {
		in, err := v1alpha1.PoolMembers{Pool: p.Name, NodeSelector: p.Spec.NodeSelector}.Selector()
		if err != nil || p.Spec.Type != v1alpha1.NodePoolEdge && p.Spec.Type != "" {
			continue
		}
		g := &group{pool: p}
		x.reaches[p.Name] = p.Spec.Reachable
		for _, d := range devices {
			if d.Labels != nil && x.of[d.Name] == nil && in(d.Labels) {
				x.of[d.Name] = g
				g.devices = append(g.devices, d)
			}
		}
		slices.SortFunc(g.devices, func(a, b *Device) int { return cmp.Compare(a.Name, b.Name) })
	}
	x.judge(devices)
	return x
}

// judge finds which ranges of pods count for others. A device writes its Node's podCIDR itself: it
// counts inside the podSubnets of its pool, and where no older device of the network has it.
func (x *Index) judge(devices []*Device) {
	x.ranges, x.refused = map[string][]netip.Prefix{}, map[string][]string{}
	all := slices.Clone(devices)
	slices.SortFunc(all, func(a, b *Device) int { return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name)) })
	owners := map[string][]owned{} // by network
	for _, d := range all {
		if d.Labels == nil { // no device: the cluster's own word
			for _, r := range d.PodCIDRs {
				if claim.OfNode(r, false, nil) == "" {
					x.ranges[d.Name] = append(x.ranges[d.Name], r)
					owners[""] = append(owners[""], owned{r, d.Name})
				}
			}
		}
	}
	for _, d := range all {
		g := x.of[d.Name]
		if g == nil {
			continue
		}
		subnets, network := claim.Prefixes(g.pool.Spec.PodSubnets), g.pool.Spec.Network
		for _, r := range d.PodCIDRs[:min(len(d.PodCIDRs), maxClaims)] {
			why := claim.Counts(r, subnets)
			for _, o := range slices.Concat(owners[""], owners[network]) {
				if why == "" && o.prefix.Overlaps(r) {
					why = "node " + o.node + " has " + o.prefix.String()
				}
			}
			if why != "" {
				x.refused[g.pool.Name] = append(x.refused[g.pool.Name], fmt.Sprintf("node %s claims %s for its pods: %s", d.Name, r, why))
				continue
			}
			x.ranges[d.Name] = append(x.ranges[d.Name], r)
			owners[network] = append(owners[network], owned{r, d.Name})
		}
	}
}

// owned is a range that counts, and whose it is.
type owned struct {
	prefix netip.Prefix
	node   string
}

// maxClaims is how many ranges of a device count: one of each family.
const maxClaims = 2

// Ranges are those of a node's pods that count for others.
func (x *Index) Ranges(node string) []netip.Prefix { return x.ranges[node] }

// sameSites reports whether every node is of the same site as in other, and every site
// reaches the same.
func (x *Index) sameSites(other *Index) bool {
	if other == nil || len(x.of) != len(other.of) || !maps.EqualFunc(x.reaches, other.reaches, slices.Equal) {
		return false
	}
	for node, g := range x.of {
		if was := other.of[node]; was == nil || was.pool.Name != g.pool.Name {
			return false
		}
	}
	return true
}

// Site is the site of one node. A node that is unknown, or in no pool, is a site of its own.
func (x *Index) Site(node string, revoked Revocations) *topicpb.Site {
	s := &topicpb.Site{PodNetwork: string(v1alpha1.PodNetworkAuto)}
	members := []*Device{{Name: node}}
	if d := x.by[node]; d != nil {
		members[0] = d
	}
	if g := x.of[node]; g != nil {
		s.Name, s.PodNetwork = g.pool.Name, cmp.Or(string(g.pool.Spec.PodNetwork), s.PodNetwork)
		s.PodSubnets = len(g.pool.Spec.PodSubnets) > 0 && g.pool.Spec.PodNetwork != v1alpha1.PodNetworkNone
		if s.TooMany = len(g.devices) > MaxDevices; !s.TooMany {
			members = g.devices
		}
	}
	for _, d := range members {
		m := &topicpb.SiteMember{Node: d.Name, Addresses: d.Addresses}
		for _, p := range x.ranges[d.Name] {
			m.PodCidrs = append(m.PodCidrs, p.String())
		}
		if b, listed := revoked.Nodes[types.NodeName(d.Name)]; listed {
			m.ValidFrom, m.Keys = b.Since.Unix(), b.Keys
		}
		s.Members = append(s.Members, m)
	}
	s.Revoked = slices.Sorted(slices.Values(revoked.Fingerprints))
	s.Revoked = s.Revoked[:min(len(s.Revoked), maxRevoked)]
	s.Digest = digest(s)
	return s
}

func digest(s *topicpb.Site) []byte {
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(s)
	if err != nil {
		return nil // sent once more, then
	}
	sum := sha256.Sum256(raw)
	return sum[:16]
}
