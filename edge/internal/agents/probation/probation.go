// Package probation withdraws changes that cut this device off from the cloud: the cloud can then
// no longer correct them.
//
// It owns which claims are proven, withheld and refused, and keeps that over boots. A claim is a
// text of an agent that applies it: a route to another device's pods, an address of a Service, a
// virtual IP. It is proven once the cloud answered a new connection while it was applied. If the
// cloud does not answer, all unproven claims of all agents are withheld for a while: if it answers
// then, each is tried alone, in the order of their age, and the one that cuts the device off again,
// with a working network in between, is refused permanently; a newer object has another text. If it
// does not answer either way, claims are not the cause, and are applied again until the next link.
// It does not touch the kernel: an agent applies the allowed claims, and reports the applied ones.
// Run is called once; the other methods by any goroutine.
package probation

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
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
	// between is the pause between two trials: each dials the cloud, and simultaneous claims are
	// tried together.
	between = 10 * time.Second

	provenKey  = "proven"
	refusedKey = "refused"

	// ofKind ends the kind in the name of a claim.
	ofKind = ": "
)

// Config configures a Probation.
type Config struct {
	Memory agent.Memory
	// Ask asks the cloud by a new connection.
	Ask func(ctx context.Context) error
}

// Probation is that of a device's claims.
type Probation struct {
	config Config
	kick   chan struct{} // one slot
	stood  chan struct{} // one slot: an agent has applied
	turn   chan struct{} // one slot: its holder runs a trial

	mu       sync.Mutex
	loaded   bool
	wakes    map[string]func() // of each kind
	epoch    uint64            // of the link that is known
	proven   map[string]bool
	refused  map[string]string // and the observed failure
	known    []string          // all that there are, the oldest first
	standing map[string]bool   // of those, the claims in the kernel
	withheld map[string]bool
	put      bool // off, until the next link
}

// Name is the module's.
const Name message.Name = "probation"

// Module runs a Probation.
type Module struct{ *Probation }

// Name implements beehive.Module.
func (Module) Name() message.Name { return Name }

// Run implements beehive.Module.
func (m Module) Run(ctx context.Context, port *beehive.Port) error {
	port.Ready()
	return m.Probation.Run(ctx)
}

// New makes a Probation. It does not read the store or start a goroutine.
func New(c Config) *Probation {
	return &Probation{
		config: c, kick: make(chan struct{}, 1), stood: make(chan struct{}, 1), turn: make(chan struct{}, 1), wakes: map[string]func(){}, proven: map[string]bool{},
		refused: map[string]string{}, standing: map[string]bool{}, withheld: map[string]bool{},
	}
}

// Alone waits until no other trial of changes that may cut this device off is running, and keeps
// others from beginning until release is called: two at once would be blamed for each other. A nil
// Probation has no trials.
func (p *Probation) Alone(ctx context.Context) (release func(), err error) {
	if p == nil {
		return func() {}, nil
	}
	select {
	case p.turn <- struct{}{}:
		return func() { <-p.turn }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Claims are those of one agent. A nil one withholds no claim.
type Claims struct {
	probation *Probation
	kind      string
}

// Of returns the claims of an agent, identified by their kind, for one run of it; wake makes it
// apply the allowed claims. A nil Probation returns nil.
func (p *Probation) Of(kind string, wake func()) *Claims {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wakes[kind] = wake
	return &Claims{p, kind}
}

// Withheld gives the reason a claim must not be applied now; "" where it may.
func (c *Claims) Withheld(claim string) string {
	if c == nil {
		return ""
	}
	p := c.probation
	claim = c.kind + ofKind + claim
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

// Applied lists the agent's claims, and those of them that the kernel has now.
func (c *Claims) Applied(all, standing []string) {
	if c == nil {
		return
	}
	p, prefix := c.probation, c.kind+ofKind
	p.mu.Lock()
	defer p.mu.Unlock()
	p.load()
	listed := map[string]bool{}
	for _, claim := range all {
		listed[prefix+claim] = true
	}
	gone := func(claim string) bool { return strings.HasPrefix(claim, prefix) && !listed[claim] }
	before := len(p.proven) + len(p.refused)
	maps.DeleteFunc(p.proven, func(claim string, _ bool) bool { return gone(claim) })
	maps.DeleteFunc(p.refused, func(claim, _ string) bool { return gone(claim) })
	maps.DeleteFunc(p.withheld, func(claim string, _ bool) bool { return gone(claim) })
	if len(p.proven)+len(p.refused) != before {
		p.save()
	}
	p.known = slices.DeleteFunc(p.known, gone)
	for _, claim := range all {
		if claim = prefix + claim; !slices.Contains(p.known, claim) {
			p.known = append(p.known, claim)
			p.put = false // a new claim; one that is only restored is not
		}
	}
	maps.DeleteFunc(p.standing, func(claim string, _ bool) bool { return strings.HasPrefix(claim, prefix) })
	for _, claim := range standing {
		p.standing[prefix+claim] = true
	}
	signal(p.stood)
	if !p.put && len(p.unproven()) > 0 {
		signal(p.kick)
	}
}

// Linked reconsiders postponed claims, once for each link.
func (c *Claims) Linked(epoch uint64) {
	if c == nil {
		return
	}
	p := c.probation
	p.mu.Lock()
	defer p.mu.Unlock()
	if epoch == p.epoch {
		return
	}
	p.epoch, p.put = epoch, false
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
		if len(all) == 0 {
			continue
		}
		p.try(ctx, all)
		if rerun.Pause(ctx, between) != nil {
			return nil
		}
	}
}

// try finds out whether applied claims cut the device off.
func (p *Probation) try(ctx context.Context, all []string) {
	release, err := p.Alone(ctx)
	if err != nil {
		return
	}
	defer release()
	why := p.answers(ctx, patience)
	switch {
	case ctx.Err() != nil:
		return
	case why == nil:
		p.prove(all...)
		return
	}
	log := klog.FromContext(ctx)
	log.Info("Cloud unreachable and some claims unproven; withdrawing them to test", "claims", all, "err", why)
	defer p.withhold(ctx, "", false)
	p.withhold(ctx, "", true, all...)
	if p.answers(ctx, recovery) != nil {
		p.postpone()
		return
	}
	for i, one := range all {
		if !p.withhold(ctx, one, true, all[i+1:]...) {
			continue // it is not in the kernel now, for another reason: it stays unproven
		}
		why := p.answers(ctx, patience)
		if ctx.Err() != nil {
			return
		}
		if why == nil {
			p.prove(one)
			continue
		}
		p.withhold(ctx, "", true, all[i:]...)
		if p.answers(ctx, recovery) != nil {
			p.postpone()
			return
		}
		log.Info("Withdrew a claim: it cut this device off from the cloud", "claim", one, "err", why)
		p.refuse(one, fmt.Sprintf("it cut this device off from the cloud twice (%v), and was withdrawn", why))
	}
}

// unproven returns the applied claims whose trial was never completed. mu is held.
func (p *Probation) unproven() []string {
	return slices.DeleteFunc(slices.Clone(p.known), func(claim string) bool { return p.proven[claim] || !p.standing[claim] })
}

// withhold has the agents apply all but these, and waits until they have. It returns whether the
// kernel has the claim that is tried.
func (p *Probation) withhold(ctx context.Context, tried string, wait bool, claims ...string) bool {
	p.mu.Lock()
	p.withheld = map[string]bool{}
	for _, claim := range claims {
		p.withheld[claim] = true
	}
	wakes := slices.Collect(maps.Values(p.wakes))
	p.mu.Unlock()
	for _, wake := range wakes {
		wake()
	}
	if !wait {
		return false
	}
	late := time.NewTimer(applying)
	defer late.Stop()
	for {
		if stands, done := p.settled(tried); done {
			return stands
		}
		select {
		case <-ctx.Done():
			return false
		case <-p.stood:
		case <-late.C:
			stands, _ := p.settled(tried)
			return stands
		}
	}
}

// settled reports whether the tried claim is applied, and whether that and the absence of the
// withheld claims are as desired.
func (p *Probation) settled(tried string) (stands, done bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	stands = p.standing[tried]
	for claim := range p.withheld {
		if p.standing[claim] {
			return stands, false
		}
	}
	return stands, stands || tried == ""
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

// load reads the stored state, once. mu is held.
func (p *Probation) load() {
	if p.loaded {
		return
	}
	kept, err := p.config.Memory.Load()
	if err != nil {
		klog.Background().Error(err, "Failed to read which claims are proven, retrying")
		return
	}
	p.loaded = true
	for key, into := range map[string]any{provenKey: &p.proven, refusedKey: &p.refused} {
		if err := json.Unmarshal(kept[key], into); err != nil && len(kept[key]) > 0 {
			klog.Background().Error(err, "Failed to read which claims are proven", "key", key)
		}
	}
}

// save keeps both. mu is held. State that a full disk refuses is saved again after the next
// boot.
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
		klog.Background().Error(err, "Failed to persist verified claims: after a restart they are verified again")
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // one waits already
	}
}
