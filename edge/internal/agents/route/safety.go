package route

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// How the safety net works. Before routes are set, the answering targets are recorded (the cloud,
// by new connections, and the gateways); they must answer afterwards. If one does not, the routes
// are withdrawn. If it answers again then, a single route is tried once more: a cable that was cut
// at the wrong moment is not the route's fault, and is not cut twice. Only a route that cuts the
// node off twice, with a working network in between, gets a strike; of several routes the halves
// are tried. If the network does not come back without the routes either, they wait for the next
// link. Routes that were set without a link, or whose watch never ended, are checked when a link
// opens.

// apply makes the changes of a plan: first the sets, watched by the safety net, then the removals.
func (r *run) apply(ctx context.Context, sets, removals []change) {
	// A route that is put back, or that was watched before, did no harm then.
	harmless := func(c change) bool { return c.repair || r.proven(c) }
	for _, c := range sets {
		if harmless(c) {
			r.do(ctx, c)
		}
	}
	if watched := slices.DeleteFunc(slices.Clone(sets), harmless); len(watched) > 0 {
		r.writeWatched(ctx, watched)
	}
	for _, c := range removals {
		r.remove(ctx, c)
	}
}

// writeWatched makes changes, watched. The tried routes are on the disk first: after a crash the
// next process finds and withdraws them.
func (r *run) writeWatched(ctx context.Context, all []change) {
	release, err := r.config.Probation.Alone(ctx)
	if err != nil {
		return // edgecore ends
	}
	defer release()
	var works []Probe
	if r.link.Up {
		works = r.prober.working(ctx, hopsOf(r.view.gateways))
	}
	if len(works) == 0 { // no target to watch: when the next link opens
		for _, c := range all {
			r.do(ctx, c)
		}
		return
	}
	if err = r.trying(ctx, all); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to persist the tried routes, not setting them")
		for _, c := range all {
			r.keys.all[c.key].bad = reject(v1alpha1.RoutePending, "the node's disk does not take what must be written down "+
				"before the route is tried: %v", err)
		}
		return
	}
	r.try(ctx, all, works, false)
}

// trying writes down which routes are about to be set.
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

// proved notes how a try ended; the record is written with the report.
func (r *run) proved(c change, well bool) {
	r.records.proved(r.claims[c.owner], routeText(c.route), well)
	r.dirty[c.owner] = struct{}{}
}

// try sets routes and withdraws them if a target stops answering. again: it is the second attempt
// of one route.
func (r *run) try(ctx context.Context, all []change, works []Probe, again bool) {
	var done []change
	for _, c := range all {
		if r.do(ctx, c) {
			done = append(done, c)
		} else {
			r.proved(c, false)
		}
	}
	if len(done) == 0 {
		return
	}
	why := gone(ctx, works, r.config.ProbeTimeout)
	if why == nil {
		for _, c := range done {
			r.proved(c, true)
		}
		return
	}
	// Also when edgecore is being stopped in the middle: the next one would find a route that was
	// never watched.
	running := ctx
	ctx = context.WithoutCancel(ctx)
	for _, c := range slices.Backward(done) {
		r.undo(ctx, c)
	}
	if running.Err() != nil {
		for _, c := range done {
			r.proved(c, false)
		}
		r.saveAll(ctx)
		return
	}
	log := klog.FromContext(ctx)
	if err := gone(running, works, recovery*r.config.ProbeTimeout); err != nil {
		log.Info("Lost the network while setting routes and it did not return without them, retrying when the link opens", "routes", len(done), "err", err)
		for _, c := range done {
			r.postpone(c, why)
		}
		r.saveAll(ctx)
		return
	}
	switch {
	case len(done) > 1:
		log.Info("Lost the network while setting routes, trying them in smaller groups", "routes", len(done), "err", why)
		r.try(running, done[:len(done)/2], works, false)
		r.try(running, done[len(done)/2:], works, false)
	case again:
		r.strike(ctx, done[0], why)
	default:
		log.Info("Lost the network while setting a route, trying it once more", "staticRoute", done[0].owner, "err", why)
		r.try(running, done, works, true)
	}
}

// strike notes that a route cut the node off, twice.
func (r *run) strike(ctx context.Context, c change, why error) {
	owner := r.claims[c.owner]
	r.records.strike(owner, why.Error(), time.Now())
	r.metrics.rollbacks.Inc()
	r.dirty[c.owner] = struct{}{}
	r.keys.all[c.key].bad = r.records.held(time.Now(), r.link.Up, owner)
	klog.FromContext(ctx).Info("Withdrew route: it cut this node off", "staticRoute", c.owner, "route", c.key, "err", why)
	r.event(c.owner, corev1.EventTypeWarning, v1alpha1.RouteRolledBack, "%s was taken back: %v", c.key, why)
}

func (r *run) postpone(c change, why error) {
	owner := r.claims[c.owner]
	r.records.postpone(owner, why.Error(), time.Now())
	r.dirty[c.owner] = struct{}{}
	r.keys.all[c.key].bad = r.records.held(time.Now(), r.link.Up, owner)
}

func (r *run) saveAll(ctx context.Context) {
	all := make(map[string]struct{}, len(r.records.all))
	for name := range r.records.all {
		all[name] = struct{}{}
	}
	if err := r.records.save(ctx, all); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to persist route records")
	}
}

// proveStanding verifies the routes in the kernel that were never watched. With the link open and
// the cloud reached by a new connection they are proven. Otherwise they are removed for the time of
// an answer: if the cloud is reached without them, they are tried like new routes; if not, they are
// not the cause, and are restored.
func (r *run) proveStanding(ctx context.Context) {
	all := r.standing()
	if len(all) == 0 || len(r.prober.cloud) == 0 {
		return
	}
	release, err := r.config.Probation.Alone(ctx)
	if err != nil {
		return // edgecore ends
	}
	defer release()
	why := gone(ctx, r.prober.cloud, r.config.ProbeTimeout)
	if ctx.Err() != nil {
		return
	}
	if why == nil {
		for _, c := range all {
			r.proved(c, true)
		}
		return
	}
	log := klog.FromContext(ctx)
	log.Info("Cloud unreachable and some routes unverified; removing them temporarily to test", "routes", len(all), "err", why)
	if err = r.trying(ctx, all); err != nil {
		log.Error(err, "Failed to persist the tried routes, not setting them")
		return
	}
	running := ctx
	ctx = context.WithoutCancel(ctx)
	for _, c := range all {
		r.undo(ctx, c)
	}
	if gone(running, r.prober.cloud, r.config.ProbeTimeout) == nil {
		works := r.prober.working(running, hopsOf(r.view.gateways))
		r.try(running, all, works, false)
		return
	}
	for _, c := range all {
		r.do(ctx, c)
		r.proved(c, false)
	}
	r.saveAll(ctx)
}
