package route

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netroute"
)

// keyState is one key of the kernel: its StaticRoutes, the kernel's routes, and the result of the
// last attempt to change it. A reading of the kernel or a change of the objects sets the first
// half, plan the second.
type keyState struct {
	claims  []*claim // the winner first
	ours    *netroute.Found
	foreign []netroute.Found

	want    netroute.Route // last wanted
	wanted  bool           // want is set
	wrote   time.Time      // of a change whose effect has not been read back yet; zero: no such change
	settled bool           // the kernel has had want, so another process is the cause of its absence
	last    netroute.Found // its state then
	links   uint64         // the state of its links then; see facts.linkState
	drift   drift
	bad     *rejection // why it is not as wanted; nil: it is, or it is under way
	owner   string     // the StaticRoute that holds the key
	version int64      // its generation then
}

// change is one thing to do in the kernel.
type change struct {
	key     netroute.Key
	owner   string // the StaticRoute; "" for a removal
	route   netroute.Route
	remove  bool
	before  *netroute.Found  // the current route to remove: ours, or the first foreign one
	foreign []netroute.Found // that are adopted
	repair  bool
	trusted bool // it is a repair, or it was watched before, and did no harm then
}

// decision is the plan of one pass, and the input of apply.
type decision struct {
	next           map[netroute.Key]keyState // the states of the planned keys
	sets, removals []change                  // in the order of their keys
	linked         bool                      // there is a link
	gateways       []netroute.Hop            // of this node's default routes
}

func (d *decision) isEmpty() bool { return len(d.sets)+len(d.removals) == 0 }

func routeText(r netroute.Route) string {
	text := ""
	if r.Type != netroute.Unicast {
		text = strings.ToLower(string(resolved(r).Type)) + " "
	}
	text += r.Prefix.String()
	hop := func(h netroute.Hop) (s string) {
		if h.Gateway.IsValid() {
			s += " via " + h.Gateway.String()
		}
		if h.Interface != "" {
			s += " dev " + h.Interface
		}
		if len(r.Hops) > 1 {
			s += fmt.Sprint(" weight ", max(h.Weight, 1))
		}
		if h.OnLink {
			s += " onlink"
		}
		return s
	}
	for _, h := range r.Hops {
		if len(r.Hops) > 1 {
			text += " nexthop"
		}
		text += hop(h)
	}
	text += fmt.Sprintf(" table %d metric %d", r.Table, r.Metric)
	if r.Source.IsValid() {
		text += " src " + r.Source.String()
	}
	if r.MTU > 0 {
		text += fmt.Sprint(" mtu ", r.MTU)
	}
	return text + " proto skerry"
}

// input is the input of plan in addition to the key's own state.
type input struct {
	now   time.Time
	facts *facts
	pause time.Duration // after the first repair of a route
	// held gives the reason a StaticRoute's route must stay away for now, whatever else holds; nil:
	// it need not.
	held func(*claim) *rejection
	// drifted reports whether an earlier process found that the route was changed, and was not to
	// put it back.
	drifted func(*claim) bool
	// proven reports whether a route of this text was watched before, and did no harm.
	proven func(owner *claim, text string) bool
}

// plan returns the changes for one key, and the state after them. It has no side effects.
func (s keyState) plan(in input, key netroute.Key) (next keyState, todo []change) {
	if len(s.claims) == 0 {
		s.wanted, s.settled, s.bad, s.wrote, s.drift = false, false, nil, time.Time{}, drift{}
		return s, s.removal(key)
	}
	c := s.claims[0]
	if s.owner != c.name {
		s.owner, s.settled, s.drift = c.name, s.settled && s.owner != "", drift{}
	}
	want, lost, bad := in.facts.resolve(c)
	if bad == nil {
		bad = in.held(c)
	}
	if bad == nil && len(s.foreign) > 0 && !c.adopt && (s.ours == nil || !s.ours.Satisfies(want)) {
		bad = reject(v1alpha1.RouteConflict, "%s; remove it, choose another metric, or set onConflict: Adopt", foreign(s.foreign[0]))
	}
	if bad != nil {
		s.bad, s.settled, s.wanted, s.wrote, s.drift = bad, false, true, time.Time{}, drift{}
		if bad.reason == v1alpha1.RouteInterfaceDown ||
			bad.reason == v1alpha1.RouteRolledBack && s.ours != nil && !s.ours.Satisfies(want) { // the previous one
			return s, nil
		}
		return s, s.removal(key)
	}
	return s.planWanted(in, key, want, lost)
}

func (s keyState) removal(key netroute.Key) []change {
	if s.ours == nil {
		return nil
	}
	return []change{{key: key, route: s.ours.Route, remove: true}}
}

// planWanted is plan for a route that can be set.
func (s keyState) planWanted(in input, key netroute.Key, want netroute.Route, lost string) (next keyState, todo []change) {
	c := s.claims[0]
	changed := !s.wanted || !sameRoute(s.want, want) || s.version != c.generation
	if changed {
		s.settled = false
	}
	s.want, s.wanted, s.version = want, true, c.generation
	s.drift.settle(in.now)
	switch {
	case s.ours != nil && s.ours.Satisfies(want) && (len(s.foreign) == 0 || !c.adopt):
		s.wrote, s.settled, s.last, s.links = time.Time{}, true, *s.ours, in.facts.linkState(*s.ours)
		s.bad = s.health(in.facts, lost)
		return s, nil
	case !s.wrote.IsZero() && !changed:
		return s, nil // the kernel's own word on the last change is under way
	}
	write := change{key: key, owner: c.name, route: want, before: s.ours, foreign: s.foreign}
	if s.ours == nil && len(s.foreign) > 0 {
		write.before = &s.foreign[0]
	}
	if !changed && s.tampered(in.facts) || in.drifted(c) {
		if !c.repair {
			s.bad = reject(v1alpha1.RouteDrifted, "another process changed or removed this route, and driftPolicy is Report")
			return s, nil
		}
		if in.now.Before(s.drift.due()) {
			return s, nil // unchanged failure
		}
		s.drift.repaired(in.now, in.pause)
		write.repair = true
	}
	return s, []change{write}
}

// health returns the problem of a route that is in the kernel as desired.
func (s keyState) health(f *facts, lost string) *rejection {
	switch {
	case s.ours.Dead:
		return reject(v1alpha1.RouteInterfaceDown, "the kernel has the route, but its interface has no carrier")
	case s.drift.degraded():
		return reject(v1alpha1.RouteDegraded, "something else is changing this route: it was put back %d times in a short while, "+
			"and will be, ever more slowly", s.drift.count)
	case lost != "":
		c := s.claims[0]
		return reject(v1alpha1.RouteDegraded, "the route leads over %d of %d next hops: %s", len(s.want.Hops), len(c.route.Hops), lost)
	}
	return f.stranded(*s.ours)
}

// tampered reports whether a route that was there is not, or is another, and no change of an
// interface explains it.
func (s keyState) tampered(f *facts) bool {
	return s.settled && (s.ours != nil || s.links == f.linkState(s.last))
}

// due returns when the key must be processed without an event: for the next repair, or to drop its
// drift.
func (s *keyState) due() time.Time {
	switch {
	case s.drift.count == 0:
		return time.Time{}
	case s.settled && s.wrote.IsZero() && (s.ours == nil || !s.ours.Satisfies(s.want)):
		return s.drift.due()
	}
	return s.drift.last.Add(quiet)
}

func sameRoute(x, y netroute.Route) bool {
	f := netroute.Found{Route: x}
	g := netroute.Found{Route: y}
	return f.Satisfies(y) && g.Satisfies(x)
}

// plan decides about these keys. A route that moves to another key is set there before it is
// removed here: it exists twice for a moment, and is never missing.
func plan(in input, keys map[netroute.Key]keyState) decision {
	d := decision{next: make(map[netroute.Key]keyState, len(keys))}
	for key, s := range keys {
		next, todo := s.plan(in, key)
		d.next[key] = next
		for _, c := range todo {
			if c.remove {
				d.removals = append(d.removals, c)
				continue
			}
			c.trusted = c.repair || in.proven(next.claims[0], routeText(c.route))
			d.sets = append(d.sets, c)
		}
	}
	order := func(x, y change) int { return compareKeys(x.key, y.key) }
	slices.SortFunc(d.sets, order)
	slices.SortFunc(d.removals, order)
	return d
}

func compareKeys(x, y netroute.Key) int {
	switch {
	case x.Table != y.Table:
		return int(int64(x.Table) - int64(y.Table))
	case x.Prefix != y.Prefix:
		return x.Prefix.Compare(y.Prefix)
	}
	return int(int64(x.Metric) - int64(y.Metric))
}
