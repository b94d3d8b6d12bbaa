package route

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netroute"
)

// input returns the current input of plan.
func (r *run) input(now time.Time) input {
	return input{
		now: now, facts: &r.view.facts, pause: r.config.RepairPause, drifted: r.records.drifted,
		held: func(c *claim) *rejection { return r.records.held(now, r.link.Up, c) },
	}
}

func (r *run) proven(c change) bool {
	owner := r.claims[c.owner]
	return owner != nil && r.records.proven(owner, routeText(c.route))
}

// do makes one change, and reports whether the kernel took it.
func (r *run) do(ctx context.Context, c change) bool {
	s := r.keys.all[c.key]
	err := r.set(ctx, c)
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

func (r *run) set(ctx context.Context, c change) error {
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

// standing are the routes that the kernel has as wanted and that were never watched, as changes
// that would set them.
func (r *run) standing() (all []change) {
	for key, s := range r.keys.all {
		if len(s.claims) == 0 || s.ours == nil || !s.wanted || !s.ours.Satisfies(s.want) {
			continue
		}
		c := change{key: key, owner: s.claims[0].name, route: s.want}
		if !r.proven(c) {
			all = append(all, c)
		}
	}
	slices.SortFunc(all, func(x, y change) int { return compareKeys(x.key, y.key) })
	return all
}

func hopsOf(hops []netroute.Hop) (all []hopOf) {
	for _, h := range hops {
		if h.Gateway.IsValid() {
			all = append(all, hopOf{h.Gateway, h.Interface})
		}
	}
	return all
}
