package route

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/skerry-io/skerry/edge/internal/kernel/network/netroute"
)

// sync processes all changes: one pass.
func (r *run) sync(ctx context.Context) (again time.Duration, err error) {
	now := time.Now()
	r.readChanges(now)
	waiting := r.missing(r.events.isWatching())
	r.status.wait(waiting)
	if waiting != "" {
		return r.config.FullCheck, nil
	}
	if err := r.reconcile(ctx, now); err != nil {
		r.view.rescan(now.Add(time.Second))
		return 0, err
	}
	return r.next(), nil
}

// reconcile is the four stages of a pass.
func (r *run) reconcile(ctx context.Context, now time.Time) error {
	seen, err := r.observe(ctx, now)
	if err != nil {
		return err
	}
	todo := plan(seen.input, seen.keys)
	todo.linked, todo.gateways = r.link.Up, r.view.gateways
	for key, s := range todo.next {
		*r.keys.all[key] = s
	}
	done := r.safety.apply(ctx, now, todo)
	if !todo.isEmpty() {
		r.metrics.applied(done.took)
	}
	if done.verified {
		r.proveAt = time.Now().Add(r.config.ProveAgain)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return errors.Join(seen.unsaved, r.report(ctx, r.affected()))
}

// observation is the input of one pass: the keys to plan and their states.
type observation struct {
	input
	keys map[netroute.Key]keyState
	// unsaved is the error of saving the guards. It does not block: they are of this process, and a
	// full disk must not keep routes away after a boot.
	unsaved error
}

// affected returns the StaticRoutes to report, and ends the pass for its keys.
func (r *run) affected() map[string]struct{} {
	names := r.dirty
	for key := range r.keys.touched {
		s := r.keys.all[key]
		if s == nil {
			continue
		}
		for _, c := range s.claims {
			names[c.name] = struct{}{}
		}
		if s.owner != "" {
			names[s.owner] = struct{}{}
		}
		r.keys.settle(key, s)
	}
	clear(r.keys.touched)
	r.dirty = map[string]struct{}{}
	return names
}

// resolveCloud looks up the names of cloudcore while there is a link, once for each session.
func (r *run) resolveCloud(ctx context.Context) {
	if r.config.Resolve == nil || !r.link.Up || r.resolved == r.link.Link.Epoch {
		return
	}
	r.resolved = r.link.Link.Epoch
	ctx, cancel := context.WithTimeout(ctx, r.config.ProbeTimeout)
	defer cancel()
	for _, ip := range r.config.Resolve(ctx) {
		r.records.linkedTo(ip.Unmap())
	}
}

// next returns when an action is due without an event.
func (r *run) next() time.Duration {
	soonest := r.checkAt
	at := func(t time.Time) {
		if !t.IsZero() && t.Before(soonest) {
			soonest = t
		}
	}
	at(r.view.scanAt)
	r.keys.next(r.config.ConfirmAfter, at)
	for name := range r.records.timed {
		if one := r.records.all[name]; one != nil {
			at(one.retry)
		}
	}
	if r.link.Up && !r.keys.unread(r.proveAt) { // otherwise the key is due
		at(r.proveAt)
	}
	return max(time.Microsecond, time.Until(soonest))
}

// observe reads the kernel if that is due, and selects the StaticRoutes and keys of this pass.
func (r *run) observe(ctx context.Context, now time.Time) (o observation, err error) {
	if r.view.scanDue(now) {
		if err := r.view.scan(ctx, &r.keys, r.claims); err != nil {
			return o, err
		}
	}
	if r.keys.overdue(now, r.config.ConfirmAfter) {
		r.view.rescan(now)
	}
	for _, name := range r.records.due(now) {
		r.dirty[name] = struct{}{}
	}
	r.markAllDirty()
	if r.needsProbe() {
		if err := r.view.scan(ctx, &r.keys, r.claims); err != nil {
			return o, err
		}
		r.markAllDirty()
	}
	for name := range maps.Clone(r.dirty) {
		r.assignKey(name)
	}
	if r.keys.lostOurs() {
		if err := r.view.readLinks(ctx); err != nil {
			return o, err
		}
	}
	pass := len(r.dirty) > 0 || len(r.keys.touched) > 0
	if pass {
		r.resolveCloud(ctx)
		r.view.facts.guards = r.guards()
	}
	if pass || r.records.behind {
		o.unsaved = r.records.saveCommon(ctx)
	}
	if err := ctx.Err(); err != nil {
		return o, err
	}
	if pass {
		r.all = false
		o.input, o.keys = r.input(now), r.keys.touchedStates()
	}
	return o, nil
}

// input returns the current input of plan.
func (r *run) input(now time.Time) input {
	return input{
		now: now, facts: &r.view.facts, pause: r.config.RepairPause, drifted: r.records.drifted, proven: r.records.proven,
		held: func(c *claim) *rejection { return r.records.held(now, r.link.Up, c) },
	}
}
