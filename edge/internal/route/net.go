package route

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

const (
	pingPatience = time.Second     // for a gateway before a change
	muteFor      = 5 * time.Minute // a gateway that doesn't answer pings isn't asked again for that long
	retryAfter   = 5 * time.Minute // a route that cut the node off is tried once more after that
	lastStrike   = 2               // and after that many times only when its object changes
)

// sign is something that answered before a change and should answer after it.
type sign struct {
	what string
	look func(ctx context.Context) error
}

// signs tells what answers now. Off line it is nothing: then nothing is asked, and a change is not watched.
func (a *Agent) signs(ctx context.Context) []sign {
	if !a.linked {
		return nil
	}
	var all []sign
	if a.ask != nil {
		all = append(all, sign{"the cloud", a.ask})
	}
	now := time.Now()
	for _, h := range a.gateways {
		if !h.Gateway.IsValid() || now.Before(a.mute[h.Gateway]) || slices.ContainsFunc(all, func(s sign) bool { return s.what == gatewaySign(h.Gateway) }) {
			continue
		}
		all = append(all, sign{gatewaySign(h.Gateway), func(ctx context.Context) error { return a.tools.Kernel.Ping(ctx, h.Gateway, h.Interface) }})
	}
	errs := look(ctx, all, func(s sign) time.Duration {
		if s.what == "the cloud" {
			return a.config.ProbeTimeout
		}
		return pingPatience
	})
	var works []sign
	for i, s := range all {
		if errs[i] == nil {
			works = append(works, s)
		}
	}
	for _, h := range a.gateways {
		if !slices.ContainsFunc(works, func(s sign) bool { return s.what == gatewaySign(h.Gateway) }) && !now.Before(a.mute[h.Gateway]) {
			a.mute[h.Gateway] = now.Add(muteFor)
		}
	}
	return works
}

func gatewaySign(a netip.Addr) string { return "gateway " + a.String() }

// recovery is how many times as long as for an answer is waited for the node to be as it was, once a route was taken back: the link may have to be given up and dialled anew.
const recovery = 6

// askAgain is the pause between two questions to something that does not answer.
const askAgain = 500 * time.Millisecond

// look asks all at once.
func look(ctx context.Context, all []sign, patience func(sign) time.Duration) []error {
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, s := range all {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, patience(s))
			defer cancel()
			errs[i] = s.look(ctx)
		})
	}
	wg.Wait()
	return errs
}

// gone tells which of the signs is missing after a change, if any. One that fails at once, as a question does without a link, is asked again for as long as it may be silent.
func (a *Agent) gone(ctx context.Context, works []sign, patience time.Duration) error {
	again := make([]sign, len(works))
	for i, s := range works {
		again[i] = sign{s.what, func(ctx context.Context) error {
			for {
				err := s.look(ctx)
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
	errs := look(ctx, again, func(sign) time.Duration { return patience })
	for i, err := range errs {
		if err != nil {
			return fmt.Errorf("%s does not answer any more: %w", works[i].what, err)
		}
	}
	return nil
}

// writeWatched makes changes, and takes back the one after which the cloud or the gateway does not answer any more. What is being tried is on the disk
// first: a process that dies meanwhile leaves a word for the next one, which takes the route back.
func (a *Agent) writeWatched(ctx context.Context, all []change) {
	works := a.signs(ctx)
	if len(works) == 0 {
		for _, c := range all {
			a.do(ctx, c)
		}
		return
	}
	if err := a.trying(ctx, all, true); err != nil {
		klog.FromContext(ctx).Error(err, "Routes are not tried: what is tried could not be written down first")
		for _, c := range all {
			a.slots[c.key].bad = judge(v1alpha1.RoutePending, "the node's disk does not take what must be written down before the route is tried: %v", err)
		}
		return
	}
	a.try(ctx, all, works)
}

func (a *Agent) try(ctx context.Context, all []change, works []sign) {
	var done []change
	for _, c := range all {
		if a.do(ctx, c) {
			done = append(done, c)
		} else {
			a.proved(c, false)
		}
	}
	if len(done) == 0 {
		return
	}
	why := a.gone(ctx, works, a.config.ProbeTimeout)
	if why == nil {
		for _, c := range done {
			a.proved(c, true)
		}
		return
	}
	// Also when edgecore is being stopped in the middle: the next one would find a route that nobody has watched.
	stopped := ctx.Err() != nil
	running := ctx
	ctx = context.WithoutCancel(ctx)
	for _, c := range slices.Backward(done) {
		a.undo(ctx, c)
	}
	if stopped {
		for _, c := range done {
			a.proved(c, false)
		}
		a.saveAll(ctx)
		return
	}
	log := klog.FromContext(ctx)
	if err := a.gone(running, works, recovery*a.config.ProbeTimeout); err != nil {
		// Whose doing it was can't be known now. A route that stays away does less harm than one that keeps the node cut off for good.
		log.Info("The network went away just after routes were set, and is not back without them: they stay away until there is a link to watch them by", "routes", len(done), "err", err)
		for _, c := range done {
			a.strike(ctx, c, why, false)
		}
		a.saveAll(ctx)
		return
	}
	if len(done) == 1 {
		a.strike(ctx, done[0], why, true)
		return
	}
	log.Info("One of several routes cut this node off: they are tried in smaller groups", "routes", len(done), "err", why)
	a.try(ctx, done[:len(done)/2], works)
	a.try(ctx, done[len(done)/2:], works)
}

// undo puts back what was there before.
func (a *Agent) undo(ctx context.Context, c change) {
	s := a.slots[c.key]
	s.wrote, s.settled = time.Time{}, false
	var err error
	if c.before == nil {
		if err = a.tools.Kernel.Delete(ctx, c.route); err == nil {
			s.ours = nil
		}
	} else {
		err = a.tools.Kernel.Restore(ctx, *c.before)
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Route could not be taken back; it will be tried again", "staticRoute", c.owner, "route", c.key)
	}
	a.rescan(time.Now())
}

// strike notes that a route cut the node off. Where the network did not come back without it either, that is not certain, and does not count for the last try.
func (a *Agent) strike(ctx context.Context, c change, why error, certain bool) {
	r := a.record(c.owner)
	if r.StruckGeneration != a.claims[c.owner].generation || r.UID != a.claims[c.owner].uid {
		r.Strikes = 0
	}
	if r.Strikes++; !certain {
		r.Strikes = min(r.Strikes, lastStrike-1)
	}
	r.Trying, r.Struck, r.StruckGeneration, r.UID = false, why.Error(), a.claims[c.owner].generation, a.claims[c.owner].uid
	r.retry = time.Now().Add(retryAfter)
	r.again, r.Proven = r.retry, ""
	a.metrics.rollbacks.Inc()
	a.dirty[c.owner] = struct{}{}
	a.slots[c.key].bad = a.rolledBack(time.Now(), a.claims[c.owner])
	klog.FromContext(ctx).Info("Route was taken back: it cut this node off", "staticRoute", c.owner, "route", c.key, "certain", certain, "err", why)
	a.event(c.owner, corev1.EventTypeWarning, v1alpha1.RouteRolledBack, "%s was taken back: %v", c.key, why)
}

// rolledBack says whether a route that cut the node off must stay away, for now or until its object changes.
func (a *Agent) rolledBack(now time.Time, c *claim) *verdict {
	r := a.records[c.name]
	if r == nil || r.Strikes == 0 || r.StruckGeneration != c.generation || r.UID != c.uid {
		return nil
	}
	if r.Strikes >= lastStrike {
		return judge(v1alpha1.RouteRolledBack, "%s with this route, so it was taken back, %d times; it is not tried again before the object changes", r.Struck, r.Strikes)
	}
	if a.linked && !r.again.IsZero() && !now.Before(r.again) {
		return nil
	}
	if r.retry.IsZero() { // a fresh process, or off line: once more, when there is a link to watch by
		r.retry = now.Add(retryAfter)
		if r.again.IsZero() {
			r.again = r.retry
		}
	}
	return judge(v1alpha1.RouteRolledBack, "%s with this route, so it was taken back; it will be tried once more", r.Struck)
}
