package route

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/core/agent"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netroute"
)

// run is one run of the agent; the goroutine of its Sync owns it. A new run begins empty: all of it
// can be read again.
type run struct {
	config  *Config
	kit     *agent.Run
	objects *agent.Objects[*v1alpha1.StaticRoute]
	nodes   *agent.Objects[*corev1.Node]
	ranges  *agent.Objects[*networkingv1.ServiceCIDR]
	events  events
	safety  safety
	metrics *metrics
	status  *statusBox

	records  *records
	claims   map[string]*claim
	keys     keys
	view     kernelView
	node     *corev1.Node // nil: not known yet
	link     linkstate.State
	resolved uint64              // the session in which the names of cloudcore were looked up
	dirty    map[string]struct{} // StaticRoutes to look at
	all      bool                // everything is dirty
	checkAt  time.Time           // of the next full check
	proveAt  time.Time           // of the next look at routes that were never watched
}

func (r *run) labels() labels.Set { return r.node.Labels }

// selected reports whether a route is for this node. While the members of the route's pool are
// unknown, nodes that have the route keep it and no other sets it.
func (r *run) selected(c *claim) bool {
	if c.unresolved {
		return r.records.known(c)
	}
	return c.selects(r.labels())
}

// readChanges reads the changes since the last call.
func (r *run) readChanges(now time.Time) {
	for name := range r.objects.Changed() {
		r.dirty[name] = struct{}{}
		o, there := r.objects.Get(name)
		if !there {
			delete(r.claims, name)
			continue
		}
		c := read(o)
		if old := r.claims[name]; c.unresolved && !c.deleting && old != nil && old.uid == c.uid {
			continue // unchanged, until the members of its new pool are known
		}
		r.claims[name] = c
	}
	if n, there := r.nodes.Get(r.config.NodeName); there { // a node that was deleted in the cloud keeps its last state
		r.readNode(n)
	}
	if len(r.ranges.Changed()) > 0 || r.ranges.Synced() && len(r.records.Services) == 0 {
		if all := serviceRanges(r.ranges.List()); len(all) > 0 && !slices.Equal(all, r.records.Services) {
			r.records.Services, r.all = all, true
		}
	}
	r.readLink(now)
	list, started, lost := r.events.take()
	if started {
		r.view.scannedAt = time.Time{} // whatever happened before is unknown
	}
	if started || lost {
		r.view.rescan(now)
	}
	for _, e := range list {
		r.view.onKernelEvent(e, &r.keys)
	}
	if !now.Before(r.checkAt) {
		r.all = true
		r.view.rescan(now)
		r.checkAt = now.Add(r.config.FullCheck*9/10 + rand.N(r.config.FullCheck/5+1))
	}
}

// readNode processes the node's object. Another one of the same name means that the cloud has lost
// the reports.
func (r *run) readNode(n *corev1.Node) {
	if r.node == nil || !maps.Equal(r.node.Labels, n.Labels) || !slices.Equal(r.node.Spec.PodCIDRs, n.Spec.PodCIDRs) {
		r.all = true
	}
	r.node = n
	if r.records.NodeUID == n.UID {
		return
	}
	if r.records.NodeUID != "" {
		for name, one := range r.records.all {
			one.Reported = false
			r.dirty[name] = struct{}{}
		}
		r.kit.Reports.Repeat()
	}
	r.records.NodeUID = n.UID
}

// readLink processes the state of the link. A new link is the time to retry postponed routes.
func (r *run) readLink(now time.Time) {
	was := r.link
	r.link = r.kit.Link()
	if !r.link.Up || was.Up && was.Link.Epoch == r.link.Link.Epoch {
		return
	}
	if at, err := netip.ParseAddrPort(r.link.Link.Remote); err == nil && r.records.linkedTo(at.Addr().Unmap()) {
		r.all = true
	}
	for _, name := range r.records.linkOpened() {
		r.dirty[name] = struct{}{}
	}
	r.proveAt = now
}

func serviceRanges(all []*networkingv1.ServiceCIDR) (ranges []netip.Prefix) {
	for _, o := range all {
		for _, text := range o.Spec.CIDRs {
			if p, err := netip.ParsePrefix(text); err == nil {
				ranges = append(ranges, p)
			}
		}
	}
	slices.SortFunc(ranges, netip.Prefix.Compare)
	return ranges
}

// missing names the state that is still unknown and needed before acting.
func (r *run) missing(watching bool) string {
	switch {
	case !watching:
		return "the kernel's routes are not known yet"
	case r.node == nil:
		return "the cloud has not sent this Node yet"
	case !r.ranges.Synced() && len(r.records.Services) == 0:
		return "the ranges of Services are not known yet"
	}
	return ""
}

// markAllDirty marks all StaticRoutes as dirty, if the view requires it.
func (r *run) markAllDirty() {
	if r.view.changed {
		r.all, r.view.changed = true, false
	}
	if !r.all {
		return
	}
	for name := range r.claims {
		r.dirty[name] = struct{}{}
	}
	for name := range r.records.all {
		r.dirty[name] = struct{}{}
	}
	for key := range r.keys.all {
		r.keys.touch(key)
	}
}

// needsProbe reports whether a StaticRoute needs a probe that was not part of the last reading.
func (r *run) needsProbe() bool {
	for name := range r.dirty {
		c := r.claims[name]
		if c == nil || c.invalid != "" {
			continue
		}
		if _, ok := r.view.probed[c.probe]; c.probe.IsValid() && !ok {
			return true
		}
		if c.dryRun && !r.all {
			return true
		}
	}
	return false
}

// assignKey adds a StaticRoute to the competitors for its key, or removes it.
func (r *run) assignKey(name string) {
	c := r.claims[name]
	if c != nil && (!r.selected(c) || c.deleting || c.dryRun || c.invalid != "") {
		c = nil
	}
	for _, other := range r.keys.place(name, c) {
		r.dirty[other] = struct{}{}
	}
}

// guards returns the current networks that must not be covered.
func (r *run) guards() guards {
	all := standard()
	for _, p := range r.config.Protected {
		all.add(p, "which edgecore.yaml protects")
	}
	for _, ip := range slices.Concat(r.config.Cloud, r.records.Clouds) {
		all.host(ip, "the address of cloudcore")
	}
	for _, name := range slices.Sorted(maps.Keys(r.view.facts.links)) {
		for _, p := range r.view.facts.links[name].Addresses {
			all.host(p.Addr(), "this node's own address on "+name)
		}
	}
	now := gatewaysOf(r.view.gateways)
	if len(now) > 0 {
		r.records.Gateways = now
	}
	for _, ip := range r.records.Gateways { // the last known ones: a device without a default route has lost its way, not its gateway
		all.host(ip, "this node's gateway")
	}
	for _, text := range r.node.Spec.PodCIDRs {
		if p, err := netip.ParsePrefix(text); err == nil {
			all.add(p, "the range of this node's pods")
		}
	}
	for _, p := range r.records.Services {
		all.add(p, "a range of Services")
	}
	if r.config.Surroundings != nil {
		s := r.config.Surroundings()
		if len(s.Resolvers) > 0 {
			r.records.Resolvers = s.Resolvers
		}
		for _, p := range s.Pods {
			all.add(p, "a range that this node's CNI plugin gives to pods")
		}
	}
	for _, ip := range r.records.Resolvers {
		all.host(ip, "the DNS server that finds cloudcore")
	}
	return all
}

func gatewaysOf(hops []netroute.Hop) (all []netip.Addr) {
	for _, h := range hops {
		if h.Gateway.IsValid() && !slices.Contains(all, h.Gateway) {
			all = append(all, h.Gateway)
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all
}
