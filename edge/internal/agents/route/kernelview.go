package route

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/skerry-io/skerry/edge/internal/kernel/network/netroute"
)

// Kernel is the routes of the kernel; a *netroute.Driver.
type Kernel interface {
	Routes(ctx context.Context, reset func(), visit func(netroute.Found)) error
	Links(ctx context.Context) ([]netroute.Link, error)
	Watch(ctx context.Context, started func(), handle func(netroute.Event)) error
	Add(ctx context.Context, r netroute.Route) error
	Replace(ctx context.Context, r netroute.Route) error
	Delete(ctx context.Context, r netroute.Route) error
	DeleteForeign(ctx context.Context, f netroute.Found) error
	Restore(ctx context.Context, f netroute.Found) error
	Ours(f netroute.Found) bool
	Ping(ctx context.Context, to netip.Addr, through string) error
}

// maxEvents bounds the queue of kernel events; beyond it they are dropped and all routes are read
// again.
const maxEvents = 8192

// events are the kernel's events since the last reading. Any goroutine may add.
type events struct {
	mu       sync.Mutex
	watching bool
	started  bool // a watch has begun since: whatever happened before is unknown
	lost     bool // there were more than maxEvents
	list     []netroute.Event
}

func (q *events) add(e netroute.Event) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.lost:
	case len(q.list) >= maxEvents:
		q.list, q.lost = nil, true
	default:
		q.list = append(q.list, e)
	}
}

func (q *events) start() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.watching, q.started = true, true
}

func (q *events) isWatching() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.watching
}

func (q *events) take() (list []netroute.Event, started, lost bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	list, started, lost = q.list, q.started, q.lost
	q.list, q.started, q.lost = nil, false, false
	return list, started, lost
}

// kernelProtocol marks the routes that the kernel makes for the networks of its own addresses
// (RTPROT_KERNEL).
const kernelProtocol = 2

// kernelView is the last reading of the kernel state, kept up to date by its events.
type kernelView struct {
	kernel   Kernel
	facts    facts
	gateways []netroute.Hop // of the default routes that aren't ours
	probed   map[netip.Addr]struct{}
	// scannedAt is the time of the last full reading; scanAt that of the next one, zero: at the
	// next event. At least pause passes between two readings, however many events come.
	scannedAt, scanAt time.Time
	pause             time.Duration
	changed           bool // links, gateways or detected hops have changed: every StaticRoute is evaluated again
}

// rescan schedules a full reading at that time, or earlier if one was scheduled before, at a
// limited rate.
func (v *kernelView) rescan(at time.Time) {
	if earliest := v.scannedAt.Add(v.pause); at.Before(earliest) {
		at = earliest
	}
	if v.scanAt.IsZero() || at.Before(v.scanAt) {
		v.scanAt = at
	}
}

func (v *kernelView) scanDue(now time.Time) bool { return !v.scanAt.IsZero() && !now.Before(v.scanAt) }

// reading is one pass over all routes.
type reading struct {
	view      *kernelView
	keys      *keys
	probes    map[netip.Addr]struct{}
	rehearsed map[netroute.Key]struct{}

	have     map[netroute.Key]*keyState
	standing map[netroute.Key][]netroute.Found
	direct   map[string][]netip.Prefix
	detected map[netip.Addr]netroute.Hop
	ranks    map[netip.Addr]rank
	gateways []netroute.Hop
}

// rank orders routes for one address: the longest prefix, then the lowest metric.
type rank struct {
	bits   int
	metric uint32
}

func (r *reading) reset() {
	r.have, r.standing = map[netroute.Key]*keyState{}, map[netroute.Key][]netroute.Found{}
	r.direct, r.gateways = map[string][]netip.Prefix{}, nil
	r.detected, r.ranks = map[netip.Addr]netroute.Hop{}, map[netip.Addr]rank{}
}

func (r *reading) visit(f netroute.Found) {
	ours := r.view.kernel.Ours(f)
	if ours || r.keys.concerns(f.Key) {
		s := r.have[f.Key]
		if s == nil {
			s = &keyState{}
			r.have[f.Key] = s
		}
		if ours {
			s.ours = &f
		} else {
			s.foreign = append(s.foreign, f)
		}
	}
	if _, ok := r.rehearsed[f.Key]; ok && !ours {
		r.standing[f.Key] = append(r.standing[f.Key], f)
	}
	if f.Type == netroute.Unicast && len(f.Hops) == 1 && !f.Hops[0].Gateway.IsValid() {
		r.direct[f.Hops[0].Interface] = append(r.direct[f.Hops[0].Interface], f.Prefix)
	}
	if ours || f.Table != netroute.Main || f.Type != netroute.Unicast || f.Dead {
		return
	}
	if f.Prefix.Bits() == 0 {
		r.gateways = append(r.gateways, f.Hops...)
	}
	r.detect(f)
}

// detect records the next hop of a probe's route.
func (r *reading) detect(f netroute.Found) {
	for probe := range r.probes {
		if !f.Prefix.Contains(probe) || f.Prefix.Addr().Is4() != probe.Is4() {
			continue
		}
		is := rank{f.Prefix.Bits(), f.Metric}
		if was, ok := r.ranks[probe]; ok && (was.bits > is.bits || was.bits == is.bits && was.metric <= is.metric) {
			continue
		}
		r.ranks[probe] = is
		hop := netroute.Hop{Gateway: f.Hops[0].Gateway, Interface: f.Hops[0].Interface, Weight: 1}
		if !hop.Gateway.IsValid() && f.Protocol == kernelProtocol {
			hop.Gateway = probe // on a network of the node, so it is the next hop itself
		}
		r.detected[probe] = hop
	}
}

// scan reads the whole kernel state, and marks the keys that have changed.
func (v *kernelView) scan(ctx context.Context, keys *keys, claims map[string]*claim) error {
	if err := v.readLinks(ctx); err != nil {
		return err
	}
	r := &reading{view: v, keys: keys, probes: probes(claims), rehearsed: rehearsals(claims)}
	if err := v.kernel.Routes(ctx, r.reset, r.visit); err != nil {
		return err
	}
	keys.update(r.have)
	if !slices.Equal(v.gateways, r.gateways) || !maps.Equal(v.facts.detected, r.detected) || !maps.EqualFunc(v.facts.direct, r.direct, slices.Equal) {
		v.changed = true
	}
	v.gateways, v.probed = r.gateways, r.probes
	v.facts.detected, v.facts.standing, v.facts.direct = r.detected, r.standing, r.direct
	v.scannedAt, v.scanAt = time.Now(), time.Time{}
	return nil
}

// probes are the addresses whose next hop is detected.
func probes(claims map[string]*claim) map[netip.Addr]struct{} {
	all := map[netip.Addr]struct{}{}
	for _, c := range claims {
		if c.probe.IsValid() {
			all[c.probe] = struct{}{}
		}
	}
	return all
}

// rehearsals are the keys of StaticRoutes with dryRun.
func rehearsals(claims map[string]*claim) map[netroute.Key]struct{} {
	all := map[netroute.Key]struct{}{}
	for _, c := range claims {
		if c.dryRun && c.invalid == "" {
			all[c.route.Key] = struct{}{}
		}
	}
	return all
}

// readLinks reads the interfaces, and notes which of them changed.
func (v *kernelView) readLinks(ctx context.Context) error {
	links, err := v.kernel.Links(ctx)
	if err != nil {
		return err
	}
	now, own := make(map[string]netroute.Link, len(links)), map[netip.Addr]string{}
	for _, l := range links {
		slices.SortFunc(l.Addresses, func(x, y netip.Prefix) int { return x.Addr().Compare(y.Addr()) })
		now[l.Name] = l
		for _, p := range l.Addresses {
			own[p.Addr()] = l.Name
		}
	}
	same := func(x, y netroute.Link) bool {
		return x.Index == y.Index && x.Up == y.Up && slices.Equal(x.Addresses, y.Addresses)
	}
	if v.facts.versions == nil {
		v.facts.versions = map[string]uint64{}
	}
	for name, l := range now {
		if was, ok := v.facts.links[name]; !ok || !same(was, l) {
			v.facts.versions[name]++
			v.changed = true
		}
	}
	for name := range v.facts.links {
		if _, ok := now[name]; !ok {
			v.facts.versions[name]++
			v.changed = true
		}
	}
	v.facts.links, v.facts.own = now, own
	return nil
}

// onKernelEvent takes one event in.
func (v *kernelView) onKernelEvent(e netroute.Event, keys *keys) {
	if e.Links {
		v.rescan(time.Now())
		return
	}
	if v.kernel.Ours(*e.Route) {
		if !keys.onOurs(e) {
			v.rescan(time.Now()) // the kernel may report it for one hop only
		}
		return
	}
	// Another's: of interest where it has a key of ours, or where it may change the detected
	// gateways.
	if keys.wants(e.Route.Key) || e.Route.Table == netroute.Main && v.leadsToProbes(e.Route.Prefix) {
		v.rescan(time.Now())
	}
}

func (v *kernelView) leadsToProbes(p netip.Prefix) bool {
	if p.Bits() == 0 {
		return true
	}
	for probe := range v.probed {
		if p.Contains(probe) {
			return true
		}
	}
	return false
}
