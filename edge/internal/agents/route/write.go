package route

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// run is the writer of the safety net.
var _ writer = (*run)(nil)

// set makes one change, and reports whether the kernel took it.
func (r *run) set(ctx context.Context, c change) bool {
	s := r.keys.all[c.key]
	err := r.write(ctx, c)
	log := klog.FromContext(ctx).WithValues("staticRoute", c.owner, "route", c.key)
	if err == nil {
		s.bad, s.wrote = nil, time.Now()
		r.keys.timed[c.key] = struct{}{}
		if c.repair {
			r.repaired(ctx, c, s)
		} else {
			log.V(1).Info("Set route", "via", gateways(c.route.Hops))
		}
		return true
	}
	bad := r.view.facts.refused(c.route, err)
	if bad.reason == v1alpha1.RouteConflict {
		s.wrote = time.Now() // another process was quicker: the next reading finds which
		r.keys.timed[c.key] = struct{}{}
		r.view.rescan(time.Now())
		return false
	}
	if s.bad == nil || *s.bad != *bad {
		log.Info("Failed to set route", "reason", bad.reason, "err", err)
	}
	s.bad, s.settled, s.wrote = bad, false, time.Time{}
	if s.ours != nil {
		r.remove(ctx, change{key: c.key, route: s.ours.Route, remove: true})
	}
	return false
}

func (r *run) write(ctx context.Context, c change) error {
	if c.before == nil {
		return r.view.kernel.Add(ctx, c.route)
	}
	if len(c.foreign) > 0 {
		r.view.rescan(time.Now())
	}
	if err := r.view.kernel.Replace(ctx, c.route); err != nil {
		return err
	}
	for i := range c.foreign {
		if &c.foreign[i] != c.before {
			if err := r.view.kernel.DeleteForeign(ctx, c.foreign[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// remove takes a route of ours away.
func (r *run) remove(ctx context.Context, c change) {
	s := r.keys.all[c.key]
	log := klog.FromContext(ctx).WithValues("route", c.key)
	if err := r.view.kernel.Delete(ctx, c.route); err != nil {
		log.Error(err, "Failed to remove route: see the StaticRoute's status")
		s.bad = reject(v1alpha1.RouteRemoving, "the kernel does not let the route go: %v", err)
		return
	}
	log.V(1).Info("Removed route")
	s.ours = nil
}

// repaired notes a repair.
func (r *run) repaired(ctx context.Context, c change, s *keyState) {
	one := r.records.of(r.claims[c.owner])
	one.Entry.Repairs++
	one.Reported = false
	r.dirty[c.owner] = struct{}{}
	r.metrics.repairs.Inc()
	klog.FromContext(ctx).Info("Restored route: another process had changed or removed it",
		"staticRoute", c.owner, "route", c.key, "times", s.drift.count)
	switch s.drift.count {
	case 1:
		r.event(c.owner, corev1.EventTypeNormal, "Repaired", "%s was put back: another process had changed or removed it", c.key)
	case manyRepairs:
		r.event(c.owner, corev1.EventTypeWarning, v1alpha1.RouteDegraded,
			"something else is changing %s: it was put back %d times in a short while", c.key, s.drift.count)
	}
}

func (r *run) event(name, kind, reason, format string, args ...any) {
	r.kit.Event(kind, "StaticRoute"+reason, "StaticRoute %s: %s", name, fmt.Sprintf(format, args...))
}

// undo restores the state before a change.
func (r *run) undo(ctx context.Context, c change) {
	s := r.keys.all[c.key]
	s.wrote, s.settled = time.Time{}, false
	var err error
	if c.before == nil {
		if err = r.view.kernel.Delete(ctx, c.route); err == nil {
			s.ours = nil
		}
	} else {
		err = r.view.kernel.Restore(ctx, *c.before)
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Failed to withdraw route, retrying", "staticRoute", c.owner, "route", c.key)
	}
	r.keys.touch(c.key)
	r.view.rescan(time.Now())
}

// trying persists which routes are about to be set.
func (r *run) trying(ctx context.Context, all []change) error {
	names := map[string]struct{}{}
	for _, c := range all {
		one := r.records.of(r.claims[c.owner])
		one.Trying, one.TryingGeneration = true, r.claims[c.owner].generation
		names[c.owner] = struct{}{}
	}
	err := r.records.save(ctx, names)
	if err != nil {
		for name := range names {
			r.records.all[name].Trying = false
		}
	}
	return err
}

// ended records how a try ended. The records are saved with the report, or at once where the report
// may not come.
func (r *run) ended(ctx context.Context, all []change, v verdict, why error) {
	for _, c := range all {
		owner, s := r.claims[c.owner], r.keys.all[c.key]
		switch v {
		case unwritten:
			s.bad = reject(v1alpha1.RoutePending, "the node's disk does not take what must be written down "+
				"before the route is tried: %v", why)
			continue
		case proven, refused, interrupted:
			r.records.proved(owner, routeText(c.route), v == proven)
		case cutOff:
			r.records.strike(owner, why.Error(), time.Now())
			r.metrics.rollbacks.Inc()
			s.bad = r.records.held(time.Now(), r.link.Up, owner)
			klog.FromContext(ctx).Info("Withdrew route: it cut this node off", "staticRoute", c.owner, "route", c.key, "err", why)
			r.event(c.owner, corev1.EventTypeWarning, v1alpha1.RouteRolledBack, "%s was taken back: %v", c.key, why)
		case postponed:
			r.records.postpone(owner, why.Error(), time.Now())
			s.bad = r.records.held(time.Now(), r.link.Up, owner)
		}
		r.dirty[c.owner] = struct{}{}
	}
	if v != interrupted && v != postponed {
		return
	}
	every := make(map[string]struct{}, len(r.records.all))
	for name := range r.records.all {
		every[name] = struct{}{}
	}
	if err := r.records.save(ctx, every); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to persist route records")
	}
}

// unproven returns the routes that the kernel has as wanted and that were never watched, as changes
// that would set them. due is false before it is time to verify them.
func (r *run) unproven(now time.Time) (all []change, due bool) {
	if !r.link.Up || r.proveAt.IsZero() || now.Before(r.proveAt) || r.keys.unread(r.proveAt) {
		return nil, false
	}
	for key, s := range r.keys.all {
		if len(s.claims) == 0 || s.ours == nil || !s.wanted || !s.ours.Satisfies(s.want) {
			continue
		}
		c := change{key: key, owner: s.claims[0].name, route: s.want}
		if owner := r.claims[c.owner]; owner == nil || !r.records.proven(owner, routeText(c.route)) {
			all = append(all, c)
		}
	}
	slices.SortFunc(all, func(x, y change) int { return compareKeys(x.key, y.key) })
	return all, true
}
