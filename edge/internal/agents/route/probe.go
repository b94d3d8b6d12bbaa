package route

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"
)

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
