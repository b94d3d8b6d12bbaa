package route

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/kernel/netroute"
	"github.com/skerry-io/skerry/edge/internal/object"
)

// recordOf is what is kept of one StaticRoute over restarts.
type recordOf struct {
	UID   types.UID                `json:"uid"`
	Entry v1alpha1.StaticRouteNode `json:"entry"` // as last reported, or about to be
	Told  bool                     `json:"told"`  // it is in the outbox
	Boot  string                   `json:"boot"`
	// Trying: the route is being set and nobody has seen yet whether the cloud still answers.
	Trying           bool   `json:"trying,omitempty"`
	TryingGeneration int64  `json:"tryingGeneration,omitempty"`
	Proven           string `json:"proven,omitempty"` // the route that did no harm
	// Strikes is how often the route cut the node off, as StruckGeneration of its object had it, and Struck how that showed.
	Strikes          int    `json:"strikes,omitempty"`
	StruckGeneration int64  `json:"struckGeneration,omitempty"`
	Struck           string `json:"struck,omitempty"`

	again time.Time // of the next try of a route that was taken back
	retry time.Time // when to look at it again; zero: when something happens
	saved []byte    // as it is on the disk
}

// common is what is kept besides the records. Its key can't be an object's name.
type common struct {
	NodeUID types.UID    `json:"nodeUID,omitempty"`
	Clouds  []netip.Addr `json:"clouds,omitempty"`
}

const (
	commonKey    = "."
	reportAgain  = time.Minute
	reportsAtOne = 64 // reports on their way into the outbox: one sync of the disk serves them
)

func (a *Agent) load() error {
	all, err := a.config.State.Load()
	if err != nil {
		return fmt.Errorf("reading what was kept of routes: %w", err)
	}
	for name, raw := range all {
		if name == commonKey {
			var c common
			if json.Unmarshal(raw, &c) == nil { // unreadable: it will be learnt again
				a.nodeUID, a.clouds = c.NodeUID, c.Clouds
			}
			continue
		}
		r := &recordOf{saved: raw}
		if json.Unmarshal(raw, r) != nil {
			r = &recordOf{saved: raw}
		}
		if r.Trying {
			r.Trying, r.Struck = false, "edgecore ended while it was watching what becomes of the node"
			if r.StruckGeneration != r.TryingGeneration {
				r.Strikes = 0
			}
			r.Strikes, r.StruckGeneration = r.Strikes+1, r.TryingGeneration
		}
		a.records[name] = r
		if r.Told {
			a.status.set(name, r.Entry)
		}
	}
	return nil
}

func (a *Agent) saveCommon(ctx context.Context) error {
	raw, err := json.Marshal(common{a.nodeUID, a.clouds})
	if err != nil {
		return fmt.Errorf("writing: %w", err)
	}
	return a.config.State.Save(ctx, map[string][]byte{commonKey: raw})
}

// save writes the records of those names that are not on the disk as they are.
func (a *Agent) save(ctx context.Context, names map[string]struct{}) error {
	changes := map[string][]byte{}
	for name := range names {
		r := a.records[name]
		if r == nil {
			continue
		}
		raw, err := json.Marshal(r)
		if err != nil {
			return fmt.Errorf("writing the record of %s: %w", name, err)
		}
		if !bytes.Equal(raw, r.saved) {
			changes[name] = raw
		}
	}
	if len(changes) == 0 {
		return nil
	}
	if err := a.config.State.Save(ctx, changes); err != nil {
		return fmt.Errorf("keeping what became of routes: %w", err)
	}
	for name, raw := range changes {
		a.records[name].saved = raw
	}
	return nil
}

func (a *Agent) saveAll(ctx context.Context) {
	all := make(map[string]struct{}, len(a.records))
	for name := range a.records {
		all[name] = struct{}{}
	}
	if err := a.save(ctx, all); err != nil {
		klog.FromContext(ctx).Error(err, "What became of routes could not be written down")
	}
}

func (a *Agent) record(name string) *recordOf {
	r := a.records[name]
	if r == nil {
		r = &recordOf{}
		if c := a.claims[name]; c != nil {
			r.UID = c.uid
		}
		a.records[name] = r
	}
	return r
}

// trying writes down which routes are about to be set.
func (a *Agent) trying(ctx context.Context, all []change, on bool) error {
	names := map[string]struct{}{}
	for _, c := range all {
		r := a.record(c.owner)
		r.Trying, r.TryingGeneration = on, a.claims[c.owner].generation
		names[c.owner] = struct{}{}
	}
	err := a.save(ctx, names)
	if err != nil {
		for name := range names {
			a.records[name].Trying = false
		}
	}
	return err
}

// proved notes how a try ended; tell writes it down.
func (a *Agent) proved(c change, well bool) {
	r := a.record(c.owner)
	r.Trying = false
	if well {
		r.Proven, r.Strikes, r.Struck = routeText(c.route), 0, ""
	}
	a.dirty[c.owner] = struct{}{}
}

// proven reports whether this very route has been watched before.
func (a *Agent) proven(c change) bool {
	r := a.records[c.owner]
	return r != nil && r.UID == a.claims[c.owner].uid && r.Proven == routeText(c.route)
}

func routeText(r netroute.Route) string {
	raw, err := json.Marshal(resolved(r))
	if err != nil {
		return ""
	}
	return string(raw)
}

// driftedBefore reports whether the route of a StaticRoute that wants reports only was gone already when this process started, in this boot of the device.
func (a *Agent) driftedBefore(c *claim) bool {
	r := a.records[c.name]
	return r != nil && !c.repair && r.UID == c.uid && r.Boot == a.config.BootID && r.Entry.Reason == v1alpha1.RouteDrifted && r.Entry.ObservedGeneration == c.generation
}

// repaired tells of a repair.
func (a *Agent) repaired(ctx context.Context, c change, s *slot) {
	r := a.record(c.owner)
	r.Entry.Repairs++
	r.Told = false
	a.dirty[c.owner] = struct{}{}
	a.metrics.repairs.Inc()
	klog.FromContext(ctx).Info("Route put back: somebody else had changed or removed it", "staticRoute", c.owner, "route", c.key, "times", s.drift.count)
	if s.drift.count == 1 {
		a.event(c.owner, corev1.EventTypeNormal, "Repaired", "%s was put back: somebody else had changed or removed it", c.key)
	}
	if s.drift.count == manyRepairs {
		a.event(c.owner, corev1.EventTypeWarning, v1alpha1.RouteDegraded, "something else is changing %s: it was put back %d times in a short while", c.key, s.drift.count)
	}
}

func (a *Agent) event(name, kind, reason, format string, args ...any) {
	if a.tools.Events == nil {
		return
	}
	// Of the node, not of the StaticRoute: nodes report events of themselves and of their pods only.
	ref := &corev1.ObjectReference{Kind: "Node", Name: a.config.NodeName, UID: types.UID(a.config.NodeName)}
	a.tools.Events.Eventf(ref, kind, "StaticRoute"+reason, "StaticRoute %s: %s", name, fmt.Sprintf(format, args...))
}

// tell brings the entries of these StaticRoutes up to date, on the disk first and then in the outbox.
func (a *Agent) tell(ctx context.Context, names map[string]struct{}) error {
	gone := map[string][]byte{}
	report := map[string]struct{}{}
	for name := range names {
		c := a.claims[name]
		if c == nil || c.deleting || !a.selected(c) {
			if a.leave(ctx, name, c) {
				gone[name] = nil
			}
			continue
		}
		if a.compose(name, c) {
			report[name] = struct{}{}
		}
	}
	if len(gone) > 0 {
		if err := a.config.State.Save(ctx, gone); err != nil {
			return fmt.Errorf("forgetting routes: %w", err)
		}
	}
	if err := a.save(ctx, names); err != nil {
		return err
	}
	return a.report(ctx, report)
}

// leave deals with a StaticRoute that is not, or no longer, for this node, and reports whether its record can go.
func (a *Agent) leave(ctx context.Context, name string, c *claim) bool {
	r := a.records[name]
	if r == nil {
		return false
	}
	if st := r.Entry.State; st != nil {
		if p, err := netip.ParsePrefix(st.Subnet); err == nil {
			s := a.slots[netroute.NewKey(uint32(st.Table), p, uint32(st.Metric))]
			if s != nil && s.ours != nil && s.owner == name {
				if s.bad != nil {
					r.Entry.Reason, r.Entry.Message, r.Told = s.bad.reason, s.bad.message, false
					r.retry = time.Now().Add(reportAgain)
				}
				return false // it is still there
			}
		}
	}
	if c != nil { // of an object that is gone nobody wants to hear
		if err := a.config.Reporter.Report(ctx, a.ref(name), c.uid, []byte("null")); err != nil {
			klog.FromContext(ctx).Error(err, "Could not report that a route is gone; it will be tried again", "staticRoute", name)
			r.retry = time.Now().Add(reportAgain)
			return false
		}
	}
	delete(a.records, name)
	a.status.remove(name)
	return true
}

// compose writes the entry of a StaticRoute anew, and reports whether it must be told.
func (a *Agent) compose(name string, c *claim) bool {
	e := v1alpha1.StaticRouteNode{Name: a.config.NodeName, ObservedGeneration: c.generation}
	bad, state, ok := a.outcome(c)
	if !ok {
		return false // under way
	}
	r := a.record(name)
	if r.UID != c.uid {
		*r = recordOf{UID: c.uid, saved: r.saved}
	}
	e.Repairs, e.LastChange, e.State = r.Entry.Repairs, r.Entry.LastChange, state
	e.Reason, e.Message = bad.reason, bad.message
	before := r.Entry
	if e.LastChange == nil || before.Reason != e.Reason || !sameState(before.State, e.State) {
		now := metav1.NewTime(time.Now().Truncate(time.Second))
		e.LastChange = &now
		if r.Entry.Reason != e.Reason && !fine(e.Reason) && e.Reason != v1alpha1.RouteRolledBack && e.Reason != v1alpha1.RouteDegraded {
			a.event(name, corev1.EventTypeWarning, e.Reason, "%s", e.Message)
		}
	}
	if r.Told && r.Boot == a.config.BootID && sameEntry(before, e) {
		return false
	}
	r.Told = r.Told && sameEntry(before, e)
	r.Entry, r.Boot = e, a.config.BootID
	a.status.set(name, e)
	return !r.Told
}

func fine(reason string) bool {
	return reason == v1alpha1.RouteApplied || reason == v1alpha1.RouteDryRun
}

func sameState(x, y *v1alpha1.ResolvedRoute) bool {
	xs, xerr := json.Marshal(x)
	ys, yerr := json.Marshal(y)
	return xerr == nil && yerr == nil && bytes.Equal(xs, ys)
}

func sameEntry(x, y v1alpha1.StaticRouteNode) bool {
	xs, xerr := json.Marshal(x)
	ys, yerr := json.Marshal(y)
	return xerr == nil && yerr == nil && bytes.Equal(xs, ys)
}

// outcome is how it is with a StaticRoute that is for this node; ok is false while that isn't known yet.
func (a *Agent) outcome(c *claim) (v verdict, state *v1alpha1.ResolvedRoute, ok bool) {
	if c.invalid != "" {
		return verdict{v1alpha1.RouteInvalid, c.invalid}, nil, true
	}
	if c.dryRun {
		return a.rehearse(c)
	}
	all := a.byKey[c.route.Key]
	s := a.slots[c.route.Key]
	if len(all) == 0 || s == nil {
		return verdict{}, nil, false
	}
	if all[0] != c {
		return *judge(v1alpha1.RouteConflict, "StaticRoute %s, which is older, wants the same table, subnet and metric", all[0].name), nil, true
	}
	if s.ours != nil {
		state = resolved(s.ours.Route)
	}
	switch {
	case s.bad != nil:
		return *s.bad, state, true
	case s.wished && s.ours != nil && s.ours.Satisfies(s.want):
		return verdict{reason: v1alpha1.RouteApplied}, state, true
	}
	return verdict{}, nil, false
}

// rehearse is what would become of a StaticRoute with dryRun.
func (a *Agent) rehearse(c *claim) (verdict, *v1alpha1.ResolvedRoute, bool) {
	want, bad := a.facts.resolve(c)
	if bad != nil {
		return *bad, nil, true
	}
	if all := a.byKey[c.route.Key]; len(all) > 0 && all[0].before(c) < 0 {
		return *judge(v1alpha1.RouteConflict, "StaticRoute %s, which is older, wants the same table, subnet and metric", all[0].name), nil, true
	}
	if f := a.standing[c.route.Key]; len(f) > 0 && !c.adopt {
		return *judge(v1alpha1.RouteConflict, "a route that Skerry didn't make (protocol %d, via %s) has the same table, subnet and metric", f[0].Protocol,
			gateways(f[0].Hops)), nil, true
	}
	for _, h := range want.Hops {
		if _, on := a.facts.linkOf(h.Gateway); h.Gateway.IsValid() && !h.OnLink && !on && !h.Gateway.IsLinkLocalUnicast() {
			return *judge(v1alpha1.RouteGatewayUnreachable, "gateway %s is on no network of this node's interfaces", h.Gateway), nil, true
		}
	}
	return verdict{v1alpha1.RouteDryRun, "the route would be set"}, resolved(want), true
}

func (a *Agent) ref(name string) object.Ref {
	return object.Ref{Resource: v1alpha1.Resource(v1alpha1.StaticRoutes), Name: name}
}

// report puts entries into the outbox.
func (a *Agent) report(ctx context.Context, names map[string]struct{}) error {
	if len(names) == 0 {
		return nil
	}
	failed := make(chan string, len(names))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(reportsAtOne)
	for name := range names {
		r := a.records[name]
		body, err := json.Marshal(r.Entry)
		if err != nil {
			return fmt.Errorf("writing the report of %s: %w", name, err)
		}
		ref, uid := a.ref(name), r.UID
		g.Go(func() error {
			err := a.config.Reporter.Report(gctx, ref, uid, body)
			if err != nil && !errors.Is(err, context.Canceled) {
				klog.FromContext(ctx).Error(err, "Could not report how a route is; it will be tried again", "staticRoute", name)
			}
			if err != nil {
				failed <- name
			}
			return nil
		})
	}
	_ = g.Wait() // each failure is in the channel
	close(failed)
	again := map[string]struct{}{}
	for name := range failed {
		again[name] = struct{}{}
		a.records[name].retry = time.Now().Add(reportAgain)
	}
	for name := range names {
		if _, no := again[name]; !no {
			a.records[name].Told = true
		}
	}
	return a.save(ctx, names)
}
