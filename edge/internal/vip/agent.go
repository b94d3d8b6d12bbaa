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

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/kernel/balance"
	"github.com/skerry-io/skerry/edge/internal/kernel/keepalived"
	"github.com/skerry-io/skerry/edge/internal/kernel/netif"
	"github.com/skerry-io/skerry/edge/internal/linkstate"
)

// Run implements beehive.Module.
func (a *Agent) Run(ctx context.Context, port *beehive.Port) error {
	if err := a.load(); err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(a.cfg.API)
	if err != nil {
		return fmt.Errorf("making the client for pods: %w", err)
	}
	dyn, err := dynamic.NewForConfig(a.cfg.API)
	if err != nil {
		return fmt.Errorf("making the client for virtual IPs: %w", err)
	}
	podFactory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", a.cfg.NodeName).String()
	}))
	vipFactory := dynamicinformer.NewFilteredDynamicSharedInformerFactory(dyn, 0, metav1.NamespaceAll, func(o *metav1.ListOptions) {
		o.LabelSelector = v1alpha1.VIPNodeLabel(a.cfg.NodeName)
	})
	pods := podFactory.Core().V1().Pods().Informer()
	vips := vipFactory.ForResource(v1alpha1.Resource(v1alpha1.VirtualIPs))
	addresses := vips.Informer()
	served := func() { // each look at the kernel runs iptables some times: a device that serves no address is spared that at every change of a pod
		if len(addresses.GetStore().ListKeys()) > 0 {
			a.poke()
		}
	}
	for informer, tell := range map[cache.SharedIndexInformer]func(){pods: served, addresses: a.poke} {
		told := cache.ResourceEventHandlerFuncs{AddFunc: func(any) { tell() }, UpdateFunc: func(any, any) { tell() }, DeleteFunc: func(any) { tell() }}
		if _, err := informer.AddEventHandler(told); err != nil {
			return fmt.Errorf("watching: %w", err)
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	c := newConflictProbe()
	adverts := newAdvertLog(a.cfg.Monitor, a.poke)
	a.mu.Lock()
	a.adverts = adverts
	a.mu.Unlock()
	ask := a.cfg.Ask
	if ask == nil && a.cfg.Hub != "" {
		ask = func(ctx context.Context) error { return a.askCloud(ctx, port) }
	}
	g.Go(func() error { return a.cfg.Elector.Run(ctx) })
	g.Go(func() error { return c.run(ctx, a.cfg.Probe, a.poke) })
	g.Go(func() error { return a.cfg.Watch(ctx, a.poke) })
	g.Go(func() error { return a.receive(ctx, port) })
	g.Go(func() error {
		podFactory.StartWithContext(ctx)
		vipFactory.Start(ctx.Done())
		defer podFactory.Shutdown()
		defer vipFactory.Shutdown()
		// Ready at once: the objects may have to come from the cloud, and others don't wait for that.
		port.Ready()
		if !cache.WaitForCacheSync(ctx.Done(), pods.HasSynced, addresses.HasSynced) {
			return nil
		}
		r := &run{
			Agent: a, vips: vips.Lister(), pods: pods.GetIndexer(), first: map[types.UID]time.Time{}, ready: map[string]bool{}, readySince: map[string]time.Time{},
			probe: c, trial: &trial{ask: ask, wake: a.poke},
		}
		defer r.trial.wg.Wait()
		defer adverts.stop()
		if a.cfg.Events != nil {
			events, done, err := a.cfg.Events(ctx)
			if err != nil {
				return err
			}
			defer done()
			r.events = events
		}
		return r.serve(ctx)
	})
	return g.Wait()
}

// receive hears of the link.
func (a *Agent) receive(ctx context.Context, port *beehive.Port) error {
	for {
		m, err := port.Receive(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		if m.Key() == linkstate.Up.Key() {
			up, err := linkstate.Up.Content(m)
			if err != nil {
				return err
			}
			if err := a.meetCloud(ctx, up.Remote); err != nil {
				klog.FromContext(ctx).Error(err, "The cloud's address could not be kept", "address", up.Remote)
			}
		}
		a.poke()
	}
}

// cloudsMost bounds the addresses of cloudcore that are remembered; the oldest go first.
const cloudsMost = 8

// meetCloud remembers where the link goes: no virtual IP may be there.
func (a *Agent) meetCloud(ctx context.Context, remote string) error {
	at, err := netip.ParseAddrPort(remote)
	if err != nil {
		return nil // of a transport without addresses
	}
	ip := at.Addr().Unmap().WithZone("")
	a.mu.Lock()
	known := len(a.memory.Clouds) > 0 && a.memory.Clouds[0] == ip
	a.mu.Unlock()
	if known {
		return nil
	}
	return a.change(ctx, func(m *memory) {
		others := slices.DeleteFunc(slices.Clone(m.Clouds), func(x netip.Addr) bool { return x == ip })
		m.Clouds = append([]netip.Addr{ip}, others[:min(len(others), cloudsMost-1)]...)
	})
}

// askCloud asks for something that every node may know, end to end over the link. Any answer will do.
func (a *Agent) askCloud(ctx context.Context, port *beehive.Port) error {
	q := &topicpb.APIRequest{Method: http.MethodGet, Path: "/version", Accept: runtime.ContentTypeJSON}
	if end, ok := ctx.Deadline(); ok {
		q.TimeoutMillis = time.Until(end).Milliseconds()
	}
	_, err := port.SendSync(ctx, a.cfg.Hub, topic.APIRequest.New(message.Resource{}, q))
	return err
}

func (r *run) serve(ctx context.Context) error {
	if err := r.recordPreBoot(ctx); err != nil {
		return err
	}
	log := klog.FromContext(ctx)
	retry := retryMin
	for {
		again, err := r.sync(ctx)
		if ctx.Err() != nil {
			return nil
		}
		wait := resync
		if err != nil {
			log.Error(err, "Serving virtual IPs failed in part; it is tried again", "in", retry)
			wait, retry = retry, min(2*retry, retryMax)
		} else {
			retry = retryMin
		}
		if again > 0 {
			wait = min(wait, again)
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-r.wake:
		case <-r.cfg.Elector.Changed():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// facts gathers what the node knows.
func (r *run) facts(interfaces []netif.Interface, vips []*v1alpha1.VirtualIP) Facts {
	f := Facts{
		Node: r.cfg.NodeName, VIPs: vips, Pods: r.listPods(), Interfaces: interfaces, PreBootContainers: map[string]bool{}, Untaken: map[string]bool{},
		Withheld: r.withheldNow(), Adverts: r.adverts.latest(time.Now()),
	}
	if r.cfg.Guards != nil {
		f.Guards = r.cfg.Guards()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	f.Maintenance, f.Draining = r.memory.Maintenance, r.memory.Draining || r.leaving
	for _, ip := range r.memory.Clouds {
		f.Guards = append(f.Guards, Guard{netip.PrefixFrom(ip, ip.BitLen()), "the address of cloudcore"})
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

// sync makes everything as it should be; again says when to look next, 0 for no hurry.
func (r *run) sync(ctx context.Context) (again time.Duration, err error) {
	vips, err := r.listVIPs()
	errs := []error{err}
	interfaces, err := r.cfg.Interfaces()
	if err != nil {
		return 0, errors.Join(append(errs, err)...)
	}
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
	errs = append(errs, r.tryNew(ctx, roles), r.report(ctx, f, roles, errors.Join(programmed, applied)))
	err = errors.Join(errs...)
	r.mu.Lock()
	r.problem, r.looked = err, ordered
	r.counts.syncs++
	if err != nil {
		r.counts.failures++
	}
	r.mu.Unlock()
	return again, err
}

// listen hears VRRP on the interfaces that addresses are on.
func (r *run) listen(ctx context.Context, roles []Role) {
	interfaces := map[string]bool{}
	for _, role := range roles {
		if role.Fault == "" {
			interfaces[role.Instance.Interface] = true
		}
	}
	r.adverts.follow(ctx, interfaces)
}

// apply has the drivers do what the roles say. In this order no packet comes to where it is not served: first
// what can't be served is given up, then the data plane is prepared, then the node stands.
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

// stand says whether the node may hold the address of an election.
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

// elections finds the addresses that nobody has held yet, as far as the objects say, and that are new to this run. For a node that has held it once the first election
// is over: it does not take it back.
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
