package drain

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// Progress has the callbacks of a running attempt, called from several goroutines.
type Progress struct {
	Blocked func([]v1alpha1.BlockedPod) // all pods that are blocked, whenever they change
	Evicted func(*corev1.Pod)           // a pod whose eviction was accepted
}

// Attempt evicts the pods and waits until they are gone, for at most timeout.
func (w *Worker) Attempt(ctx context.Context, timeout time.Duration, progress Progress) Result {
	parent := ctx
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	a := &attempt{
		worker: w, progress: progress, came: map[string]int{}, seen: map[types.UID]struct{}{},
		blocked: map[types.NamespacedName]v1alpha1.BlockedPod{},
	}
	err := a.run(context.WithValue(ctx, observedKey{}, a))
	res := Result{Blocked: a.list()}
	switch {
	case err == nil:
		return Result{}
	case parent.Err() != nil:
	case a.noResponse != nil && (ctx.Err() == nil || a.hung):
		res.Interrupted, err = true, a.noResponse
	case a.refused && ctx.Err() == nil:
		res.Unauthorized = true
	case ctx.Err() != nil:
		err = fmt.Errorf("not done within %v: %w", timeout, err)
	}
	res.Err = err
	return res
}

// attempt is one attempt. It evicts with a goroutine per pod, so their results are guarded.
type attempt struct {
	worker   *Worker
	progress Progress

	came     map[string]int // how often a pod of this kind was recreated
	seen     map[types.UID]struct{}
	replaced bool // a controller may replace an evicted pod

	mu         sync.Mutex
	blocked    map[types.NamespacedName]v1alpha1.BlockedPod
	noResponse error // why an answer was missing
	hung       bool  // the attempt's time was over while one was waited for
	refused    bool  // by 401 or 403
}

func (a *attempt) run(ctx context.Context) error {
	for waited := false; ; {
		pods, err := a.worker.leaving(ctx)
		switch {
		case err != nil:
			return err
		case len(pods) == 0 && (waited || !a.replaced):
			return nil
		case len(pods) == 0:
			switch err := sleep(ctx, replacement); {
			case errors.Is(err, context.DeadlineExceeded):
				return nil // the attempt's time is over, and no pod is left
			case err != nil:
				return fmt.Errorf("waiting whether a controller brings a pod back: %w", err)
			}
			waited = true
			continue
		}
		waited = false
		if err := a.returned(pods); err != nil {
			return err
		}
		// A goroutine a pod, and no fewer: a budget may hold any of them for as long as the attempt
		// lasts. A node's pods are bounded by its kubelet's maxPods.
		ends := make(chan error, len(pods))
		for _, pod := range pods {
			go func() { ends <- a.remove(ctx, &pod) }()
		}
		var errs []error
		for range pods {
			errs = append(errs, <-ends)
		}
		if err := utilerrors.NewAggregate(errs); err != nil { // in one line, which a status can hold
			return err
		}
	}
}

// leaving lists the pods of the node that a drain evicts, by the rules of `kubectl drain --force
// --ignore-daemonsets --delete-emptydir-data`: all but those that a DaemonSet or a file on the node
// would bring back at once.
func (w *Worker) leaving(ctx context.Context) ([]corev1.Pod, error) {
	var pods []corev1.Pod
	var errs []error
	o := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", w.node).String(), Limit: podsPage}
	for {
		list, err := w.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, o)
		if err != nil {
			return nil, fmt.Errorf("listing the node's pods: %w", plain(err))
		}
		for _, pod := range list.Items {
			stays, err := w.stays(ctx, &pod)
			switch {
			case err != nil:
				errs = append(errs, fmt.Errorf("reading the DaemonSet of %s/%s: %w", pod.Namespace, pod.Name, plain(err)))
			case !stays:
				pods = append(pods, pod)
			}
		}
		if o.Continue = list.Continue; o.Continue == "" {
			return pods, utilerrors.NewAggregate(errs)
		}
	}
}

// replacement is the time after the last pod's end for a controller to recreate one that has
// spec.nodeName: a node with such a pod is not drained, and would be rebooted under it. The
// ReplicaSet controller acts on a deletion at once, or when it has the time.
const replacement = 5 * time.Second

// podsPage is as many pods as are asked for at once.
const podsPage = 500

// stays reports whether a drain leaves a pod alone.
func (w *Worker) stays(ctx context.Context, pod *corev1.Pod) (bool, error) {
	if _, static := pod.Annotations[corev1.MirrorPodAnnotationKey]; static {
		return true, nil
	}
	owner := metav1.GetControllerOf(pod)
	over := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	if over || owner == nil || owner.Kind != "DaemonSet" || owner.APIVersion != appsv1.SchemeGroupVersion.String() {
		return false, nil
	}
	_, err := w.client.AppsV1().DaemonSets(pod.Namespace).Get(ctx, owner.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil // an orphan: no controller brings it back
	}
	return err == nil, err
}

// remove evicts a pod, again and again while a budget holds it, and waits until it has gone.
func (a *attempt) remove(ctx context.Context, pod *corev1.Pod) error {
	for {
		wait, err := a.evict(ctx, pod)
		if err != nil {
			return fmt.Errorf("evicting %s/%s: %w", pod.Namespace, pod.Name, plain(err))
		}
		if wait == 0 {
			break
		}
		if err := sleep(ctx, wait); err != nil {
			return fmt.Errorf("evicting %s/%s: %w", pod.Namespace, pod.Name, err)
		}
		if now, err := a.worker.pod(ctx, pod); err == nil { // else the next eviction will show
			pod = now
		}
	}
	for since := time.Now(); ; {
		now, err := a.worker.pod(ctx, pod)
		switch {
		case apierrors.IsNotFound(err) || err == nil && now.UID != pod.UID:
			a.clear(pod)
			klog.FromContext(ctx).Info("Removed a pod from the node", "nodedrain-step", "evict-progress", "pod", klog.KObj(pod))
			return nil
		case err != nil:
			return fmt.Errorf("waiting for the end of %s/%s: %w", pod.Namespace, pod.Name, plain(err))
		}
		if period := gracePeriod(now); time.Since(since) > period+a.worker.retryDelay {
			a.block(now, v1alpha1.BlockedTerminating, "", stuck(now, period))
		}
		if err := sleep(ctx, gonePoll); err != nil {
			return fmt.Errorf("waiting for the end of %s/%s: %w", pod.Namespace, pod.Name, err)
		}
	}
}

// gracePeriod is how long a pod may take to end.
func gracePeriod(pod *corev1.Pod) time.Duration {
	for _, seconds := range []*int64{pod.DeletionGracePeriodSeconds, pod.Spec.TerminationGracePeriodSeconds} {
		if seconds != nil {
			return time.Duration(*seconds) * time.Second
		}
	}
	return corev1.DefaultTerminationGracePeriodSeconds * time.Second
}

// stuck describes a pod that does not end.
func stuck(pod *corev1.Pod, period time.Duration) string {
	text := fmt.Sprintf("its eviction was accepted, and it has not gone within its grace period of %v", period)
	if len(pod.Finalizers) > 0 {
		return text + "; finalizers: " + strings.Join(pod.Finalizers, ", ")
	}
	return text
}

// gonePoll is the interval of checks of an evicted pod: its grace period is seconds at least.
const gonePoll = time.Second

// evict asks for the eviction of a pod once. It returns after how long to ask again; 0 where the
// pod is going, or has gone.
func (a *attempt) evict(ctx context.Context, pod *corev1.Pod) (again time.Duration, err error) {
	// policy/v1 is in every Kubernetes since 1.22.
	eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}, DeleteOptions: &metav1.DeleteOptions{}}
	err = a.worker.client.PolicyV1().Evictions(pod.Namespace).Evict(ctx, eviction)
	switch {
	case err == nil:
		a.progress.Evicted(pod)
		fallthrough
	case apierrors.IsNotFound(err):
		a.clear(pod)
		return 0, nil
	case noAnswer(err) || ctx.Err() != nil:
		return 0, err
	case apierrors.IsTooManyRequests(err) && !apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause):
		return a.worker.retryDelay, nil // the API is busy
	}
	reason := v1alpha1.BlockedFailed
	if apierrors.IsTooManyRequests(err) {
		reason = v1alpha1.BlockedByBudget
	}
	if a.block(pod, reason, a.worker.budgets(ctx, pod), err.Error()) {
		klog.FromContext(ctx).Info("Failed to evict a pod", "nodedrain-step", "evict-error", "pod", klog.KObj(pod), "reason", reason, "err", plain(err))
	}
	switch ending := apierrors.IsForbidden(err) && apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause); {
	case reason == v1alpha1.BlockedByBudget:
		return a.worker.retryDelay, nil
	case ending && pod.DeletionTimestamp != nil:
		return 0, nil // in a terminating namespace evictions fail, and all pods are deleted
	case ending:
		return a.worker.retryDelay, nil // until it is
	}
	return 0, err
}

// pod reads a pod of this node. A node that gets a pod by its name receives 403 once the pod is
// deleted: the Node authorizer has no relationship then. It may always list its own pods.
func (w *Worker) pod(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	list, err := w.client.CoreV1().Pods(pod.Namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.Set{"metadata.name": pod.Name, "spec.nodeName": w.node}.String(),
	})
	if err != nil {
		return nil, err
	}
	if len(list.Items) == 0 {
		return nil, apierrors.NewNotFound(corev1.Resource("pods"), pod.Name)
	}
	return &list.Items[0], nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// returned looks for pods that come back as fast as they go: only an explicit spec.nodeName brings
// a pod to a node that is cordoned.
func (a *attempt) returned(pods []corev1.Pod) error {
	first := len(a.seen) == 0
	var pinned []string
	counted := map[string]bool{}
	for _, pod := range pods {
		if _, known := a.seen[pod.UID]; known {
			continue
		}
		a.seen[pod.UID] = struct{}{}
		a.replaced = a.replaced || metav1.GetControllerOf(&pod) != nil
		key := lineage(&pod)
		if _, before := a.came[key]; first || !before {
			a.came[key] = 0
			continue
		}
		if !counted[key] {
			a.came[key]++
			counted[key] = true
		}
		if a.came[key] >= maxComebacks {
			a.block(&pod, v1alpha1.BlockedPinned, "", "it carries spec.nodeName and comes back as often as it is evicted")
			pinned = append(pinned, pod.Namespace+"/"+pod.Name)
		}
	}
	if len(pinned) > 0 {
		return fmt.Errorf("pinned to this node by spec.nodeName: %s", strings.Join(pinned, ", "))
	}
	return nil
}

// lineage is the same for a pod and for the one that replaces it.
func lineage(pod *corev1.Pod) string {
	if c := metav1.GetControllerOf(pod); c != nil {
		return string(c.UID)
	}
	return pod.Namespace + "/" + pod.Name
}

// observe records whether an answer shows that the API is reachable. A cancelled request is no
// evidence, unless it had waited for as long as the interval between evictions: then the attempt's
// time ended after the link.
func (a *attempt) observe(ctx context.Context, answer *http.Response, err error, took time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		if took >= a.worker.retryDelay {
			a.hung = true
			a.noResponse = fmt.Errorf("the link to the cloud gave no answer within %v", took.Round(time.Second))
		}
	case err != nil:
		a.noResponse = err
	case slices.Contains([]int{http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout}, answer.StatusCode):
		a.noResponse = fmt.Errorf("the way to kube-apiserver is closed: %d %s", answer.StatusCode, http.StatusText(answer.StatusCode))
	case answer.StatusCode == http.StatusUnauthorized || answer.StatusCode == http.StatusForbidden:
		a.refused = true
	}
}

func (a *attempt) block(pod *corev1.Pod, reason v1alpha1.BlockedReason, pdb, message string) (changed bool) {
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage], "")
	}
	key := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
	b := v1alpha1.BlockedPod{Namespace: pod.Namespace, Name: pod.Name, Reason: reason, PDB: pdb, Message: message}
	a.mu.Lock()
	if was := a.blocked[key]; b.PDB == "" && was.Reason == reason {
		b.PDB = was.PDB // it could not be read again: the attempt's time may be over
	}
	changed = a.blocked[key] != b
	a.blocked[key] = b
	a.mu.Unlock()
	if changed {
		a.progress.Blocked(a.list())
	}
	return changed
}

func (a *attempt) clear(pod *corev1.Pod) {
	key := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
	a.mu.Lock()
	_, was := a.blocked[key]
	delete(a.blocked, key)
	a.mu.Unlock()
	if was {
		a.progress.Blocked(a.list())
	}
}

// list is the pods that are blocked, in order, as many as a status holds.
func (a *attempt) list() []v1alpha1.BlockedPod {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := make([]v1alpha1.BlockedPod, 0, len(a.blocked))
	for _, b := range a.blocked {
		all = append(all, b)
	}
	slices.SortFunc(all, func(x, y v1alpha1.BlockedPod) int {
		return strings.Compare(x.Namespace+"/"+x.Name, y.Namespace+"/"+y.Name)
	})
	return all[:min(len(all), maxBlocked)]
}

// budgets names the PodDisruptionBudgets that cover a pod; "" where they can't be read.
func (w *Worker) budgets(ctx context.Context, pod *corev1.Pod) string {
	all, err := w.client.PolicyV1().PodDisruptionBudgets(pod.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		klog.FromContext(ctx).Info("Failed to list PodDisruptionBudgets", "nodedrain-step", "evict-error", "err", plain(err))
		return ""
	}
	var names []string
	for _, pdb := range all.Items {
		selector, err := metav1.LabelSelectorAsSelector(pdb.Spec.Selector)
		if err == nil && selector.Matches(labels.Set(pod.Labels)) {
			names = append(names, pdb.Name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}
