package route

import (
	"context"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/kernel/netroute"
)

// change is one thing to do in the kernel.
type change struct {
	key     netroute.Key
	owner   string // the StaticRoute; "" for a route that goes
	route   netroute.Route
	before  *netroute.Found  // what is there now and goes: ours, or the first foreign one
	foreign []netroute.Found // that are adopted
	repair  bool
}

// pass compares what is wished with what is there, for whatever is dirty, and acts.
func (a *Agent) pass(ctx context.Context) error {
	if !a.watching {
		return nil
	}
	now := time.Now()
	if !a.scanAt.IsZero() && !now.Before(a.scanAt) {
		if err := a.scan(ctx); err != nil {
			return err
		}
	}
	if a.missing() != nil || a.scanned.IsZero() {
		return nil
	}
	a.overdue(now)
	if a.all {
		for name := range a.claims {
			a.dirty[name] = struct{}{}
		}
		for name := range a.records {
			a.dirty[name] = struct{}{}
		}
		for key := range a.slots {
			a.touched[key] = struct{}{}
		}
	}
	if len(a.dirty) == 0 && len(a.touched) == 0 {
		return nil
	}
	if a.unprobed() {
		if err := a.scan(ctx); err != nil {
			return err
		}
	}
	for name := range a.dirty {
		a.place(name)
	}
	if err := a.lookAtLinks(ctx); err != nil {
		return err
	}
	a.facts.guards = a.guards()
	writes, removals := a.decide(now)
	a.all = false
	if len(writes)+len(removals) > 0 {
		defer a.metrics.applied(now)
		a.write(ctx, writes)
		a.remove(ctx, removals)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	names := a.dirty
	for key := range a.touched {
		for _, c := range a.byKey[key] {
			names[c.name] = struct{}{}
		}
		if s := a.slots[key]; s != nil {
			if s.owner != "" {
				names[s.owner] = struct{}{}
			}
			a.keep(key, s)
		}
	}
	clear(a.touched)
	a.dirty = map[string]struct{}{}
	return a.tell(ctx, names)
}

// overdue marks the slots for which it is time.
func (a *Agent) overdue(now time.Time) {
	for key := range a.timed {
		s := a.slots[key]
		if !s.wrote.IsZero() && now.Sub(s.wrote) >= a.config.ConfirmAfter {
			s.wrote = time.Time{}
			a.rescan(now)
			a.touched[key] = struct{}{}
		}
		if due := s.due(); !due.IsZero() && !now.Before(due) {
			a.touched[key] = struct{}{}
		}
	}
	for name, r := range a.records {
		if !r.retry.IsZero() && !now.Before(r.retry) {
			r.retry = time.Time{}
			a.dirty[name] = struct{}{}
			if c := a.placed[name]; c != nil {
				a.touched[c.route.Key] = struct{}{}
			}
		}
	}
}

// due is when the story of drift wants attention: for the next repair, or to be forgotten.
func (s *slot) due() time.Time {
	switch {
	case s.drift.count == 0:
		return time.Time{}
	case s.settled && s.wrote.IsZero() && (s.ours == nil || !s.ours.Satisfies(s.want)):
		return s.drift.due()
	}
	return s.drift.last.Add(quiet)
}

// keep drops a slot that nothing is to be remembered of, and notes whether anything is due for it.
func (a *Agent) keep(key netroute.Key, s *slot) {
	if !s.wrote.IsZero() || s.drift.count > 0 {
		a.timed[key] = struct{}{}
	} else {
		delete(a.timed, key)
	}
	if s.ours == nil && len(a.byKey[key]) == 0 {
		delete(a.slots, key)
		delete(a.timed, key)
	}
}

// place puts a StaticRoute among those that compete for its key, and takes it from where it was.
func (a *Agent) place(name string) {
	c := a.claims[name]
	competes := c != nil && a.selected(c) && !c.deleting && !c.dryRun && c.invalid == ""
	if was := a.placed[name]; was != nil {
		if was == c && competes {
			a.touched[c.route.Key] = struct{}{}
			return
		}
		key := was.route.Key
		a.byKey[key] = slices.DeleteFunc(slices.Clone(a.byKey[key]), func(x *claim) bool { return x == was })
		if len(a.byKey[key]) == 0 {
			delete(a.byKey, key)
		}
		delete(a.placed, name)
		a.touched[key] = struct{}{}
		for _, other := range a.byKey[key] {
			a.dirty[other.name] = struct{}{}
		}
	}
	if !competes {
		return
	}
	key := c.route.Key
	if a.slots[key] == nil {
		a.slots[key] = &slot{} // whether somebody else's route has the key, the kernel says when ours is added
	}
	all := append(slices.Clone(a.byKey[key]), c)
	slices.SortFunc(all, (*claim).before)
	a.byKey[key], a.placed[name] = all, c
	a.touched[key] = struct{}{}
}

// lookAtLinks reads the interfaces once more if a route has vanished: the kernel drops routes with their interfaces, and may have told of the route first.
func (a *Agent) lookAtLinks(ctx context.Context) error {
	for key := range a.touched {
		if s := a.slots[key]; s != nil && s.settled && s.ours == nil {
			return a.readLinks(ctx)
		}
	}
	return nil
}

// decide says what is to be done for the keys that were touched.
func (a *Agent) decide(now time.Time) (writes, removals []change) {
	for key := range a.touched {
		s := a.slots[key]
		if s == nil {
			continue
		}
		var winner *claim
		if all := a.byKey[key]; len(all) > 0 {
			winner = all[0]
		}
		if winner == nil {
			s.wished, s.settled, s.bad, s.wrote, s.drift = false, false, nil, time.Time{}, drift{}
			if s.ours != nil {
				removals = append(removals, change{key: key, route: s.ours.Route})
			}
			continue
		}
		if s.owner != winner.name {
			s.owner, s.settled, s.drift = winner.name, s.settled && s.owner != "", drift{}
		}
		w, r := a.decideWinner(now, key, s, winner)
		writes, removals = append(writes, w...), append(removals, r...)
	}
	order := func(x, y change) int { return compareKeys(x.key, y.key) }
	slices.SortFunc(writes, order)
	slices.SortFunc(removals, order)
	return writes, removals
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

func (a *Agent) decideWinner(now time.Time, key netroute.Key, s *slot, c *claim) (writes, removals []change) {
	want, bad := a.facts.resolve(c)
	if bad == nil {
		bad = a.rolledBack(now, c)
	}
	if bad == nil && len(s.foreign) > 0 && !c.adopt && (s.ours == nil || !s.ours.Satisfies(want)) {
		bad = judge(v1alpha1.RouteConflict, "a route that Skerry didn't make (protocol %d, via %s) has the same table, subnet and metric; "+
			"remove it, choose another metric, or set onConflict: Adopt", s.foreign[0].Protocol, gateways(s.foreign[0].Hops))
	}
	if bad != nil {
		s.bad, s.settled, s.wished, s.wrote, s.drift = bad, false, true, time.Time{}, drift{}
		stays := bad.reason == v1alpha1.RouteInterfaceDown ||
			bad.reason == v1alpha1.RouteRolledBack && s.ours != nil && !s.ours.Satisfies(want) // the one that was there before
		if s.ours != nil && !stays {
			removals = []change{{key: key, route: s.ours.Route}}
		}
		return nil, removals
	}
	changed := !s.wished || !sameRoute(s.want, want) || s.version != c.generation
	if changed {
		s.settled = false
	}
	s.want, s.wished, s.version = want, true, c.generation
	s.drift.settle(now)
	switch {
	case s.ours != nil && s.ours.Satisfies(want) && (len(s.foreign) == 0 || !c.adopt):
		s.bad, s.wrote, s.settled, s.last, s.links = nil, time.Time{}, true, *s.ours, a.linkState(*s.ours)
		if s.ours.Dead {
			s.bad = judge(v1alpha1.RouteInterfaceDown, "the kernel has the route, but its interface has no carrier")
		} else if s.drift.degraded() {
			s.bad = judge(v1alpha1.RouteDegraded, "something else is changing this route: it was put back %d times in a short while, and will be, ever more slowly",
				s.drift.count)
		}
		return nil, nil
	case !s.wrote.IsZero() && !changed:
		return nil, nil // the kernel's own word on the last change is under way
	}
	write := change{key: key, owner: c.name, route: want, before: s.ours, foreign: s.foreign}
	if s.ours == nil && len(s.foreign) > 0 {
		write.before = &s.foreign[0]
	}
	if !changed && a.tampered(s) || a.driftedBefore(c) {
		if !c.repair {
			s.bad = judge(v1alpha1.RouteDrifted, "somebody else changed or removed this route, and driftPolicy is Report")
			return nil, nil
		}
		if now.Before(s.drift.due()) {
			return nil, nil // as bad as it was
		}
		s.drift.repaired(now)
		write.repair = true
	}
	return []change{write}, nil
}

// tampered reports whether a route that was there is not, or is another, and no change of an interface explains it.
func (a *Agent) tampered(s *slot) bool {
	return s.settled && (s.ours != nil || s.links == a.linkState(s.last))
}

func sameRoute(x, y netroute.Route) bool {
	f := netroute.Found{Route: x}
	g := netroute.Found{Route: y}
	return f.Satisfies(y) && g.Satisfies(x)
}

// write makes and replaces routes, watched over by the safety net.
func (a *Agent) write(ctx context.Context, all []change) {
	if len(all) == 0 {
		return
	}
	// A route that is put back has been there before, and did no harm.
	watched := slices.DeleteFunc(slices.Clone(all), func(c change) bool { return c.repair || a.proven(c) })
	plain := slices.DeleteFunc(slices.Clone(all), func(c change) bool { return !c.repair && !a.proven(c) })
	for _, c := range plain {
		a.do(ctx, c)
	}
	if len(watched) > 0 {
		a.writeWatched(ctx, watched)
	}
}

// do makes one change, and reports whether the kernel took it.
func (a *Agent) do(ctx context.Context, c change) bool {
	s := a.slots[c.key]
	var err error
	if c.before == nil {
		err = a.tools.Kernel.Add(ctx, c.route)
	} else {
		err = a.tools.Kernel.Replace(ctx, c.route)
		for i := range c.foreign {
			if err == nil && &c.foreign[i] != c.before {
				err = a.tools.Kernel.DeleteForeign(ctx, c.foreign[i])
			}
		}
		if len(c.foreign) > 0 {
			a.rescan(time.Now())
		}
	}
	log := klog.FromContext(ctx).WithValues("staticRoute", c.owner, "route", c.key)
	if err == nil {
		s.bad, s.wrote = nil, time.Now()
		a.timed[c.key] = struct{}{}
		if c.repair {
			a.repaired(ctx, c, s)
		} else {
			log.V(1).Info("Route set", "via", gateways(c.route.Hops))
		}
		return true
	}
	bad := a.facts.refused(c.route, err)
	if bad.reason == v1alpha1.RouteConflict {
		s.wrote = time.Now() // somebody was quicker: who, the next reading tells
		a.timed[c.key] = struct{}{}
		a.rescan(time.Now())
		return false
	}
	if s.bad == nil || *s.bad != *bad {
		log.Info("Route could not be set", "reason", bad.reason, "err", err)
	}
	s.bad, s.settled, s.wrote = bad, false, time.Time{}
	if s.ours != nil {
		a.remove(ctx, []change{{key: c.key, route: s.ours.Route}})
	}
	return false
}

// remove takes routes of ours away.
func (a *Agent) remove(ctx context.Context, all []change) {
	for _, c := range all {
		s := a.slots[c.key]
		if err := a.tools.Kernel.Delete(ctx, c.route); err != nil {
			klog.FromContext(ctx).Error(err, "Route could not be removed", "route", c.key)
			s.bad = judge(v1alpha1.RouteRemoving, "the kernel does not let the route go: %v", err)
			continue
		}
		klog.FromContext(ctx).V(1).Info("Route removed", "route", c.key)
		s.ours = nil
	}
}
