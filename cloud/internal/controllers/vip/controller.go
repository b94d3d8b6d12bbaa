package vip

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/cloud/internal/controllers/controller"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

const (
	// gather is how long changes are gathered before a plan is made: a rollout changes many
	// objects at once.
	gather = 200 * time.Millisecond
	// Plans that could not be carried out in full are made again after these times.
	retryMin = 500 * time.Millisecond
	retryMax = 30 * time.Second
	// planTimeout bounds all writes of a plan: one write for each virtual IP of a large pool.
	planTimeout = 10 * time.Minute
)

// Controller makes plans and carries them out.
type Controller struct {
	policy Policy
	guards *guards

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

// NewController makes a Controller with cloudcore's own rights. It does not connect yet.
func NewController(client *kube.Client, policy Policy) *Controller {
	return &Controller{policy: policy, guards: newGuards(client.Kubernetes(), client.Config().Host, policy.Hosts)}
}

// Config is how the controller runs.
func (c *Controller) Config() controller.Config {
	return controller.Config{Name: "virtualips", Settle: gather, RetryMin: retryMin, RetryMax: retryMax, Timeout: planTimeout, Start: c.start}
}

// run is one leadership. The Core is new: the memory of an earlier one of this process is outdated.
type run struct {
	*Controller
	*view
	core        *Core
	vipKind     *controller.Kind[v1alpha1.VirtualIP]
	poolKind    *controller.Kind[v1alpha1.NodePool]
	serviceKind *controller.Kind[corev1.Service]
}

func (c *Controller) start(_ context.Context, r *controller.Run) (controller.Work, error) {
	v := &run{
		Controller: c, view: newView(r), core: NewCore(c.policy),
		vipKind:     controller.Of[v1alpha1.VirtualIP](r, v1alpha1.Resource(v1alpha1.VirtualIPs)),
		poolKind:    controller.Of[v1alpha1.NodePool](r, v1alpha1.Resource(v1alpha1.NodePools)),
		serviceKind: controller.Of[corev1.Service](r, corev1.SchemeGroupVersion.WithResource("services")),
	}
	r.Go(func(ctx context.Context) { c.guards.run(ctx, r.Wake) })
	return controller.Level(v.once), nil
}

// once makes a plan and carries it out, and counts that.
func (v *run) once(ctx context.Context) (again time.Duration, err error) {
	next, err := v.plan(ctx)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.counts.plans++
	if err != nil {
		v.counts.failures++
	}
	if next.IsZero() {
		return 0, err
	}
	return max(time.Until(next), gather), err
}

// plan makes a plan from the stores and carries it out. Allocations are decided by kube-apiserver's
// current objects: a store may not show yet what the last plan made.
func (v *run) plan(ctx context.Context) (next time.Time, err error) {
	s, err := v.state()
	if err != nil {
		return time.Time{}, err
	}
	protected, known := v.guards.now()
	s.Protected = protected
	cursor := v.core.snapshot()
	p := v.core.Plan(s, time.Now())
	if len(p.Create) > 0 && !known {
		v.core.restore(cursor)
		return time.Time{}, controller.NotYet(errGuardsUnknown)
	}
	if len(p.Create) > 0 {
		v.core.restore(cursor)
		live, _, err := v.vipKind.ListLive(ctx, false)
		if err != nil {
			return time.Time{}, err
		}
		s.VIPs = nil
		for i := range live {
			s.VIPs = append(s.VIPs, &live[i])
		}
		p = v.core.Plan(s, time.Now())
	}
	v.count(s, p)
	return p.Next, v.carryOut(ctx, s, p)
}

// carryOut writes a plan. A failed write does not hold back the others; the next plan repeats it.
func (v *run) carryOut(ctx context.Context, s State, p Plan) error {
	var errs []error
	for _, o := range p.Create {
		errs = append(errs, v.vipKind.Create(ctx, o))
	}
	for _, o := range slices.Concat(p.Update, p.Free) {
		errs = append(errs, v.vipKind.Update(ctx, o))
	}
	for _, o := range p.Mark {
		errs = append(errs, v.vipKind.UpdateStatus(ctx, o))
	}
	for _, o := range p.Delete {
		errs = append(errs, v.vipKind.Delete(ctx, o))
	}
	for _, o := range p.Pools {
		errs = append(errs, v.poolKind.Update(ctx, o))
	}
	for _, o := range p.PoolStatus {
		err := v.poolKind.UpdateStatus(ctx, o)
		if err == nil {
			v.tellPool(s, o)
		}
		errs = append(errs, err)
	}
	for _, o := range p.Services {
		err := v.serviceKind.UpdateStatus(ctx, o)
		if err == nil {
			v.tellService(s, o)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// tellService makes an event of a condition that changed.
func (v *run) tellService(s State, o *corev1.Service) {
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
	v.serviceKind.Event(o, kind, now.Reason, now.Message)
}

// tellPool records an event for each new problem.
func (v *run) tellPool(s State, o *v1alpha1.NodePool) {
	i := slices.IndexFunc(s.Pools, func(x *v1alpha1.NodePool) bool { return x.UID == o.UID })
	if i < 0 {
		return
	}
	for _, now := range o.Status.Conditions {
		bad := now.Status == metav1.ConditionTrue
		if now.Type == v1alpha1.PoolAddressesValid {
			bad = !bad
		}
		was := meta.FindStatusCondition(s.Pools[i].Status.Conditions, now.Type)
		if bad && (was == nil || was.Status != now.Status || was.Message != now.Message) {
			v.poolKind.Event(o, corev1.EventTypeWarning, now.Reason, now.Message)
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
	addresses := prometheus.NewDesc("skerry_vip_pool_addresses", "Addresses of a NodePool, by whether virtual IPs use them.", []string{"pool", "state"}, nil)
	for _, p := range c.counts.pools {
		ch <- prometheus.MustNewConstMetric(addresses, prometheus.GaugeValue, float64(p.used), p.name, "used")
		ch <- prometheus.MustNewConstMetric(addresses, prometheus.GaugeValue, float64(p.free), p.name, "free")
	}
	plans := prometheus.NewDesc("skerry_vip_plans_total", "Plans for virtual IPs of this replica, by whether all writes succeeded.", []string{"result"}, nil)
	ch <- prometheus.MustNewConstMetric(plans, prometheus.CounterValue, float64(c.counts.plans-c.counts.failures), "written")
	ch <- prometheus.MustNewConstMetric(plans, prometheus.CounterValue, float64(c.counts.failures), "failed")
}
