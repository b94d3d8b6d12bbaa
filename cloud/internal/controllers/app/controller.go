package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/skerry-io/skerry/cloud/internal/controllers/controller"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

const (
	workers = 4
	// evictAgain is the delay before an eviction that a PodDisruptionBudget refused is retried.
	evictAgain = 10 * time.Second
)

// Controller makes plans and carries them out.
type Controller struct {
	fencer Fencer

	failovers, refusals, detached prometheus.Counter
}

// NewController makes a Controller.
func NewController(fencer Fencer) *Controller {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "skerry", Subsystem: "app", Name: name, Help: help})
	}
	return &Controller{
		fencer:    fencer,
		failovers: counter("failovers_total", "Failovers of applications, not counting returns to the designated node."),
		refusals:  counter("failovers_refused_total", "Failovers refused because of the application's volumes."),
		detached:  counter("detached_total", "VolumeAttachments of dead nodes that were deleted."),
	}
}

// Describe implements prometheus.Collector.
func (c *Controller) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect implements prometheus.Collector.
func (c *Controller) Collect(ch chan<- prometheus.Metric) {
	c.failovers.Collect(ch)
	c.refusals.Collect(ch)
	c.detached.Collect(ch)
}

// Config is how the controller runs.
func (c *Controller) Config() controller.Config {
	return controller.Config{Name: "edgeapps", Start: func(_ context.Context, r *controller.Run) (controller.Work, error) {
		v, err := newView(r)
		if err != nil {
			return controller.Work{}, err
		}
		return controller.Keyed(workers, (&run{Controller: c, view: v, kube: r.Kubernetes()}).once), nil
	}}
}

// run is one leadership.
type run struct {
	*Controller
	view *view
	kube kubernetes.Interface
}

// once plans for one application and carries the plan out. The status is written first: an action
// recorded there is done at most once, and it is true of the version that was read.
func (r *run) once(ctx context.Context, key kube.Key) (next time.Duration, err error) {
	s, err := r.view.state(ctx, key, r.fencer)
	if err != nil || s == nil {
		return 0, err
	}
	now := time.Now()
	p, err := s.Plan(now)
	if err != nil {
		return 0, err
	}
	app := s.App
	if p.Status != nil {
		app = app.DeepCopy()
		app.Status = *p.Status
		if err := r.view.apps.UpdateStatus(ctx, app); err != nil {
			return 0, err
		}
	}
	r.view.takenIn(key, s.Removed)
	r.count(p)
	for _, e := range p.Events {
		kind := corev1.EventTypeNormal
		if e.Warning {
			kind = corev1.EventTypeWarning
		}
		r.view.apps.Event(app, kind, e.Reason, e.Message)
	}
	next = p.Next
	if p.Evict != nil {
		again, err := r.evict(ctx, app, p.Evict)
		if err != nil {
			return 0, err
		}
		if again > 0 && (next == 0 || again < next) {
			next = again
		}
	}
	return next, r.reject(ctx, app, r.carryOut(ctx, s, p))
}

// reject reports objects that kube-apiserver rejects as invalid: a retry is useless before the
// object changes.
func (r *run) reject(ctx context.Context, app *v1alpha1.EdgeApp, err error) error {
	if err == nil || controller.ClassOf(err) != controller.Rejected {
		return err
	}
	status := app.Status.DeepCopy()
	if Rejected(app, status, err.Error(), time.Now()) {
		app = app.DeepCopy()
		app.Status = *status
		if err := r.view.apps.UpdateStatus(ctx, app); err != nil {
			return err
		}
		r.view.apps.Event(app, corev1.EventTypeWarning, reasonRejected, err.Error())
	}
	return err
}

func (r *run) count(p *Plan) {
	if p.Failover {
		r.failovers.Inc()
	}
	if p.Refused {
		r.refusals.Inc()
	}
}

// carryOut makes a plan's changes. A failed change does not hold back the others, but a pod is not
// removed before its volumes are detached.
func (r *run) carryOut(ctx context.Context, s *State, p *Plan) error {
	var errs []error
	failed := func(doing, name string, err error) bool {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s %s: %w", doing, name, err))
			return true
		}
		return false
	}
	for _, c := range p.Claims {
		_, err := r.kube.CoreV1().PersistentVolumeClaims(c.Namespace).Create(ctx, c, metav1.CreateOptions{})
		failed("creating claim", c.Name, err)
	}
	if p.Apply != nil {
		failed("writing ReplicaSet", p.Apply.Name, r.apply(ctx, s, p))
	}
	detached := true
	for _, a := range p.Detach {
		err := r.kube.StorageV1().VolumeAttachments().Delete(ctx, a.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(a.UID))})
		if failed("removing VolumeAttachment", a.Name, ignoreNotFound(err)) {
			detached = false
		} else if err == nil {
			r.detached.Inc()
		}
	}
	for _, d := range p.Delete {
		if d.Force && !detached {
			continue
		}
		o := metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(d.Pod.UID))}
		if d.Force {
			zero := int64(0)
			o.GracePeriodSeconds = &zero
		}
		failed("deleting pod", d.Pod.Name, ignoreNotFound(r.kube.CoreV1().Pods(d.Pod.Namespace).Delete(ctx, d.Pod.Name, o)))
	}
	if p.Admit != nil {
		failed("admitting pod", p.Admit.Name, r.admit(ctx, p.Admit))
	}
	return errors.Join(errs...)
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (r *run) apply(ctx context.Context, s *State, p *Plan) error {
	sets := r.kube.AppsV1().ReplicaSets(p.Apply.Namespace)
	if s.ReplicaSet == nil {
		_, err := sets.Create(ctx, p.Apply, metav1.CreateOptions{})
		return err
	}
	set := s.ReplicaSet.DeepCopy()
	set.Labels, set.Spec.Replicas, set.Spec.Template = p.Apply.Labels, p.Apply.Spec.Replicas, p.Apply.Spec.Template
	_, err := sets.Update(ctx, set, metav1.UpdateOptions{})
	return err
}

// admit takes the application's gate from a pod.
func (r *run) admit(ctx context.Context, pod *corev1.Pod) error {
	pod = pod.DeepCopy()
	var gates []corev1.PodSchedulingGate
	for _, g := range pod.Spec.SchedulingGates {
		if g.Name != v1alpha1.EdgeAppGate {
			gates = append(gates, g)
		}
	}
	pod.Spec.SchedulingGates = gates
	_, err := r.kube.CoreV1().Pods(pod.Namespace).Update(ctx, pod, metav1.UpdateOptions{})
	return err
}

// evict asks for the pod's eviction. A PodDisruptionBudget that refuses is reported in the status.
func (r *run) evict(ctx context.Context, app *v1alpha1.EdgeApp, pod *corev1.Pod) (again time.Duration, err error) {
	err = r.kube.PolicyV1().Evictions(pod.Namespace).Evict(ctx, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))},
	})
	if !apierrors.IsTooManyRequests(err) {
		return 0, err
	}
	status := app.Status.DeepCopy()
	if Blocked(app, status, "the application is not returned to its designated node: "+err.Error(), time.Now()) {
		app = app.DeepCopy()
		app.Status = *status
		if err := r.view.apps.UpdateStatus(ctx, app); err != nil {
			return 0, err
		}
	}
	return evictAgain, nil
}
