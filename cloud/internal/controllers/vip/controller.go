package vip

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/rerun"
)

const (
	// gather is how long changes are gathered before a plan is made: a rollout changes many
	// objects at once.
	gather = 200 * time.Millisecond
	// Plans that could not be carried out in full are made again after these times.
	retryMin = 500 * time.Millisecond
	retryMax = 30 * time.Second
)

// Controller makes plans and carries them out.
type Controller struct {
	kube     kubernetes.Interface
	dynamic  dynamic.Interface
	core     *Core
	recorder record.EventRecorder // of the present Run
	guards   *guards

	mu     sync.Mutex
	counts counts
}

type counts struct {
	plans, failures uint64
	pools           []poolCount
}

type poolCount struct {
	name       string
	used, free int64
}

// NewController makes a Controller with cloudcore's own rights. It connects to nothing yet.
func NewController(config *rest.Config, policy Policy) (*Controller, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client of kube-apiserver: %w", err)
	}
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client of kube-apiserver: %w", err)
	}
	return &Controller{kube: client, dynamic: dyn, core: NewCore(policy), guards: newGuards(client, config.Host, policy.Hosts)}, nil
}

// Run plans whenever something changes, until ctx ends.
func (c *Controller) Run(ctx context.Context, stores Stores) error {
	// What the last run of this process remembers is of another leadership; the objects
	// know better.
	c.core = NewCore(c.core.policy)
	events := record.NewBroadcaster(record.WithContext(ctx))
	events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: c.kube.CoreV1().Events(metav1.NamespaceAll)})
	defer events.Shutdown()
	c.recorder = events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "cloudcore"})
	v := newView()
	loop := rerun.New(func(ctx context.Context) (time.Duration, error) { return c.once(ctx, v) },
		rerun.Config{Settle: gather, RetryMin: retryMin, RetryMax: retryMax, Failed: failed})
	defer v.follow(ctx, stores, loop.Wake)()
	if ctx.Err() != nil { // perhaps before all of it was known
		return nil
	}
	ctx, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	wg.Go(func() { c.guards.run(ctx, loop.Wake) })
	loop.Run(ctx)
	return nil
}

func failed(ctx context.Context, err error, retry time.Duration) {
	if !passing(err) {
		klog.FromContext(ctx).Error(err, "Failed to write some virtual IPs, retrying", "in", retry)
	}
}

// passing reports whether an error only says that another writer was first.
func passing(err error) bool {
	return errors.Is(err, errGuardsUnknown) || apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err)
}

// once makes a plan and carries it out, and counts that.
func (c *Controller) once(ctx context.Context, v *view) (again time.Duration, err error) {
	next, err := c.plan(ctx, v)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts.plans++
	if err != nil {
		c.counts.failures++
	}
	if next.IsZero() {
		return 0, err
	}
	return max(time.Until(next), gather), err
}

// plan makes a plan of what the stores show and carries it out. What is given away is decided by
// what kube-apiserver has now: a store may not show yet what the last plan made.
func (c *Controller) plan(ctx context.Context, v *view) (next time.Time, err error) {
	s, err := v.state()
	if err != nil {
		return time.Time{}, err
	}
	protected, known := c.guards.now()
	s.Protected = protected
	cursor := c.core.snapshot()
	p := c.core.Plan(s, time.Now())
	if len(p.Create) > 0 && !known {
		c.core.restore(cursor)
		return time.Time{}, errGuardsUnknown
	}
	if len(p.Create) > 0 {
		c.core.restore(cursor)
		list, err := c.dynamic.Resource(v1alpha1.Resource(v1alpha1.VirtualIPs)).List(ctx, metav1.ListOptions{})
		if err != nil {
			return time.Time{}, fmt.Errorf("listing virtual IPs: %w", err)
		}
		s.VIPs = nil
		for i := range list.Items {
			o := &v1alpha1.VirtualIP{}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[i].Object, o); err != nil {
				return time.Time{}, fmt.Errorf("reading VirtualIP %s: %w", list.Items[i].GetName(), err)
			}
			s.VIPs = append(s.VIPs, o)
		}
		p = c.core.Plan(s, time.Now())
	}
	c.count(s, p)
	return p.Next, c.carryOut(ctx, s, p)
}

// carryOut writes a plan. What fails does not hold back the rest; the next plan has it again.
func (c *Controller) carryOut(ctx context.Context, s State, p Plan) error {
	vips := c.dynamic.Resource(v1alpha1.Resource(v1alpha1.VirtualIPs))
	pools := c.dynamic.Resource(v1alpha1.Resource(v1alpha1.NodePools))
	var errs []error
	write := func(doing, name string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s %s: %w", doing, name, err))
		}
	}
	for _, v := range p.Create {
		u, err := loose(v, "VirtualIP")
		if err == nil {
			_, err = vips.Create(ctx, u, metav1.CreateOptions{})
		}
		write("allocating", v.Name, err)
	}
	for _, v := range slices.Concat(p.Update, p.Free) {
		u, err := loose(v, "VirtualIP")
		if err == nil {
			_, err = vips.Update(ctx, u, metav1.UpdateOptions{})
		}
		write("updating", v.Name, err)
	}
	for _, v := range p.Mark {
		u, err := loose(v, "VirtualIP")
		if err == nil {
			_, err = vips.UpdateStatus(ctx, u, metav1.UpdateOptions{})
		}
		write("updating the status of", v.Name, err)
	}
	for _, v := range p.Delete {
		uid := v.UID
		write("releasing", v.Name, vips.Delete(ctx, v.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}))
	}
	for _, o := range p.Pools {
		u, err := loose(o, "NodePool")
		if err == nil {
			_, err = pools.Update(ctx, u, metav1.UpdateOptions{})
		}
		write("updating NodePool", o.Name, err)
	}
	for _, o := range p.PoolStatus {
		u, err := loose(o, "NodePool")
		if err == nil {
			_, err = pools.UpdateStatus(ctx, u, metav1.UpdateOptions{})
		}
		write("updating the status of NodePool", o.Name, err)
		if err == nil {
			c.tellPool(s, o)
		}
	}
	for _, o := range p.Services {
		_, err := c.kube.CoreV1().Services(o.Namespace).UpdateStatus(ctx, o, metav1.UpdateOptions{})
		write("updating the status of Service", o.Namespace+"/"+o.Name, err)
		if err == nil {
			c.tellService(s, o)
		}
	}
	return errors.Join(errs...)
}

func loose(o runtime.Object, kind string) (*unstructured.Unstructured, error) {
	m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil, fmt.Errorf("writing it down: %w", err)
	}
	u := &unstructured.Unstructured{Object: m}
	u.SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind(kind))
	return u, nil
}

// tellService makes an event of a condition that changed.
func (c *Controller) tellService(s State, o *corev1.Service) {
	i := slices.IndexFunc(s.Services, func(x *corev1.Service) bool { return x.UID == o.UID })
	now := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.VIPAllocated)
	if i < 0 || now == nil {
		return
	}
	was := meta.FindStatusCondition(s.Services[i].Status.Conditions, v1alpha1.VIPAllocated)
	if was != nil && was.Status == now.Status && was.Reason == now.Reason && was.Message == now.Message {
		return
	}
	kind := corev1.EventTypeNormal
	if now.Status != metav1.ConditionTrue {
		kind = corev1.EventTypeWarning
	}
	c.recorder.Event(o, kind, now.Reason, now.Message)
}

// tellPool makes an event of each trouble that began.
func (c *Controller) tellPool(s State, o *v1alpha1.NodePool) {
	i := slices.IndexFunc(s.Pools, func(x *v1alpha1.NodePool) bool { return x.UID == o.UID })
	if i < 0 {
		return
	}
	ref := &corev1.ObjectReference{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "NodePool", Name: o.Name, UID: o.UID}
	for _, now := range o.Status.Conditions {
		bad := now.Status == metav1.ConditionTrue
		if now.Type == v1alpha1.PoolAddressesValid {
			bad = !bad
		}
		was := meta.FindStatusCondition(s.Pools[i].Status.Conditions, now.Type)
		if bad && (was == nil || was.Status != now.Status || was.Message != now.Message) {
			c.recorder.Event(ref, corev1.EventTypeWarning, now.Reason, now.Message)
		}
	}
}

func (c *Controller) count(s State, p Plan) {
	last := map[string]*v1alpha1.NodePool{}
	for _, o := range slices.Concat(s.Pools, p.PoolStatus) {
		last[o.Name] = o
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts.pools = nil
	for _, o := range last {
		c.counts.pools = append(c.counts.pools, poolCount{o.Name, o.Status.Used, o.Status.Free})
	}
}

// Describe implements prometheus.Collector.
func (c *Controller) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect implements prometheus.Collector.
func (c *Controller) Collect(ch chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	addresses := prometheus.NewDesc("skerry_vip_pool_addresses", "Addresses of a NodePool, by whether virtual IPs have them.", []string{"pool", "state"}, nil)
	for _, p := range c.counts.pools {
		ch <- prometheus.MustNewConstMetric(addresses, prometheus.GaugeValue, float64(p.used), p.name, "used")
		ch <- prometheus.MustNewConstMetric(addresses, prometheus.GaugeValue, float64(p.free), p.name, "free")
	}
	plans := prometheus.NewDesc("skerry_vip_plans_total", "Plans for virtual IPs that this replica made, by whether all of it could be written.", []string{"result"}, nil)
	ch <- prometheus.MustNewConstMetric(plans, prometheus.CounterValue, float64(c.counts.plans-c.counts.failures), "written")
	ch <- prometheus.MustNewConstMetric(plans, prometheus.CounterValue, float64(c.counts.failures), "failed")
}
