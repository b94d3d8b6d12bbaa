package route

import (
	"bytes"
	"context"
	"encoding/json"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netroute"
)

// reportAgain is the delay before a failed report, or a failed removal of a route, is retried.
const reportAgain = time.Minute

func ref(name string) object.Ref {
	return object.Ref{Resource: v1alpha1.Resource(v1alpha1.StaticRoutes), Name: name}
}

// report brings the entries of these StaticRoutes up to date, on the disk first and then in the
// outbox.
func (r *run) report(ctx context.Context, names map[string]struct{}) error {
	var gone []string
	set := map[string]struct{}{}
	for name := range names {
		c := r.claims[name]
		if c == nil || c.deleting || !r.selected(c) {
			if r.leave(name, c) {
				gone = append(gone, name)
			}
			continue
		}
		if r.compose(name, c) {
			set[name] = struct{}{}
		}
	}
	if err := r.records.save(ctx, names); err != nil {
		return err
	}
	for name := range set {
		one := r.records.all[name]
		if err := r.kit.Reports.Set(ref(name), one.UID, one.Entry); err != nil {
			return err
		}
	}
	failed := r.kit.Reports.Flush(ctx)
	for name := range set {
		if one := r.records.all[name]; r.kit.Reports.Sent(ref(name)) {
			one.Reported = true
		}
	}
	var forget []string
	for _, name := range gone {
		if r.kit.Reports.Sent(ref(name)) {
			forget = append(forget, name)
			r.status.remove(name)
		} else {
			r.records.retryAt(name, time.Now().Add(reportAgain))
		}
	}
	if err := r.records.forget(ctx, forget); err != nil {
		return err
	}
	if err := r.records.save(ctx, set); err != nil {
		return err
	}
	return failed
}

// leave deals with a StaticRoute that is not, or no longer, for this node, and reports whether its
// record can go once that is reported.
func (r *run) leave(name string, c *claim) bool {
	one := r.records.all[name]
	if one == nil {
		return false
	}
	if s := r.keys.all[keyIn(one.Entry.State)]; s != nil && s.ours != nil && s.owner == name {
		if s.bad != nil {
			one.Entry.Reason, one.Entry.Message, one.Reported = s.bad.reason, s.bad.message, false
			r.records.retryAt(name, time.Now().Add(reportAgain))
		}
		return false // it is still there
	}
	if c == nil { // an object that is gone has no status
		r.kit.Reports.Drop(ref(name))
	} else {
		r.kit.Reports.Withdraw(ref(name), c.uid)
	}
	return true
}

// keyIn returns the key of a status's route; the zero key without a route.
func keyIn(st *v1alpha1.ResolvedRoute) netroute.Key {
	if st == nil {
		return netroute.Key{}
	}
	p, err := netip.ParsePrefix(st.Subnet)
	if err != nil {
		return netroute.Key{}
	}
	return netroute.NewKey(uint32(st.Table), p, uint32(st.Metric))
}

// compose makes the entry of a StaticRoute, and reports whether it has to be sent.
func (r *run) compose(name string, c *claim) bool {
	bad, state, known := r.outcome(c)
	if !known {
		return false // under way
	}
	one := r.records.of(c)
	before := one.Entry
	e := v1alpha1.StaticRouteNode{
		Name: r.config.NodeName, ObservedGeneration: c.generation, Reason: bad.reason, Message: bad.message, State: state,
		Repairs: before.Repairs, LastChange: before.LastChange,
	}
	if e.LastChange == nil || before.Reason != e.Reason || !same(before.State, e.State) {
		now := metav1.NewTime(time.Now().Truncate(time.Second))
		e.LastChange = &now
		if before.Reason != e.Reason && !fine(e.Reason) && e.Reason != v1alpha1.RouteRolledBack && e.Reason != v1alpha1.RouteDegraded {
			r.event(name, corev1.EventTypeWarning, e.Reason, "%s", e.Message)
		}
	}
	unchanged := same(before, e)
	if one.Reported && one.Boot == r.records.boot && unchanged {
		return false
	}
	one.Reported = one.Reported && unchanged
	one.Entry, one.Boot = e, r.records.boot
	r.status.set(name, e)
	return !one.Reported
}

func same(x, y any) bool {
	xs, xerr := json.Marshal(x)
	ys, yerr := json.Marshal(y)
	return xerr == nil && yerr == nil && bytes.Equal(xs, ys)
}

// outcome is the state of a StaticRoute that is for this node; known is false while it is under
// way.
func (r *run) outcome(c *claim) (v rejection, state *v1alpha1.ResolvedRoute, known bool) {
	if c.invalid != "" {
		return rejection{v1alpha1.RouteInvalid, c.invalid}, nil, true
	}
	if c.dryRun {
		return r.rehearse(c)
	}
	s := r.keys.all[c.route.Key]
	if s == nil || len(s.claims) == 0 {
		return v, nil, false
	}
	if s.claims[0] != c {
		return *c.beaten(s.claims[0]), nil, true
	}
	if s.ours != nil {
		state = resolved(s.ours.Route)
	}
	switch {
	case s.bad != nil:
		return *s.bad, state, true
	case s.wanted && s.ours != nil && s.ours.Satisfies(s.want):
		return rejection{reason: v1alpha1.RouteApplied}, state, true
	}
	return v, nil, false
}

// rehearse returns the result that a StaticRoute with dryRun would have.
func (r *run) rehearse(c *claim) (rejection, *v1alpha1.ResolvedRoute, bool) {
	f := &r.view.facts
	want, _, bad := f.resolve(c)
	if bad != nil {
		return *bad, nil, true
	}
	if s := r.keys.all[c.route.Key]; s != nil && len(s.claims) > 0 && s.claims[0].before(c) < 0 {
		return *c.beaten(s.claims[0]), nil, true
	}
	if others := f.standing[c.route.Key]; len(others) > 0 && !c.adopt {
		return *reject(v1alpha1.RouteConflict, "%s", foreign(others[0])), nil, true
	}
	for _, h := range want.Hops {
		if _, on := f.linkOf(h.Gateway); h.Gateway.IsValid() && !h.OnLink && !on && !h.Gateway.IsLinkLocalUnicast() {
			return *reject(v1alpha1.RouteGatewayUnreachable, "gateway %s is on no network of this node's interfaces", h.Gateway), nil, true
		}
	}
	return rejection{v1alpha1.RouteDryRun, "the route would be set"}, resolved(want), true
}
