package drain

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	policyclient "k8s.io/client-go/kubernetes/typed/policy/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/kubectl/pkg/drain"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

const (
	maxBlocked   = 100
	maxMessage   = 512 // of what the API says of one pod
	maxComebacks = 2   // a pod that came back as often in one attempt is pinned
)

// Worker does to the node what the core decides, with the node's own identity. Its methods block, and end with ctx.
type Worker struct {
	node       string
	client     kubernetes.Interface
	retryDelay time.Duration
	cordons    int
	cordonWait time.Duration
}

// WorkerConfig is what a Worker needs. Zero durations and counts have the defaults given here.
type WorkerConfig struct {
	NodeName    string
	API         *rest.Config  // kube-apiserver as the node; what can't be asked is answered by a 503 or an error of the network
	EvictDelay  time.Duration // between two evictions of a pod that a PodDisruptionBudget holds; 5 s
	CordonTries int           // 10
	CordonDelay time.Duration // between two of them; 5 s
}

// NewWorker makes a Worker. It asks nothing yet.
func NewWorker(c WorkerConfig) (*Worker, error) {
	api := rest.CopyConfig(c.API)
	api.Wrap(func(next http.RoundTripper) http.RoundTripper { return ear{next} })
	client, err := kubernetes.NewForConfig(api)
	if err != nil {
		return nil, fmt.Errorf("a client of the API: %w", err)
	}
	or := func(d, standard time.Duration) time.Duration {
		if d == 0 {
			return standard
		}
		return d
	}
	tries := c.CordonTries
	if tries == 0 {
		tries = 10
	}
	return &Worker{
		node: c.NodeName, client: client, cordons: tries,
		retryDelay: or(c.EvictDelay, 5*time.Second), cordonWait: or(c.CordonDelay, 5*time.Second),
	}, nil
}

// Check tells whether the node is alone: nobody else is schedulable. A node that is cordoned for a drain of its own will be again, so it counts: or, of many nodes
// that are drained at once, the last would find itself alone and go ahead whatever the budgets say.
func (w *Worker) Check(ctx context.Context) Result {
	others := metav1.ListOptions{FieldSelector: "spec.unschedulable=false,metadata.name!=" + w.node, Limit: 1}
	list, err := w.client.CoreV1().Nodes().List(ctx, others)
	if err != nil {
		return failed(err)
	}
	if len(list.Items) > 0 {
		return Result{}
	}
	for others = (metav1.ListOptions{FieldSelector: "spec.unschedulable=true,metadata.name!=" + w.node, Limit: 100}); ; {
		if list, err = w.client.CoreV1().Nodes().List(ctx, others); err != nil {
			return failed(err)
		}
		if slices.ContainsFunc(list.Items, func(n corev1.Node) bool { return n.Annotations[v1alpha1.CordonAnnotation] == owner }) {
			return Result{}
		}
		if others.Continue = list.Continue; others.Continue == "" {
			return Result{Alone: true}
		}
	}
}

// Cordon makes the node unschedulable and says that we did. A cordon that is there already stays whose it is.
func (w *Worker) Cordon(ctx context.Context) Result {
	return w.change(ctx, func(n *corev1.Node) bool {
		if n.Spec.Unschedulable {
			return false
		}
		n.Spec.Unschedulable = true
		if n.Annotations == nil {
			n.Annotations = map[string]string{}
		}
		n.Annotations[v1alpha1.CordonAnnotation] = owner
		return true
	})
}

// owner is the value of the annotation on a cordon of ours.
const owner = "edgecore"

// Uncordon takes back our cordon, and no other.
func (w *Worker) Uncordon(ctx context.Context) Result {
	res := w.change(ctx, func(n *corev1.Node) bool {
		if n.Annotations[v1alpha1.CordonAnnotation] != owner {
			return false
		}
		delete(n.Annotations, v1alpha1.CordonAnnotation)
		n.Spec.Unschedulable = false
		return true
	})
	if apierrors.IsNotFound(res.Err) {
		return Result{} // the Node was deleted, and its cordon with it
	}
	return res
}

// change reads, changes and writes the node until it worked; a conflict re-reads. An API that gives no answer ends it: the caller comes again.
func (w *Worker) change(ctx context.Context, change func(*corev1.Node) bool) Result {
	var last error
	for try := range w.cordons {
		if try > 0 {
			select {
			case <-ctx.Done():
				return failed(context.Cause(ctx))
			case <-time.After(w.cordonWait):
			}
		}
		node, err := w.client.CoreV1().Nodes().Get(ctx, w.node, metav1.GetOptions{})
		if err == nil {
			if !change(node) {
				return Result{}
			}
			_, err = w.client.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{FieldManager: owner})
		}
		switch {
		case err == nil:
			return Result{}
		case noAnswer(err) || ctx.Err() != nil:
			return failed(err)
		}
		klog.FromContext(ctx).Info("The node could not be changed", "nodedrain-step", "cordon-failure", "try", try+1, "of", w.cordons, "err", err)
		last = err
	}
	return failed(last)
}

func failed(err error) Result { return Result{Err: err, Interrupted: noAnswer(err)} }

// noAnswer reports whether an error says nothing of the node: there is no link, or nobody behind it.
func noAnswer(err error) bool {
	if err == nil {
		return false
	}
	if apierrors.IsServiceUnavailable(err) || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) || isGateway(err) {
		return true
	}
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

func isGateway(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && (status.Status().Code == http.StatusBadGateway || status.Status().Code == http.StatusGatewayTimeout)
}

// Attempt evicts what is to go and waits until it is gone, for as long as timeout. told hears of the pods that are blocked whenever they change.
func (w *Worker) Attempt(ctx context.Context, timeout time.Duration, told func([]v1alpha1.BlockedPod)) Result {
	parent := ctx
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	a := &attempt{
		worker: w, told: told, came: map[string]int{}, seen: map[types.UID]struct{}{},
		blocked: map[types.NamespacedName]v1alpha1.BlockedPod{},
	}
	err := a.run(context.WithValue(ctx, earKey{}, a), timeout)
	res := Result{Blocked: a.list()}
	switch {
	case err == nil:
		return Result{}
	case a.unheard && parent.Err() == nil && ctx.Err() == nil:
		res.Interrupted = true
	case a.refused && parent.Err() == nil && ctx.Err() == nil:
		res.Doubtful = true
	case ctx.Err() != nil && parent.Err() == nil:
		err = fmt.Errorf("not done within %v: %w", timeout, err)
	}
	res.Err = err
	return res
}

// attempt is one attempt. The helper evicts with a goroutine a pod, so what they tell is guarded.
type attempt struct {
	worker *Worker
	told   func([]v1alpha1.BlockedPod)

	came map[string]int // how often a pod of this kind came back
	seen map[types.UID]struct{}

	mu      sync.Mutex
	blocked map[types.NamespacedName]v1alpha1.BlockedPod
	unheard bool // an answer was missing
	refused bool // by 401 or 403
}

func (a *attempt) run(ctx context.Context, timeout time.Duration) error {
	log := klog.FromContext(ctx)
	helper := &drain.Helper{
		Ctx: ctx, Client: &watched{Interface: a.worker.client, attempt: a},
		Force: true, GracePeriodSeconds: -1, IgnoreAllDaemonSets: true, DeleteEmptyDirData: true,
		Timeout: timeout, EvictErrorRetryDelay: a.worker.retryDelay, Out: io.Discard, ErrOut: io.Discard,
		OnPodDeletionOrEvictionFinished: func(pod *corev1.Pod, _ bool, err error) {
			if err == nil {
				a.clear(pod)
				log.Info("A pod has gone", "nodedrain-step", "evict-progress", "pod", klog.KObj(pod))
			}
		},
	}
	for {
		list, errs := helper.GetPodsForDeletion(a.worker.node)
		if len(errs) > 0 {
			return fmt.Errorf("listing the node's pods: %w", errors.Join(errs...))
		}
		pods := list.Pods()
		if len(pods) == 0 {
			return nil
		}
		if err := a.returned(pods); err != nil {
			return err
		}
		if err := helper.DeleteOrEvictPods(pods); err != nil {
			return err
		}
	}
}

// returned looks for pods that come back as fast as they go: nothing but an explicit spec.nodeName brings a pod to a node that is cordoned.
func (a *attempt) returned(pods []corev1.Pod) error {
	first := len(a.seen) == 0
	var pinned []string
	counted := map[string]bool{}
	for _, pod := range pods {
		if _, known := a.seen[pod.UID]; known {
			continue
		}
		a.seen[pod.UID] = struct{}{}
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

// ear notes, for the attempt that a request is of, that there was no answer: the helper's errors don't tell any more.
type ear struct{ next http.RoundTripper }

type earKey struct{}

// RoundTrip implements http.RoundTripper.
func (e ear) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := e.next.RoundTrip(r)
	a, ok := r.Context().Value(earKey{}).(*attempt)
	if !ok || r.Context().Err() != nil {
		return answer, err
	}
	if err != nil || slices.Contains([]int{http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout}, answer.StatusCode) {
		a.mu.Lock()
		a.unheard = true
		a.mu.Unlock()
	} else if answer.StatusCode == http.StatusUnauthorized || answer.StatusCode == http.StatusForbidden {
		a.mu.Lock()
		a.refused = true
		a.mu.Unlock()
	}
	return answer, err
}

func (a *attempt) block(pod *corev1.Pod, reason v1alpha1.BlockedReason, pdb, message string) (changed bool) {
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage], "")
	}
	key := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
	b := v1alpha1.BlockedPod{Namespace: pod.Namespace, Name: pod.Name, Reason: reason, PDB: pdb, Message: message}
	a.mu.Lock()
	changed = a.blocked[key] != b
	a.blocked[key] = b
	a.mu.Unlock()
	if changed {
		a.told(a.list())
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
		a.told(a.list())
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

// watched is the client with an ear on evictions: the helper tells nobody why a pod stays.
type watched struct {
	kubernetes.Interface

	attempt *attempt
}

func (w *watched) PolicyV1() policyclient.PolicyV1Interface {
	return &watchedPolicy{w.Interface.PolicyV1(), w.attempt}
}

func (w *watched) CoreV1() coreclient.CoreV1Interface {
	return &ownCore{w.Interface.CoreV1(), w.attempt.worker.node}
}

type ownCore struct {
	coreclient.CoreV1Interface

	node string
}

func (c *ownCore) Pods(namespace string) coreclient.PodInterface {
	return &ownPods{c.CoreV1Interface.Pods(namespace), c.node}
}

// ownPods gets a pod as it is on this node. A node that gets a pod by its name is told 403 once the pod has gone: the Node authorizer knows no
// relationship then. It may always list the pods that are on it.
type ownPods struct {
	coreclient.PodInterface

	node string
}

// Get implements coreclient.PodInterface.
func (p *ownPods) Get(ctx context.Context, name string, _ metav1.GetOptions) (*corev1.Pod, error) {
	list, err := p.List(ctx, metav1.ListOptions{FieldSelector: fields.Set{"metadata.name": name, "spec.nodeName": p.node}.String()})
	if err != nil {
		return nil, err
	}
	if len(list.Items) == 0 {
		return nil, apierrors.NewNotFound(corev1.Resource("pods"), name)
	}
	return &list.Items[0], nil
}

type watchedPolicy struct {
	policyclient.PolicyV1Interface

	attempt *attempt
}

func (w *watchedPolicy) Evictions(namespace string) policyclient.EvictionInterface {
	return &watchedEvictions{w.PolicyV1Interface.Evictions(namespace), w.attempt}
}

type watchedEvictions struct {
	policyclient.EvictionInterface

	attempt *attempt
}

// Evict implements policyclient.EvictionInterface.
func (w *watchedEvictions) Evict(ctx context.Context, eviction *policyv1.Eviction) error {
	err := w.EvictionInterface.Evict(ctx, eviction)
	pod := &corev1.Pod{ObjectMeta: eviction.ObjectMeta}
	log := klog.FromContext(ctx)
	switch {
	case err == nil || apierrors.IsNotFound(err):
		w.attempt.clear(pod)
	case noAnswer(err):
	case apierrors.IsTooManyRequests(err) && !apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause):
		// the API is busy: the helper comes again
	case ctx.Err() == nil:
		reason := v1alpha1.BlockedFailed
		if apierrors.IsTooManyRequests(err) {
			reason = v1alpha1.BlockedByBudget
		}
		if w.attempt.block(pod, reason, w.attempt.worker.budgets(ctx, eviction), err.Error()) {
			log.Info("A pod could not be evicted", "nodedrain-step", "evict-error", "pod", klog.KObj(pod), "reason", reason, "err", err)
		}
	}
	return err
}

// budgets names the PodDisruptionBudgets that cover a pod; "" where they can't be read.
func (w *Worker) budgets(ctx context.Context, eviction *policyv1.Eviction) string {
	pod, err := w.client.CoreV1().Pods(eviction.Namespace).Get(ctx, eviction.Name, metav1.GetOptions{})
	if err != nil {
		return ""
	}
	all, err := w.client.PolicyV1().PodDisruptionBudgets(eviction.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		klog.FromContext(ctx).Info("The PodDisruptionBudgets can't be read", "nodedrain-step", "evict-error", "err", err)
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
