package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/pager"

	"github.com/skerry-io/skerry/cloud/internal/core/fleet"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

const (
	// pageSize is how many objects are asked for at once.
	pageSize = 500
	// ageInterval is how late a link that is down for its age alone may be shown.
	ageInterval = 10 * time.Second
	// syncPoll is how often follow checks whether all collections are read.
	syncPoll = 100 * time.Millisecond
)

// cluster is where the facts come from.
type cluster struct {
	client  kubernetes.Interface
	objects dynamic.Interface
	clock   *serverClock
	// labels select Nodes; name is that of a single node, or "".
	labels, name string
}

// source is one collection that is read.
type source struct {
	what string // the resource
	// optional: without the right to it, or its CRD, the rest is read.
	optional bool
	list     func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch    cache.WatchFuncWithContext
	options  metav1.ListOptions
	example  runtime.Object
	add      func(*fleet.Facts, runtime.Object)
}

// sources are the four collections.
func (c *cluster) sources() []source {
	nodes, leases, pods := c.client.CoreV1().Nodes(), c.client.CoordinationV1().Leases(corev1.NamespaceNodeLease), c.client.CoreV1().Pods(metav1.NamespaceAll)
	operations := c.objects.Resource(v1alpha1.Resource(v1alpha1.NodeOperations))
	byName, byNode := fields.Everything(), fields.OneTermNotEqualSelector("spec.nodeName", "")
	ofNode := fields.Everything()
	if c.name != "" {
		byName, byNode = fields.OneTermEqualSelector(metav1.ObjectNameField, c.name), fields.OneTermEqualSelector("spec.nodeName", c.name)
		ofNode = byNode
	}
	return []source{
		{
			"nodes", false,
			func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return nodes.List(ctx, o) }, nodes.Watch,
			metav1.ListOptions{LabelSelector: c.labels, FieldSelector: byName.String()}, &corev1.Node{},
			func(f *fleet.Facts, o runtime.Object) { f.Nodes = append(f.Nodes, o.(*corev1.Node)) },
		},
		{
			"leases", false,
			func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return leases.List(ctx, o) }, leases.Watch,
			metav1.ListOptions{FieldSelector: byName.String()}, &coordinationv1.Lease{},
			func(f *fleet.Facts, o runtime.Object) { f.Leases = append(f.Leases, o.(*coordinationv1.Lease)) },
		},
		{
			"pods", false,
			func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return pods.List(ctx, o) }, pods.Watch,
			metav1.ListOptions{FieldSelector: byNode.String()}, &corev1.Pod{},
			func(f *fleet.Facts, o runtime.Object) { f.Pods = append(f.Pods, o.(*corev1.Pod)) },
		},
		{
			v1alpha1.NodeOperations, false,
			func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				return operations.List(ctx, o)
			}, operations.Watch,
			metav1.ListOptions{FieldSelector: ofNode.String()}, &unstructured.Unstructured{},
			func(f *fleet.Facts, o runtime.Object) {
				operation := &v1alpha1.NodeOperation{}
				if u, ok := o.(*unstructured.Unstructured); ok && runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, operation) == nil {
					f.Operations = append(f.Operations, operation)
				}
			},
		},
	}
}

// stripped removes the fields that the status does not use: most of a pod.
func stripped(o runtime.Object) runtime.Object {
	switch o := o.(type) {
	case *corev1.Pod:
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: o.Namespace, Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion,
				CreationTimestamp: o.CreationTimestamp, DeletionTimestamp: o.DeletionTimestamp,
			},
			Spec: corev1.PodSpec{NodeName: o.Spec.NodeName, RestartPolicy: o.Spec.RestartPolicy},
			Status: corev1.PodStatus{
				Phase: o.Status.Phase, Reason: o.Status.Reason, Message: o.Status.Message,
				InitContainerStatuses: waiting(o.Status.InitContainerStatuses), ContainerStatuses: waiting(o.Status.ContainerStatuses),
			},
		}
	case *corev1.Node:
		o.ManagedFields, o.Status.Images, o.Status.VolumesInUse, o.Status.VolumesAttached = nil, nil, nil, nil
	case *coordinationv1.Lease:
		o.ManagedFields = nil
	}
	return o
}

// waiting are the containers that wait.
func waiting(all []corev1.ContainerStatus) (those []corev1.ContainerStatus) {
	for _, c := range all {
		if c.State.Waiting != nil {
			those = append(those, corev1.ContainerStatus{State: corev1.ContainerState{Waiting: c.State.Waiting}})
		}
	}
	return those
}

// read lists all of it, in pages.
func (c *cluster) read(ctx context.Context) (fleet.Facts, error) {
	facts := fleet.Facts{Selected: c.labels != ""}
	for _, s := range c.sources() {
		if err := s.read(ctx, &facts); err != nil {
			return facts, err
		}
	}
	return facts, nil
}

// missing reports whether an error of a list is that of a cluster without the CRD, or of a user
// without the right to an optional collection.
func (s source) missing(err error) bool {
	return (s.optional || s.what == v1alpha1.NodeOperations) && apierrors.IsNotFound(err) || s.optional && apierrors.IsForbidden(err)
}

// read lists one collection, in pages.
func (s source) read(ctx context.Context, facts *fleet.Facts) error {
	p := pager.New(s.list)
	p.PageSize = pageSize
	err := p.EachListItem(ctx, s.options, func(o runtime.Object) error {
		s.add(facts, stripped(o))
		return nil
	})
	if err != nil && !s.missing(err) {
		return unreached(rights(fmt.Errorf("listing %s: %w", s.what, err)))
	}
	return nil
}

// follow calls changed, from one goroutine, once all collections are read, then at most once a
// second on changes and each ageInterval without, until ctx ends.
func (c *cluster) follow(ctx context.Context, changed func(fleet.Facts) error) error {
	return c.followSources(ctx, c.sources(), ageInterval, func(string, error) {}, changed)
}

// followSources is follow for other collections and with another pause. observe gets the result of
// each list, and of each start of a watch, from any goroutine.
func (c *cluster) followSources(ctx context.Context, sources []source, pause time.Duration, observe func(what string, err error), changed func(fleet.Facts) error) error {
	stores, controllers := make([]cache.Store, len(sources)), make([]cache.Controller, len(sources))
	dirty := make(chan struct{}, 1)
	mark := func() {
		select {
		case dirty <- struct{}{}:
		default:
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	failed := make(chan error, 1)
	refused := func(s source, err error) {
		observe(s.what, err)
		if !s.optional && apierrors.IsForbidden(err) {
			select {
			case failed <- rights(err):
			default:
			}
		}
	}
	for i, s := range sources {
		store, controller := cache.NewInformerWithOptions(cache.InformerOptions{
			ListerWatcher: &cache.ListWatch{
				ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
					o.LabelSelector, o.FieldSelector = s.options.LabelSelector, s.options.FieldSelector
					l, err := s.list(ctx, o)
					refused(s, err)
					if s.missing(err) {
						return &unstructured.UnstructuredList{}, nil
					}
					return l, err
				},
				WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
					o.LabelSelector, o.FieldSelector = s.options.LabelSelector, s.options.FieldSelector
					w, err := s.watch(ctx, o)
					refused(s, err)
					return w, err
				},
			},
			ObjectType: s.example,
			Handler: cache.ResourceEventHandlerFuncs{
				AddFunc: func(any) { mark() }, UpdateFunc: func(any, any) { mark() }, DeleteFunc: func(any) { mark() },
			},
			Transform: func(o any) (any, error) {
				if known, ok := o.(runtime.Object); ok {
					return stripped(known), nil
				}
				return o, nil
			},
		})
		stores[i], controllers[i] = store, controller
		go controller.RunWithContext(ctx) // until ctx ends
	}
	// A Node without its Lease, which is still to be read, would be shown as never linked.
	poll := time.NewTicker(syncPoll)
	defer poll.Stop()
	for slices.ContainsFunc(controllers, func(c cache.Controller) bool { return !c.HasSynced() }) {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		case <-poll.C:
		}
	}
	look := time.NewTicker(pause) // ages alone make a link old
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		case <-dirty:
		case <-look.C:
		}
		facts := fleet.Facts{Selected: c.labels != ""}
		for i, s := range sources {
			for _, o := range stores[i].List() {
				if known, ok := o.(runtime.Object); ok {
					s.add(&facts, known)
				}
			}
		}
		if err := changed(facts); err != nil {
			return err
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
}

// operations lists NodeOperations, the oldest first; all: those that have ended too.
func (c *cluster) operations(ctx context.Context, all bool) (*v1alpha1.NodeOperationList, error) {
	var facts fleet.Facts
	for _, s := range c.sources() {
		if s.what != v1alpha1.NodeOperations {
			continue
		}
		if err := s.read(ctx, &facts); err != nil {
			return nil, err
		}
	}
	list := &v1alpha1.NodeOperationList{}
	list.SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind("NodeOperationList"))
	for _, o := range facts.Operations {
		if all || o.Status.CompletedAt == nil {
			list.Items = append(list.Items, *o)
		}
	}
	slices.SortStableFunc(list.Items, func(a, b v1alpha1.NodeOperation) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	return list, nil
}

// sets lists NodeOperationSets, the oldest first; all: those that are complete too.
func (c *cluster) sets(ctx context.Context, all bool) (sets []v1alpha1.NodeOperationSet, err error) {
	list, err := c.objects.Resource(v1alpha1.Resource(v1alpha1.NodeOperationSets)).List(ctx, metav1.ListOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, rights(fmt.Errorf("listing %s: %w", v1alpha1.NodeOperationSets, err))
	}
	for i := range list.Items {
		var s v1alpha1.NodeOperationSet
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[i].Object, &s); err != nil {
			return nil, fmt.Errorf("reading NodeOperationSet %s: %w", list.Items[i].GetName(), err)
		}
		if all || !meta.IsStatusConditionTrue(s.Status.Conditions, v1alpha1.SetReady) {
			sets = append(sets, s)
		}
	}
	slices.SortStableFunc(sets, func(a, b v1alpha1.NodeOperationSet) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	return sets, nil
}

// now is the time by kube-apiserver's clock, by which Leases are read.
func (c *cluster) now() time.Time { return c.clock.now() }

// selector checks a label selector before the cluster is asked.
func selector(text string) error {
	_, err := labels.Parse(text)
	return err
}

// rights adds how to grant a missing right; the error itself names it.
func rights(err error) error {
	if !apierrors.IsForbidden(err) {
		return err
	}
	return fmt.Errorf("%w\nThe ClusterRole skerry:viewer has all that this command needs: kubectl create clusterrolebinding NAME --clusterrole=skerry:viewer --user=USER", err)
}

// noAPI adds a remedy where kube-apiserver reaches no cloudcore: its error then has no details.
func noAPI(err error) error {
	if status := apierrors.APIStatus(nil); !errors.As(err, &status) || !apierrors.IsServiceUnavailable(err) || status.Status().Message != "the server is currently unable to handle the request" {
		return err
	}
	return fmt.Errorf("%w\nkube-apiserver reaches no cloudcore: `kubectl get apiservices v1alpha1.subresources.skerry.io -o yaml` has the reason, `kubectl get pods -n skerry-system` whether it runs", err)
}

// unreached adds a remedy where kube-apiserver did not answer.
func unreached(err error) error {
	op, failed := errors.AsType[*net.OpError](err)
	if !(failed && op.Op == "dial") && !utilnet.IsConnectionReset(err) && !utilnet.IsTimeout(err) && !utilnet.IsProbableEOF(err) {
		return err
	}
	return fmt.Errorf("%w\nkube-apiserver does not answer: is it running, and is this the right server (kubectl cluster-info)? The devices keep running, and send their "+
		"reports once it is back", err)
}

// serverClock is kube-apiserver's clock as its answers have it: that of this machine may be off by
// more than a Lease is valid.
type serverClock struct {
	to    http.RoundTripper
	ahead *atomic.Int64 // of this machine's clock
}

var _ utilnet.RoundTripperWrapper = (*serverClock)(nil)

// RoundTrip implements http.RoundTripper.
func (c *serverClock) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := c.to.RoundTrip(req)
	if err == nil {
		if at, err := http.ParseTime(res.Header.Get("Date")); err == nil {
			c.ahead.Store(int64(time.Until(at)))
		}
	}
	return res, err
}

// WrappedRoundTripper implements utilnet.RoundTripperWrapper.
func (c *serverClock) WrappedRoundTripper() http.RoundTripper { return c.to }

func (c *serverClock) now() time.Time {
	ahead := time.Duration(c.ahead.Load())
	if ahead.Abs() < 2*time.Second { // the header has whole seconds
		ahead = 0
	}
	return time.Now().Add(ahead)
}

// getter gives the configuration of the cluster that the flags name.
type getter interface {
	ToRESTConfig() (*rest.Config, error)
}

// connect makes the clients of the cluster that the flags name.
func connect(f getter) (*cluster, error) {
	config, err := f.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	c := &cluster{clock: &serverClock{ahead: &atomic.Int64{}}}
	config = rest.CopyConfig(config)
	config.QPS = -1 // kube-apiserver's own fairness bounds it
	config.Wrap(func(to http.RoundTripper) http.RoundTripper { return &serverClock{to: to, ahead: c.clock.ahead} })
	var errs [2]error
	c.objects, errs[0] = dynamic.NewForConfig(config)
	typed := rest.CopyConfig(config)
	typed.AcceptContentTypes, typed.ContentType = runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON, runtime.ContentTypeProtobuf
	c.client, errs[1] = kubernetes.NewForConfig(typed)
	return c, errors.Join(errs[:]...)
}
