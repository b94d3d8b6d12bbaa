// Package probation takes back what cut this device off from the cloud, by the device itself: what
// it heard from there can then no longer be corrected from there.
//
// It owns which claims (texts of its caller: a route to another device's pods, an address of a
// Service) are proven, withheld and refused, and keeps that over boots. A claim is proven once the
// cloud answered a new connection while it stood. Where the cloud does not answer, all that is
// unproven is withheld for a while: if it answers then, each is tried alone, in the order of their
// age, and the one that cuts the device off again, with the network well in between, is refused for
// good; a newer object has another text. If it does not answer either way, claims are not the
// cause, and stand again until the next link. It refuses to touch the kernel: its caller applies
// what is Allowed, and says what stands. Run is called once; the others by any goroutine.
package probation

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/rerun"
	"github.com/skerry-io/skerry/edge/internal/core/agent"
)

const (
	// patience is how long the cloud may take to answer, and recovery how long once claims were
	// withheld: the link is dialled again.
	patience = 10 * time.Second
	recovery = time.Minute
	// askAgain is the pause between two questions, and applying how long the caller may take.
	askAgain = 500 * time.Millisecond
	applying = 15 * time.Second

	provenKey  = "proven"
	refusedKey = "refused"
)

// Config is what a Probation needs.
type Config struct {
	Name   string
	Memory agent.Memory
	// Ask asks the cloud by a connection that begins from nothing.
	Ask func(ctx context.Context) error
	// Wake has the caller apply what is allowed now.
	Wake func()
}

// Probation is that of one agent's claims.
type Probation struct {
	config Config
	kick   chan struct{} // one slot
	stood  chan struct{} // one slot: the caller has applied

	mu       sync.Mutex
	loaded   bool
	proven   map[string]bool
	refused  map[string]string // and what was seen
	known    []string          // all that there are, the oldest first
	standing map[string]bool   // of those, what is in the kernel
	withheld map[string]bool
	put      bool // off, until the next link
}

// New makes a Probation. It reads and starts nothing.
func New(c Config) *Probation {
	return &Probation{config: c, kick: make(chan struct{}, 1), stood: make(chan struct{}, 1), proven: map[string]bool{}, refused: map[string]string{}, withheld: map[string]bool{}}
}

// Withheld gives the reason a claim must not be applied now; "" where it may.
func (p *Probation) Withheld(claim string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.load()
	switch {
	case p.refused[claim] != "":
		return p.refused[claim]
	case p.withheld[claim]:
		return "withdrawn for a while, to see whether it cut this device off from the cloud"
	}
	return ""
}

// Applied lists the claims, and those of them that the kernel has now.
func (p *Probation) Applied(all, standing []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.load()
	gone := func(claim string) bool { return !slices.Contains(all, claim) }
	before := len(p.proven) + len(p.refused)
	maps.DeleteFunc(p.proven, func(claim string, _ bool) bool { return gone(claim) })
	maps.DeleteFunc(p.refused, func(claim, _ string) bool { return gone(claim) })
	maps.DeleteFunc(p.withheld, func(claim string, _ bool) bool { return gone(claim) })
	if len(p.proven)+len(p.refused) != before {
		p.save()
	}
	p.known = slices.DeleteFunc(p.known, gone)
	for _, claim := range all {
		if !slices.Contains(p.known, claim) {
			p.known = append(p.known, claim)
			p.put = false // something new; what is only put back is not
		}
	}
	p.standing = map[string]bool{}
	for _, claim := range standing {
		p.standing[claim] = true
	}
	signal(p.stood)
	if !p.put && len(p.unproven()) > 0 {
		signal(p.kick)
	}
}

// LinkOpened has what was put off looked at again.
func (p *Probation) LinkOpened() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.put = false
	signal(p.kick)
}

// Run tries claims until ctx ends.
func (p *Probation) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.kick:
		}
		p.mu.Lock()
		all := p.unproven()
		p.mu.Unlock()
		if len(all) > 0 {
			p.try(ctx, all)
		}
	}
}

// try finds out whether claims that stand cut the device off.
func (p *Probation) try(ctx context.Context, all []string) {
	why := p.answers(ctx, patience)
	switch {
	case ctx.Err() != nil:
		return
	case why == nil:
		p.prove(all...)
		return
	}
	log := klog.FromContext(ctx)
	log.Info("Cloud unreachable and some claims unproven; withdrawing them to test", "kind", p.config.Name, "claims", all, "err", why)
	defer p.withhold(ctx, false)
	p.withhold(ctx, true, all...)
	if p.answers(ctx, recovery) != nil {
		p.postpone()
		return
	}
	for i, one := range all {
		p.withhold(ctx, true, all[i+1:]...)
		why := p.answers(ctx, patience)
		if ctx.Err() != nil {
			return
		}
		if why == nil {
			p.prove(one)
			continue
		}
		p.withhold(ctx, true, all[i:]...)
		if p.answers(ctx, recovery) != nil {
			p.postpone()
			return
		}
		log.Info("Withdrew a claim: it cut this device off from the cloud", "kind", p.config.Name, "claim", one, "err", why)
		p.refuse(one, fmt.Sprintf("it cut this device off from the cloud twice (%v), and was withdrawn", why))
	}
}

// unproven are the claims that stand and were never tried to the end. mu is held.
func (p *Probation) unproven() []string {
	return slices.DeleteFunc(slices.Clone(p.known), func(claim string) bool { return p.proven[claim] || !p.standing[claim] })
}

// withhold has the caller apply all but these, and waits until it has.
func (p *Probation) withhold(ctx context.Context, wait bool, claims ...string) {
	p.mu.Lock()
	p.withheld = map[string]bool{}
	for _, claim := range claims {
		p.withheld[claim] = true
	}
	select {
	case <-p.stood: // of before
	default:
	}
	p.mu.Unlock()
	p.config.Wake()
	if !wait {
		return
	}
	late := time.NewTimer(applying)
	defer late.Stop()
	select {
	case <-ctx.Done():
	case <-p.stood:
	case <-late.C:
	}
}

func (p *Probation) postpone() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.put = true
}

func (p *Probation) prove(claims ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, claim := range claims {
		p.proven[claim] = true
	}
	p.save()
}

func (p *Probation) refuse(claim, why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refused[claim] = why
	p.save()
}

// answers asks until the cloud answers or patience ends.
func (p *Probation) answers(ctx context.Context, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := p.config.Ask(ctx)
		if err == nil {
			return nil
		}
		if rerun.Pause(ctx, askAgain) != nil {
			return err
		}
	}
}

// load reads what was kept, once. mu is held.
func (p *Probation) load() {
	if p.loaded {
		return
	}
	kept, err := p.config.Memory.Load()
	if err != nil {
		klog.Background().Error(err, "Failed to read which claims are proven, retrying", "kind", p.config.Name)
		return
	}
	p.loaded = true
	for key, into := range map[string]any{provenKey: &p.proven, refusedKey: &p.refused} {
		if err := json.Unmarshal(kept[key], into); err != nil && len(kept[key]) > 0 {
			klog.Background().Error(err, "Failed to read which claims are proven", "kind", p.config.Name, "key", key)
		}
	}
}

// save keeps both. mu is held. What a full disk does not take is tried again after the next boot.
func (p *Probation) save() {
	proven, err := json.Marshal(p.proven)
	if err != nil {
		return
	}
	refused, err := json.Marshal(p.refused)
	if err == nil {
		err = p.config.Memory.Save(context.Background(), map[string][]byte{provenKey: proven, refusedKey: refused})
	}
	if err != nil {
		klog.Background().Error(err, "Failed to persist which claims are proven", "kind", p.config.Name)
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // one waits already
	}
}
