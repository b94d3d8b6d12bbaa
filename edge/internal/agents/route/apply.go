package route

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/edge/internal/agents/probation"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netroute"
)

// How the safety net works. Before routes are set, the answering targets are recorded (the cloud,
// by new connections, and the gateways); they must answer afterwards. If one does not, the routes
// are withdrawn. If it answers again then, a single route is tried once more: a cable that was cut
// at the wrong moment is not the route's fault, and is not cut twice. Only a route that cuts the
// node off twice, with a working network in between, gets a strike; of several routes the halves
// are tried. If the network does not come back without the routes either, they wait for the next
// link. Routes that were set without a link, or whose watch never ended, are checked when a link
// opens.

// verdict is how a try of a route ended.
type verdict int

const (
	proven      verdict = iota // everything answered afterwards
	refused                    // by the kernel
	unwritten                  // the try could not be persisted, and did not begin
	interrupted                // edgecore ends, or the route was not the cause of an outage
	cutOff                     // it cut the node off, twice
	postponed                  // the network did not come back without it either
)

// writer makes changes in the kernel, and keeps the records of tries.
type writer interface {
	set(ctx context.Context, c change) bool
	undo(ctx context.Context, c change)
	remove(ctx context.Context, c change)
	unproven(now time.Time) (all []change, due bool)
	trying(ctx context.Context, all []change) error
	ended(ctx context.Context, all []change, v verdict, why error)
}

// safety makes the changes of a decision, and withdraws those that cut the node off. It keeps only
// the gateways that don't answer pings.
type safety struct {
	prober
	probation *probation.Probation
	routes    writer
}

// outcome is how the changes of one pass were made.
type outcome struct {
	took     time.Duration // for the changes
	verified bool          // routes that were never watched were verified
}

// apply makes the changes of a decision: first the sets, watched by the safety net, then the
// removals.
func (s *safety) apply(ctx context.Context, now time.Time, d decision) (o outcome) {
	var watched []change
	for _, c := range d.sets {
		if c.trusted {
			s.routes.set(ctx, c)
		} else {
			watched = append(watched, c)
		}
	}
	if len(watched) > 0 {
		s.setWatched(ctx, d, watched)
	}
	for _, c := range d.removals {
		s.routes.remove(ctx, c)
	}
	o.took = time.Since(now)
	all, due := s.routes.unproven(now)
	if len(all) > 0 && len(s.cloud) > 0 {
		s.verify(ctx, hopsOf(d.gateways), all)
	}
	o.verified = due
	return o
}

// setWatched sets routes, watched. The tried routes are on the disk first: after a crash the next
// process finds and withdraws them.
func (s *safety) setWatched(ctx context.Context, d decision, all []change) {
	release, err := s.probation.Alone(ctx)
	if err != nil {
		return // edgecore ends
	}
	defer release()
	var works []Probe
	if d.linked {
		works = s.working(ctx, hopsOf(d.gateways))
	}
	if len(works) == 0 { // no target to watch: when the next link opens
		for _, c := range all {
			s.routes.set(ctx, c)
		}
		return
	}
	if err = s.routes.trying(ctx, all); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to persist the tried routes, not setting them")
		s.routes.ended(ctx, all, unwritten, err)
		return
	}
	s.try(ctx, all, works, false)
}

// try sets routes and withdraws them if a target stops answering. again: it is the second attempt
// of one route.
func (s *safety) try(ctx context.Context, all []change, works []Probe, again bool) {
	var done, failed []change
	for _, c := range all {
		if s.routes.set(ctx, c) {
			done = append(done, c)
		} else {
			failed = append(failed, c)
		}
	}
	s.routes.ended(ctx, failed, refused, nil)
	if len(done) == 0 {
		return
	}
	why := gone(ctx, works, s.timeout)
	if why == nil {
		s.routes.ended(ctx, done, proven, nil)
		return
	}
	// Also when edgecore is being stopped in the middle: the next one would find a route that was
	// never watched.
	stopping := context.WithoutCancel(ctx)
	for _, c := range slices.Backward(done) {
		s.routes.undo(stopping, c)
	}
	if ctx.Err() != nil {
		s.routes.ended(stopping, done, interrupted, nil)
		return
	}
	log := klog.FromContext(ctx)
	if err := gone(ctx, works, recovery*s.timeout); err != nil {
		log.Info("Lost the network while setting routes and it did not return without them, retrying when the link opens", "routes", len(done), "err", err)
		s.routes.ended(stopping, done, postponed, why)
		return
	}
	switch {
	case len(done) > 1:
		log.Info("Lost the network while setting routes, trying them in smaller groups", "routes", len(done), "err", why)
		s.try(ctx, done[:len(done)/2], works, false)
		s.try(ctx, done[len(done)/2:], works, false)
	case again:
		s.routes.ended(stopping, done, cutOff, why)
	default:
		log.Info("Lost the network while setting a route, trying it once more", "staticRoute", done[0].owner, "err", why)
		s.try(ctx, done, works, true)
	}
}

// verify tests the routes in the kernel that were never watched. With the link open and the cloud
// reached by a new connection they are proven. Otherwise they are removed for the time of an
// answer: if the cloud is reached without them, they are tried like new routes; if not, they are
// not the cause, and are restored.
func (s *safety) verify(ctx context.Context, gateways []hopOf, all []change) {
	release, err := s.probation.Alone(ctx)
	if err != nil {
		return // edgecore ends
	}
	defer release()
	why := gone(ctx, s.cloud, s.timeout)
	if ctx.Err() != nil {
		return
	}
	if why == nil {
		s.routes.ended(ctx, all, proven, nil)
		return
	}
	log := klog.FromContext(ctx)
	log.Info("Cloud unreachable and some routes unverified; removing them temporarily to test", "routes", len(all), "err", why)
	if err = s.routes.trying(ctx, all); err != nil {
		log.Error(err, "Failed to persist the tried routes, not setting them")
		return
	}
	stopping := context.WithoutCancel(ctx)
	for _, c := range all {
		s.routes.undo(stopping, c)
	}
	if gone(ctx, s.cloud, s.timeout) == nil {
		s.try(ctx, all, s.working(ctx, gateways), false)
		return
	}
	for _, c := range all {
		s.routes.set(stopping, c)
	}
	s.routes.ended(stopping, all, interrupted, nil)
}

const (
	pingPatience = time.Second     // for a gateway before a change
	muteFor      = 5 * time.Minute // a gateway that doesn't answer pings isn't asked again for that long
	// askAgain is the pause between two probes of a target that does not answer.
	askAgain = 500 * time.Millisecond
	// recovery is the factor of the probe timeout for the node to recover, once a route was
	// withdrawn: the link may have to be closed and dialled again.
	recovery = 6
)

// Probe checks one path to the cloud: an error reports that it is broken. Each call starts afresh:
// a name is looked up, a connection dialled. An open connection proves little: it may take another
// path.
type Probe struct {
	What string // completes "... does not answer any more"
	Look func(ctx context.Context) error
}

// prober runs the probes and the checks of gateways.
type prober struct {
	kernel  Kernel
	cloud   []Probe
	timeout time.Duration
	mute    map[netip.Addr]time.Time // gateways that did not answer, and until when they are not asked
}

// working are the probes that answer now.
func (p *prober) working(ctx context.Context, gateways []hopOf) []Probe {
	all, patience := slices.Clone(p.cloud), map[string]time.Duration{}
	now := time.Now()
	for _, h := range gateways {
		what := "gateway " + h.gateway.String()
		if now.Before(p.mute[h.gateway]) || slices.ContainsFunc(all, func(x Probe) bool { return x.What == what }) {
			continue
		}
		patience[what] = pingPatience
		all = append(all, Probe{what, func(ctx context.Context) error { return p.kernel.Ping(ctx, h.gateway, h.link) }})
	}
	errs := look(ctx, all, func(x Probe) time.Duration {
		if d := patience[x.What]; d > 0 {
			return d
		}
		return p.timeout
	})
	var works []Probe
	for i, x := range all {
		if errs[i] == nil {
			works = append(works, x)
		}
	}
	for _, h := range gateways {
		what := "gateway " + h.gateway.String()
		if !now.Before(p.mute[h.gateway]) && !slices.ContainsFunc(works, func(x Probe) bool { return x.What == what }) {
			p.mute[h.gateway] = now.Add(muteFor)
		}
	}
	return works
}

// hopOf is a gateway of this node and the interface it is on.
type hopOf struct {
	gateway netip.Addr
	link    string
}

// hopsOf returns the gateways of these hops.
func hopsOf(hops []netroute.Hop) (all []hopOf) {
	for _, h := range hops {
		if h.Gateway.IsValid() {
			all = append(all, hopOf{h.Gateway, h.Interface})
		}
	}
	return all
}

// look asks all at once.
func look(ctx context.Context, all []Probe, patience func(Probe) time.Duration) []error {
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, p := range all {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, patience(p))
			defer cancel()
			errs[i] = p.Look(ctx)
		})
	}
	wg.Wait()
	return errs
}

// gone names which of the probes is missing after a change, if any. One that fails at once, as a
// question does without a link, is asked again for as long as it may be silent.
func gone(ctx context.Context, works []Probe, patience time.Duration) error {
	again := make([]Probe, len(works))
	for i, p := range works {
		again[i] = Probe{p.What, func(ctx context.Context) error {
			for {
				err := p.Look(ctx)
				if err == nil {
					return nil
				}
				select {
				case <-ctx.Done():
					return err
				case <-time.After(askAgain):
				}
			}
		}}
	}
	for i, err := range look(ctx, again, func(Probe) time.Duration { return patience }) {
		if err != nil {
			return fmt.Errorf("%s does not answer any more: %w", works[i].What, err)
		}
	}
	return nil
}
