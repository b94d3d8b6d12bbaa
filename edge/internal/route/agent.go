// Package route gives this node the kernel routes that StaticRoutes want.
//
// It owns the decision: which StaticRoute is for this node, which of two wins, what must not be covered, when a route is put back, how slowly, and when it
// is taken back because it cut the node off. It refuses to act before it knows what the cloud wants, from the store if need be: not knowing never removes
// a route. The kernel is edge/internal/kernel/netroute's; the objects come from the edge API and are there without a cloud.
//
// One goroutine, the loop of Run, decides and acts; whatever else happens is put into its inbox. The bounds of the inbox: one entry an object, and maxEvents
// events of the kernel, above which everything is read anew.
package route

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/edge/internal/kernel/netroute"
	"github.com/skerry-io/skerry/edge/internal/object"
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

// State keeps what the agent must find again after a restart.
type State interface {
	Load() (map[string][]byte, error)
	Save(ctx context.Context, changes map[string][]byte) error // nil deletes; on the disk when it returns
}

// Reporter tells the cloud how an object is on this node; metamanager's outbox.
type Reporter interface {
	Report(ctx context.Context, ref object.Ref, uid types.UID, body []byte) error
}

// Tools are what the agent works with while it runs.
type Tools struct {
	Kernel Kernel
	Events record.EventRecorder // of this node; nil: none
	Close  func()
}

// Config is what the agent needs. What is zero of the rest has the default that is given here.
type Config struct {
	NodeName string
	BootID   string // tells one boot of the device from another
	// Open opens what a run needs; its Close is called when the run ends.
	Open     func(ctx context.Context) (Tools, error)
	State    State
	Reporter Reporter
	API      *rest.Config // of the edge API, in the process
	Hub      message.Name // of the module that has the link, for asking whether the cloud still answers; "" for none
	// Protected are the networks of edgecore.yaml that no StaticRoute may cover.
	Protected []netip.Prefix
	// Cloud are the addresses of cloudcore that the configuration names; those that links were opened to are remembered besides.
	Cloud []netip.Addr

	FullCheck    time.Duration // everything is read and compared in about this interval; 60 s
	ProbeTimeout time.Duration // how long the cloud and the gateway may be silent after a change before it is taken back; 10 s
	ConfirmAfter time.Duration // how long the kernel's own word on a change is waited for before everything is read; 2 s
	ScanPause    time.Duration // at least this lies between two full readings, however many events come; 250 ms
}

func (c *Config) defaults() {
	or := func(d *time.Duration, standard time.Duration) {
		if *d == 0 {
			*d = standard
		}
	}
	or(&c.FullCheck, time.Minute)
	or(&c.ProbeTimeout, 10*time.Second)
	or(&c.ConfirmAfter, 2*time.Second)
	or(&c.ScanPause, 250*time.Millisecond)
}

// slot is what the agent knows of one key: what the kernel has there, and what came of the last attempt to change it. Guarded by the loop.
type slot struct {
	ours    *netroute.Found
	foreign []netroute.Found

	want    netroute.Route // last wished
	wished  bool           // want is set
	wrote   time.Time      // of a change whose effect has not been read back yet; zero: none
	settled bool           // the kernel has had want, so its absence is somebody's doing
	last    netroute.Found // as it was then
	links   uint64         // the state of its links then; see Agent.linkState
	drift   drift
	bad     *verdict // why it is not as wished; nil: it is, or it is under way
	owner   string   // the StaticRoute that holds the key
	version int64    // its generation then
}

// Agent is the module.
type Agent struct {
	config  Config
	inbox   *inbox
	metrics *metrics
	status  statusBox

	tools Tools // of this run

	world // the loop's alone
}

// world is what a run of the agent knows. A new run begins with none of it: all of it can be read again.
type world struct {
	node     *corev1.Node // nil: not known yet
	labels   labels.Set
	known    bool // the objects are known: from here on routes that nobody wants are removed
	ranges   []netip.Prefix
	linked   bool
	ask      func(ctx context.Context) error // asks the cloud for anything, over the link
	claims   map[string]*claim
	placed   map[string]*claim         // as it stands in byKey
	byKey    map[netroute.Key][]*claim // those that compete, the winner first
	slots    map[netroute.Key]*slot
	records  map[string]*recordOf
	clouds   []netip.Addr // where links were opened to, the newest first
	facts    facts
	probed   map[netip.Addr]struct{}           // the probes that were looked for in the last reading
	standing map[netroute.Key][]netroute.Found // somebody else's routes that are in the way of a rehearsal
	gateways []netroute.Hop                    // of the default routes that aren't ours
	versions map[string]uint64                 // of an interface: grows when it changes
	dirty    map[string]struct{}               // objects
	touched  map[netroute.Key]struct{}
	timed    map[netroute.Key]struct{} // slots for which something is due at some time
	mute     map[netip.Addr]time.Time  // gateways that did not answer, and until when they are not asked
	all      bool                      // everything is dirty
	scanAt   time.Time
	scanned  time.Time
	watching bool
	nodeUID  types.UID // of the node that the records were reported for
}

// kernelProtocol marks the routes that the kernel makes for the networks of its own addresses (RTPROT_KERNEL).
const kernelProtocol = 2

// maxClouds is how many addresses of cloudcore are remembered.
const maxClouds = 8

// New makes the agent. It starts nothing.
func New(config Config) *Agent {
	config.defaults()
	return &Agent{config: config, inbox: newInbox(), metrics: newMetrics(), world: newWorld()}
}

func newWorld() world {
	return world{
		claims: map[string]*claim{}, placed: map[string]*claim{}, byKey: map[netroute.Key][]*claim{}, slots: map[netroute.Key]*slot{},
		records: map[string]*recordOf{}, versions: map[string]uint64{}, dirty: map[string]struct{}{}, touched: map[netroute.Key]struct{}{},
		timed: map[netroute.Key]struct{}{}, mute: map[netip.Addr]time.Time{},
	}
}

// loop takes what is in the inbox, and acts, until ctx ends.
func (a *Agent) loop(ctx context.Context, ready func()) error {
	if err := a.load(); err != nil {
		return err
	}
	a.all = true
	check := time.NewTimer(a.fullCheck())
	defer check.Stop()
	for {
		wait := a.next()
		var timer <-chan time.Time
		var t *time.Timer
		if wait >= 0 {
			t = time.NewTimer(wait)
			timer = t.C
		}
		select {
		case <-ctx.Done():
		case <-a.inbox.wake:
		case <-timer:
		case <-check.C:
			a.rescan(time.Now())
			a.all = true
			check.Reset(a.fullCheck())
		}
		if t != nil {
			t.Stop()
		}
		if ctx.Err() != nil {
			return nil
		}
		a.take(ctx)
		if err := a.pass(ctx); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			klog.FromContext(ctx).Error(err, "Routes could not be looked after; they will be again")
			a.rescan(time.Now().Add(time.Second))
		}
		if a.status.wait(a.missing()); a.missing() == nil {
			ready()
		}
	}
}

func (a *Agent) fullCheck() time.Duration {
	return a.config.FullCheck*9/10 + rand.N(a.config.FullCheck/5+1)
}

// rescan asks for everything to be read at that time, or earlier if that was asked before, but not too often.
func (a *Agent) rescan(at time.Time) {
	if earliest := a.scanned.Add(a.config.ScanPause); at.Before(earliest) {
		at = earliest
	}
	if a.scanAt.IsZero() || at.Before(a.scanAt) {
		a.scanAt = at
	}
}

// next is how long nothing is due; negative: nothing ever is.
func (a *Agent) next() time.Duration {
	if !a.watching {
		return -1
	}
	var soonest time.Time
	at := func(t time.Time) {
		if !t.IsZero() && (soonest.IsZero() || t.Before(soonest)) {
			soonest = t
		}
	}
	at(a.scanAt)
	for key := range a.timed {
		s := a.slots[key]
		if !s.wrote.IsZero() {
			at(s.wrote.Add(a.config.ConfirmAfter))
		}
		at(s.due())
	}
	for _, r := range a.records {
		at(r.retry)
	}
	if soonest.IsZero() {
		return -1
	}
	return max(0, time.Until(soonest))
}

// take moves what happened into the loop's own state.
func (a *Agent) take(ctx context.Context) {
	news := a.inbox.take()
	for name, o := range news.objects {
		if o == nil {
			delete(a.claims, name)
		} else {
			c := read(o)
			if old := a.claims[name]; c.unresolved && !c.deleting && old != nil && old.uid == c.uid {
				continue // as it was, until it is known who is in the pool that it names now
			}
			a.claims[name] = c
		}
		a.dirty[name] = struct{}{}
	}
	if news.known && !a.known {
		a.known, a.all = true, true
		for name := range a.records { // of objects that went while this process did not run
			a.dirty[name] = struct{}{}
		}
	}
	if n := news.node; n != nil {
		if a.node == nil || !maps.Equal(a.labels, n.Labels) || !slices.Equal(a.node.Spec.PodCIDRs, n.Spec.PodCIDRs) {
			a.all = true
		}
		a.meetNode(ctx, n)
	}
	if news.ranges != nil && !slices.Equal(a.ranges, *news.ranges) {
		a.ranges, a.all = *news.ranges, true
	}
	if news.link != nil {
		a.linked = news.link.up
		if news.link.up {
			a.meetCloud(ctx, news.link.remote)
		}
	}
	if news.watching != nil {
		a.watching = *news.watching
		if a.watching {
			a.scanned = time.Time{} // whatever happened before is unknown
			a.rescan(time.Now())
		}
	}
	if news.lost {
		a.rescan(time.Now())
	}
	for _, e := range news.events {
		a.hear(e)
	}
}

// selected reports whether a route is for this node. While it is not known who is in the route's pool, nodes that have it keep it and no other takes it.
func (a *Agent) selected(c *claim) bool {
	if c.unresolved {
		r := a.records[c.name]
		return r != nil && r.UID == c.uid
	}
	return c.selects(a.labels)
}

// hear takes an event of the kernel in.
func (a *Agent) hear(e netroute.Event) {
	if e.Links {
		a.rescan(time.Now())
		return
	}
	key := e.Route.Key
	s := a.slots[key]
	if a.tools.Kernel.Ours(*e.Route) {
		if s == nil {
			s = &slot{}
			a.slots[key] = s
		}
		switch {
		case !e.Gone:
			s.ours = e.Route
		case s.ours == nil || len(s.ours.Hops) <= 1 || e.Route.Satisfies(s.ours.Route):
			s.ours = nil
		default:
			a.rescan(time.Now()) // the kernel may tell of one hop alone
		}
		a.touched[key] = struct{}{}
		return
	}
	// Somebody else's: of interest where it has a key of ours, or where it may change the detected gateways.
	if s != nil && s.wished || key.Table == netroute.Main && a.mattersToProbes(key.Prefix) {
		a.rescan(time.Now())
	}
}

func (a *Agent) mattersToProbes(p netip.Prefix) bool {
	if p.Bits() == 0 {
		return true
	}
	for probe := range a.probes() {
		if p.Contains(probe) {
			return true
		}
	}
	return false
}

func (a *Agent) probes() map[netip.Addr]struct{} {
	all := map[netip.Addr]struct{}{}
	for _, c := range a.claims {
		if c.probe.IsValid() {
			all[c.probe] = struct{}{}
		}
	}
	return all
}

// rehearsals are the keys of StaticRoutes with dryRun.
func (a *Agent) rehearsals() map[netroute.Key]struct{} {
	all := map[netroute.Key]struct{}{}
	for _, c := range a.claims {
		if c.dryRun && c.invalid == "" {
			all[c.route.Key] = struct{}{}
		}
	}
	return all
}

// unprobed reports whether a StaticRoute needs something that was not looked for in the last reading.
func (a *Agent) unprobed() bool {
	for name := range a.dirty {
		c := a.claims[name]
		if c == nil || c.invalid != "" {
			continue
		}
		if _, ok := a.probed[c.probe]; c.probe.IsValid() && !ok {
			return true
		}
		if c.dryRun && !a.all {
			return true
		}
	}
	return false
}

// scan reads everything the kernel has.
func (a *Agent) scan(ctx context.Context) error {
	if err := a.readLinks(ctx); err != nil {
		return err
	}
	probes, rehearsed := a.probes(), a.rehearsals()
	type best struct {
		bits   int
		metric uint32
	}
	var have map[netroute.Key]*slot
	var detected map[netip.Addr]netroute.Hop
	var rank map[netip.Addr]best
	var gateways []netroute.Hop
	var standing map[netroute.Key][]netroute.Found
	reset := func() {
		standing = map[netroute.Key][]netroute.Found{}
		have, detected, rank, gateways = map[netroute.Key]*slot{}, map[netip.Addr]netroute.Hop{}, map[netip.Addr]best{}, nil
	}
	visit := func(f netroute.Found) {
		ours := a.tools.Kernel.Ours(f)
		known := a.slots[f.Key]
		if ours || known != nil && known.wished || len(a.byKey[f.Key]) > 0 {
			s := have[f.Key]
			if s == nil {
				s = &slot{}
				have[f.Key] = s
			}
			if ours {
				s.ours = &f
			} else {
				s.foreign = append(s.foreign, f)
			}
		}
		if _, ok := rehearsed[f.Key]; ok && !ours {
			standing[f.Key] = append(standing[f.Key], f)
		}
		if ours || f.Table != netroute.Main || f.Type != netroute.Unicast || f.Dead {
			return
		}
		if f.Prefix.Bits() == 0 {
			gateways = append(gateways, f.Hops...)
		}
		for probe := range probes {
			if !f.Prefix.Contains(probe) || f.Prefix.Addr().Is4() != probe.Is4() {
				continue
			}
			is := best{f.Prefix.Bits(), f.Metric}
			was, ok := rank[probe]
			if ok && (was.bits > is.bits || was.bits == is.bits && was.metric <= is.metric) {
				continue
			}
			rank[probe] = is
			hop := netroute.Hop{Gateway: f.Hops[0].Gateway, Interface: f.Hops[0].Interface, Weight: 1}
			if !hop.Gateway.IsValid() && f.Protocol == kernelProtocol {
				hop.Gateway = probe // on a network of the node, so it is the next hop itself
			}
			detected[probe] = hop
		}
	}
	if err := a.tools.Kernel.Routes(ctx, reset, visit); err != nil {
		return err
	}
	for key, s := range a.slots {
		now := have[key]
		if now == nil {
			now = &slot{}
		}
		if !sameFound(s.ours, now.ours) || len(s.foreign) != len(now.foreign) {
			a.touched[key] = struct{}{}
		}
		s.ours, s.foreign = now.ours, now.foreign
		delete(have, key)
	}
	for key, s := range have {
		a.slots[key] = s
		a.touched[key] = struct{}{}
	}
	if !slices.Equal(a.gateways, gateways) || !maps.Equal(a.facts.detected, detected) {
		a.all = true
	}
	a.gateways, a.facts.detected, a.probed, a.standing = gateways, detected, probes, standing
	a.scanned, a.scanAt = time.Now(), time.Time{}
	return nil
}

func sameFound(a, b *netroute.Found) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Dead == b.Dead && a.Satisfies(b.Route) && b.Satisfies(a.Route)
}

// readLinks reads the interfaces, and notes which of them changed.
func (a *Agent) readLinks(ctx context.Context) error {
	links, err := a.tools.Kernel.Links(ctx)
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
	for name, l := range now {
		if was, ok := a.facts.links[name]; !ok || !same(was, l) {
			a.versions[name]++
			a.all = true
		}
	}
	for name := range a.facts.links {
		if _, ok := now[name]; !ok {
			a.versions[name]++
			a.all = true
		}
	}
	a.facts.links, a.facts.own = now, own
	return nil
}

// linkState sums up the changes of the interfaces of a route: when it is another than before, the kernel itself may have dropped the route.
func (a *Agent) linkState(f netroute.Found) uint64 {
	sum := uint64(0)
	for _, h := range f.Hops {
		sum += a.versions[h.Interface]
	}
	return sum
}

// guards are the networks that must not be covered, as they are now.
func (a *Agent) guards() []Guard {
	all := builtin()
	host := func(ip netip.Addr, why string) {
		if ip.IsValid() {
			ip = ip.WithZone("")
			all = append(all, Guard{netip.PrefixFrom(ip, ip.BitLen()), why})
		}
	}
	for _, p := range a.config.Protected {
		all = append(all, Guard{p, "which edgecore.yaml protects"})
	}
	for _, ip := range a.config.Cloud {
		host(ip, "the address of cloudcore")
	}
	for _, ip := range a.clouds {
		host(ip, "the address of cloudcore")
	}
	for _, name := range slices.Sorted(maps.Keys(a.facts.links)) {
		for _, p := range a.facts.links[name].Addresses {
			host(p.Addr(), "this node's own address on "+name)
		}
	}
	for _, h := range a.gateways {
		host(h.Gateway, "this node's gateway")
	}
	if a.node != nil {
		for _, text := range a.node.Spec.PodCIDRs {
			if p, err := netip.ParsePrefix(text); err == nil {
				all = append(all, Guard{p, "the range of this node's pods"})
			}
		}
	}
	for _, p := range a.ranges {
		all = append(all, Guard{p, "a range of Services"})
	}
	return all
}

// meetCloud remembers where the link goes.
func (a *Agent) meetCloud(ctx context.Context, remote netip.Addr) {
	if !remote.IsValid() || len(a.clouds) > 0 && a.clouds[0] == remote {
		return
	}
	was := slices.Contains(a.clouds, remote)
	a.clouds = append([]netip.Addr{remote}, slices.DeleteFunc(a.clouds, func(x netip.Addr) bool { return x == remote })...)
	a.clouds = a.clouds[:min(len(a.clouds), maxClouds)]
	a.all = a.all || !was
	if err := a.saveCommon(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "The cloud's address could not be kept", "address", remote)
	}
}

// meetNode takes the node's object in. Another one of the same name means that the cloud has forgotten what was reported of the old.
func (a *Agent) meetNode(ctx context.Context, n *corev1.Node) {
	a.node, a.labels = n, labels.Set(n.Labels)
	if a.nodeUID == n.UID {
		return
	}
	if a.nodeUID != "" {
		for name, r := range a.records {
			r.Told = false
			a.dirty[name] = struct{}{}
		}
	}
	a.nodeUID = n.UID
	if err := a.saveCommon(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "The node's identity could not be kept")
	}
}

var errNotYet = errors.New("not known yet")

func (a *Agent) missing() error {
	switch {
	case !a.watching:
		return fmt.Errorf("the kernel's routes: %w", errNotYet)
	case !a.known:
		return fmt.Errorf("which routes the cloud wants: %w", errNotYet)
	case a.node == nil:
		return fmt.Errorf("this node's labels: %w", errNotYet)
	}
	return nil
}
