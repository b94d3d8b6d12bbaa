package vip

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/kernel/acd"
	"github.com/skerry-io/skerry/edge/internal/kernel/balance"
	"github.com/skerry-io/skerry/edge/internal/kernel/keepalived"
	"github.com/skerry-io/skerry/edge/internal/kernel/netif"
	"github.com/skerry-io/skerry/edge/internal/object"
)

// Name is the module's.
const Name message.Name = "vip"

const (
	// resync is how often everything is looked at although nothing was told: interfaces come and go, others meddle with rules.
	resync = 30 * time.Second
	// firstElection is for how long the highest priority may take a new address from whoever was first.
	firstElection = 15 * time.Second
	// retryMin and retryMax bound the waits after a failure.
	retryMin = time.Second
	retryMax = 30 * time.Second
	// settle is for how long a fault is not believed after the elector was told that an instance may stand: it looks up what it was told first.
	settle = 2 * time.Second
)

// Elector is what holds elections: *keepalived.Daemon.
type Elector interface {
	Run(ctx context.Context) error
	Apply(ctx context.Context, instances []keepalived.Instance) error
	SetReady(name string, ready bool) error
	States() map[string]keepalived.State
	Changed() <-chan struct{}
	ExtraProblem() error
	Restarts() uint64
}

// Plane is what carries traffic: *iptables.Plane or *ipvs.Plane.
type Plane interface {
	Name() string
	Apply(ctx context.Context, want []balance.Service) error
}

// Reporter brings a node's entry to the cloud, now or later: *meta.Manager.
type Reporter interface {
	Report(ctx context.Context, ref object.Ref, uid types.UID, body []byte) error
}

// Memory is what outlives a restart: a few bytes in the store.
type Memory interface {
	Load() ([]byte, error)
	Save(ctx context.Context, state []byte) error
}

// Config is what an Agent needs.
type Config struct {
	NodeName string
	// API leads to the edge API.
	API      *rest.Config
	Elector  Elector
	Plane    Plane
	Reporter Reporter
	Memory   Memory
	// Events opens the recorder of events for one run; nil for none.
	Events func(ctx context.Context) (events record.EventRecorder, done func(), err error)
	// Interfaces lists the device's; default netif.List.
	Interfaces func() ([]netif.Interface, error)
	// Probe finds out who on an interface's LAN has an address already; default acd.Probe.
	Probe func(ctx context.Context, iface string, targets []acd.Target) (taken map[netip.Addr]net.HardwareAddr, err error)
	// BootID tells one boot from another, and BootTime when this one was, by the present clock.
	BootID   string
	BootTime func() time.Time
}

// Agent is the module.
type Agent struct {
	cfg    Config
	wake   chan struct{}
	orders sync.Mutex // held while memory is changed

	mu      sync.Mutex
	memory  memory
	loaded  bool
	entries map[string]reported // by name
	problem error
	counts  counts
}

type reported struct {
	uid     types.UID
	service v1alpha1.VirtualIPService
	address string
	pool    string
	entry   v1alpha1.VirtualIPNodeStatus
	sent    bool
}

// New makes an Agent. It starts nothing.
func New(cfg Config) *Agent {
	if cfg.Interfaces == nil {
		cfg.Interfaces = netif.List
	}
	if cfg.Probe == nil {
		cfg.Probe = acd.Probe
	}
	return &Agent{cfg: cfg, wake: make(chan struct{}, 1), entries: map[string]reported{}, counts: counts{transitions: map[string]uint64{}}}
}

// Name implements beehive.Module.
func (*Agent) Name() message.Name { return Name }

func (a *Agent) poke() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// run is one run of the Agent; one goroutine owns it.
type run struct {
	*Agent
	vips  cache.GenericLister
	pods  cache.Indexer
	first map[types.UID]time.Time // when a new address was first seen
	ready map[string]bool         // what the elector was told
	// stood is since when an instance may stand: for a moment after that its state is still the one of before.
	stood map[string]time.Time
	clear *clearing
	// events may be nil.
	events record.EventRecorder
}

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
	c := newClearing()
	g.Go(func() error { return a.cfg.Elector.Run(ctx) })
	g.Go(func() error { return c.run(ctx, a.cfg.Probe, a.poke) })
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
		r := &run{Agent: a, vips: vips.Lister(), pods: pods.GetIndexer(), first: map[types.UID]time.Time{}, ready: map[string]bool{}, stood: map[string]time.Time{}, clear: c}
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

func (r *run) serve(ctx context.Context) error {
	if err := r.bury(ctx); err != nil {
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

func (r *run) listPods() []*corev1.Pod {
	var out []*corev1.Pod
	for _, o := range r.pods.List() {
		if p, ok := o.(*corev1.Pod); ok {
			out = append(out, p)
		}
	}
	return out
}

func (r *run) listVIPs() ([]*v1alpha1.VirtualIP, error) {
	all, err := r.vips.List(everything())
	if err != nil {
		return nil, fmt.Errorf("listing virtual IPs: %w", err)
	}
	var out []*v1alpha1.VirtualIP
	var errs []error
	for _, o := range all {
		u, ok := o.(*unstructured.Unstructured)
		if !ok {
			continue
		}
		v := &v1alpha1.VirtualIP{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, v); err != nil {
			errs = append(errs, fmt.Errorf("reading VirtualIP %s: %w", u.GetName(), err))
			continue
		}
		out = append(out, v)
	}
	return out, errors.Join(errs...)
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
	f := Facts{Node: r.cfg.NodeName, VIPs: vips, Pods: r.listPods(), Interfaces: interfaces, Maintenance: r.memory.Maintenance || r.memory.Draining, Dead: map[string]bool{}}
	for _, id := range r.memory.Dead {
		f.Dead[id] = true
	}
	r.mu.Unlock()
	f.New, again = r.elections(vips, time.Now())
	roles := Roles(f)
	errs = append(errs, r.hold(ctx, roles, &again))

	// In this order no packet comes to where it is not served: first give up what can't be served, then prepare, then stand.
	for _, role := range roles {
		if role.Fault == "" && !role.Ready {
			errs = append(errs, r.tell(role.Instance.Name, false))
		}
	}
	var services []balance.Service
	var instances []keepalived.Instance
	for _, role := range roles {
		if role.Fault == "" {
			services = append(services, role.Service)
			instances = append(instances, role.Instance)
		}
	}
	programmed := r.cfg.Plane.Apply(ctx, services)
	if programmed != nil {
		programmed = fmt.Errorf("the data plane %s: %w", r.cfg.Plane.Name(), programmed)
	}
	applied := r.cfg.Elector.Apply(ctx, instances)
	extra := r.cfg.Elector.ExtraProblem()
	errs = append(errs, programmed, applied, extra)
	if programmed == nil {
		for _, role := range roles {
			if role.Fault == "" && role.Ready {
				errs = append(errs, r.tell(role.Instance.Name, true))
			}
		}
	}
	known := map[string]bool{}
	for _, i := range instances {
		known[i.Name] = true
	}
	for name := range r.ready {
		if !known[name] {
			delete(r.ready, name)
			delete(r.stood, name)
		}
	}
	for _, since := range r.stood {
		if left := settle - time.Since(since); left > 0 && (again == 0 || left < again) {
			again = left
		}
	}
	errs = append(errs, r.report(ctx, f, roles, errors.Join(programmed, applied)))
	err = errors.Join(errs...)
	r.mu.Lock()
	r.problem = err
	r.counts.syncs++
	if err != nil {
		r.counts.failures++
	}
	r.mu.Unlock()
	return again, err
}

func (r *run) tell(name string, ready bool) error {
	if was, told := r.ready[name]; told && was == ready {
		return nil
	}
	if err := r.cfg.Elector.SetReady(name, ready); err != nil {
		return err
	}
	r.ready[name] = ready
	delete(r.stood, name)
	if ready {
		r.stood[name] = time.Now()
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
		if states[instanceName(v)] == keepalived.Master {
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
