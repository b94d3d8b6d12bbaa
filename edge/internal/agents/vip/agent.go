package vip

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/agent"
	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/balance"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/acd"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/keepalived"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netif"
)

// New makes an Agent.
func New(cfg Config) *Agent {
	if cfg.Interfaces == nil {
		cfg.Interfaces = netif.List
	}
	if cfg.Watch == nil {
		cfg.Watch = netif.Watch
	}
	if cfg.Probe == nil {
		cfg.Probe = acd.Probe
	}
	cfg.Times = cfg.Times.complete()
	if cfg.Monitor == nil {
		cfg.Monitor = acd.Monitor
	}
	a := &Agent{
		cfg: cfg, entries: map[string]reported{}, held: map[string]holding{}, untaken: map[string]time.Time{}, releases: map[string]*release{},
		transitions: map[string]uint64{},
	}
	a.Module = agent.New(agent.Config{
		Name: Name, NodeName: cfg.NodeName, API: cfg.API, Reporter: cfg.Reporter, Events: cfg.Events, Start: a.start, Resync: resync,
	})
	return a
}

// start begins one run: its watches and its goroutines besides Sync.
func (a *Agent) start(_ context.Context, kit *agent.Run) (agent.Sync, error) {
	if err := a.load(); err != nil {
		return nil, err
	}
	r := &run{
		Agent: a, kit: kit, first: map[types.UID]time.Time{}, ready: map[string]bool{}, readySince: map[string]time.Time{}, probe: newConflictProbe(),
	}
	var err error
	r.vips, err = agent.Watch(kit, v1alpha1.Resource(v1alpha1.VirtualIPs), &v1alpha1.VirtualIP{}, agent.Selection{Labels: v1alpha1.VIPNodeLabel(a.cfg.NodeName)})
	if err != nil {
		return nil, err
	}
	// Each look at the kernel runs iptables some times: a device that serves no address is spared
	// that at every change of a pod.
	served := func() bool { return r.vips.Len() > 0 }
	r.pods, err = agent.Watch(kit, corev1.SchemeGroupVersion.WithResource("pods"), &corev1.Pod{},
		agent.Selection{Fields: "spec.nodeName=" + a.cfg.NodeName, Wakes: served})
	if err != nil {
		return nil, err
	}
	adverts := newAdvertLog(a.cfg.Monitor, kit.Wake)
	r.trial = &trial{ask: a.cfg.Ask, wake: kit.Wake, most: a.cfg.Times.Answer}
	r.claims, r.linked = a.cfg.Probation.Of("virtual IP", kit.Wake), map[types.UID]bool{}
	if a.cfg.Ask == nil && a.cfg.Hub != "" {
		r.trial.ask = r.askCloud
	}
	a.mu.Lock()
	a.adverts, a.kit = adverts, kit
	a.mu.Unlock()
	kit.Go(a.cfg.Elector.Run)
	kit.Go(func(ctx context.Context) error { return r.probe.run(ctx, a.cfg.Probe, kit.Wake) })
	kit.Go(func(ctx context.Context) error { return a.cfg.Watch(ctx, kit.Wake) })
	kit.Go(func(ctx context.Context) error { return r.followElections(ctx) })
	kit.Cleanup(adverts.stop)
	kit.Cleanup(r.trial.wg.Wait)
	return r.sync, nil
}

// followElections wakes Sync whenever an election changed.
func (r *run) followElections(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.cfg.Elector.Changed():
			r.kit.Wake()
		}
	}
}

// cloudsMost bounds the addresses of cloudcore that are remembered; the oldest go first.
const cloudsMost = 8

// meetCloud records the address of the link: no virtual IP may have it.
func (r *run) meetCloud(ctx context.Context) error {
	ip := r.kit.Link().Link.Address.WithZone("")
	if !ip.IsValid() {
		return nil // there was no link yet, or it is of a transport without addresses
	}
	r.mu.Lock()
	known := len(r.memory.Clouds) > 0 && r.memory.Clouds[0] == ip
	r.mu.Unlock()
	if known {
		return nil
	}
	err := r.change(ctx, func(m *memory) {
		others := slices.DeleteFunc(slices.Clone(m.Clouds), func(x netip.Addr) bool { return x == ip })
		m.Clouds = append([]netip.Addr{ip}, others[:min(len(others), cloudsMost-1)]...)
	})
	if err != nil {
		return fmt.Errorf("keeping the cloud's address %s: %w", ip, err)
	}
	return nil
}

// askCloud sends a request that every node is allowed, end to end over the link. Any answer will
// do.
func (r *run) askCloud(ctx context.Context) error {
	q := &topicpb.APIRequest{Method: http.MethodGet, Path: "/version", Accept: runtime.ContentTypeJSON}
	if end, ok := ctx.Deadline(); ok {
		q.TimeoutMillis = time.Until(end).Milliseconds()
	}
	_, err := r.kit.Ask(ctx, r.cfg.Hub, topic.APIRequest.New(message.Resource{}, q))
	return err
}

// facts gathers the node's state.
func (r *run) facts(interfaces []netif.Interface, vips []*v1alpha1.VirtualIP) Facts {
	f := Facts{
		Node: r.cfg.NodeName, VIPs: vips, Pods: r.pods.List(), Interfaces: interfaces, PreBootContainers: map[string]bool{}, Untaken: map[string]bool{},
		Withheld: r.withheldNow(), Adverts: r.adverts.latest(time.Now()),
	}
	if r.cfg.Guards != nil {
		f.Guards = r.cfg.Guards()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	f.Maintenance, f.Draining = r.memory.Maintenance, r.memory.Draining || r.leaving
	for _, ip := range r.memory.Clouds {
		f.Guards = append(f.Guards, Guard{Prefix: netip.PrefixFrom(ip, ip.BitLen()), Why: "the address of cloudcore"})
	}
	for _, id := range r.memory.PreBootContainers {
		f.PreBootContainers[id] = true
	}
	for name, until := range r.untaken {
		if f.Untaken[name] = time.Now().Before(until); !f.Untaken[name] {
			delete(r.untaken, name)
		}
	}
	return f
}

// sync reconciles; again is the time until the next call, 0 for no deadline.
func (r *run) sync(ctx context.Context) (again time.Duration, err error) {
	errs := []error{r.recordPreBoot(ctx), r.meetCloud(ctx)}
	interfaces, err := r.cfg.Interfaces()
	if err != nil {
		return 0, errors.Join(append(errs, err)...)
	}
	vips := r.vips.List()
	r.mu.Lock()
	ordered := r.ordered
	r.mu.Unlock()
	f := r.facts(interfaces, vips)
	f.New, again = r.elections(vips, time.Now())
	roles := Roles(f)
	r.listen(ctx, roles)
	errs = append(errs, r.conflicts(ctx, roles, &again))
	if soon := r.followReleases(ctx, roles, time.Now()); soon > 0 && (again == 0 || soon < again) {
		again = soon
	}
	programmed, applied := r.apply(ctx, roles)
	errs = append(errs, programmed, applied, r.cfg.Elector.ExtraProblem())
	for _, since := range r.readySince {
		if left := settle - time.Since(since); left > 0 && (again == 0 || left < again) {
			again = left
		}
	}
	errs = append(errs, r.tryNew(ctx, roles))
	r.applied(vips, roles)
	soon, reported := r.report(ctx, f, roles, errors.Join(programmed, applied))
	if soon > 0 && (again == 0 || soon < again) {
		again = soon
	}
	errs = append(errs, reported)
	r.mu.Lock()
	r.looked = ordered
	r.mu.Unlock()
	return again, errors.Join(errs...)
}

// listen monitors VRRP on the interfaces of addresses.
func (r *run) listen(ctx context.Context, roles []Role) {
	interfaces := map[string]bool{}
	for _, role := range roles {
		if role.Fault == "" {
			interfaces[role.Instance.Interface] = true
		}
	}
	r.adverts.follow(ctx, interfaces)
}

// apply makes the drivers carry out the roles. In this order no packet arrives where it is not
// served: first the addresses that can't be served are released, then the data plane is prepared,
// then the node takes part in elections.
func (r *run) apply(ctx context.Context, roles []Role) (programmed, applied error) {
	var errs []error
	held := map[string]holding{}
	for _, role := range roles {
		if role.Fault == "" && role.VIP.Spec.SharesElectionOf == "" {
			held[role.VIP.Name] = role.holding()
			if !role.Ready {
				errs = append(errs, r.stand(role.Instance.Name, false))
			}
		}
	}
	r.mu.Lock()
	r.held = held
	r.mu.Unlock()
	var services []balance.Service
	for _, role := range roles {
		if role.Fault == "" {
			services = append(services, role.Service)
		}
	}
	programmed = r.cfg.Plane.Apply(ctx, services)
	if programmed != nil {
		programmed = fmt.Errorf("the data plane %s: %w", r.cfg.Plane.Name(), programmed)
	}
	wanted := instances(roles)
	applied = r.cfg.Elector.Apply(ctx, wanted)
	if programmed == nil {
		for _, h := range held {
			if h.ready {
				errs = append(errs, r.stand(h.election, true))
			}
		}
	}
	known := map[string]bool{}
	for _, i := range wanted {
		known[i.Name] = true
	}
	for name := range r.ready {
		if !known[name] {
			delete(r.ready, name)
			delete(r.readySince, name)
		}
	}
	return programmed, errors.Join(append(errs, applied)...)
}

// stand sets whether the node may hold the address of an election.
func (r *run) stand(name string, ready bool) error {
	if was, known := r.ready[name]; known && was == ready {
		return nil
	}
	if err := r.cfg.Elector.SetReady(name, ready); err != nil {
		return err
	}
	r.ready[name] = ready
	delete(r.readySince, name)
	if ready {
		r.readySince[name] = time.Now()
	}
	return nil
}

// elections finds the addresses that no node has held yet, according to the objects, and that are
// new to this run. For a node that has held it once the first election is over: it does not take it
// back.
func (r *run) elections(vips []*v1alpha1.VirtualIP, now time.Time) (fresh map[string]bool, again time.Duration) {
	fresh = map[string]bool{}
	seen := map[types.UID]bool{}
	states := r.cfg.Elector.States()
	for _, v := range vips {
		seen[v.UID] = true
		if states[instanceName(cmp.Or(v.Spec.SharesElectionOf, v.Name))] == keepalived.Master {
			r.first[v.UID] = now.Add(-firstElection)
		}
		since, known := r.first[v.UID]
		if !known {
			since = now
			if v.Spec.Elected {
				since = now.Add(-firstElection)
			}
			r.first[v.UID] = since
		}
		if left := firstElection - now.Sub(since); left > 0 {
			fresh[v.Name] = true
			if again == 0 || left < again {
				again = left
			}
		}
	}
	for uid := range r.first {
		if !seen[uid] {
			delete(r.first, uid)
		}
	}
	return fresh, again
}
