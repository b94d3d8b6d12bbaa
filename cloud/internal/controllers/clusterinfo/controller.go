package clusterinfo

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/rerun"
)

// lookTimeout bounds all that one look asks of kube-apiserver.
const lookTimeout = 30 * time.Second

// Stores are the collections that all of cloudcore shares.
type Stores struct{ Infos, Nodes, Pods *kube.Store }

// Candidate reports whether a node may be the leader: there is a ClusterInfo, and it
// selects the node.
func Candidate(infos, nodes *kube.Store, node string) bool {
	info, err := readInfo(infos)
	if err != nil || info == nil || info.DeletionTimestamp != nil {
		return false
	}
	n := nodes.Get(kube.Key{Name: node})
	return n != nil && labels.SelectorFromSet(info.Spec.NodeSelector).Matches(n.Labels)
}

// readInfo reads the ClusterInfo, whose status and version are apart; nil where there is none.
func readInfo(infos *kube.Store) (*v1alpha1.ClusterInfo, error) {
	o := infos.Get(kube.Key{Name: v1alpha1.ClusterInfoName})
	if o == nil {
		return nil, nil
	}
	info := &v1alpha1.ClusterInfo{}
	if err := json.Unmarshal(o.Raw, info); err != nil {
		return nil, fmt.Errorf("reading the ClusterInfo: %w", err)
	}
	if len(o.Status) > 0 {
		if err := json.Unmarshal(o.Status, &info.Status); err != nil {
			return nil, fmt.Errorf("reading the ClusterInfo's status: %w", err)
		}
	}
	info.ResourceVersion = o.Revision
	return info, nil
}

// Controller publishes while there is a leader.
type Controller struct {
	kube      kubernetes.Interface
	dynamic   dynamic.Interface
	namespace string
}

// NewController makes a Controller with cloudcore's own rights. It connects to nothing yet.
func NewController(config *rest.Config, namespace string) (*Controller, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client of kube-apiserver: %w", err)
	}
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client of kube-apiserver: %w", err)
	}
	return &Controller{client, dyn, namespace}, nil
}

// Run publishes until ctx ends.
func (c *Controller) Run(ctx context.Context, stores Stores) error {
	for _, s := range []*kube.Store{stores.Infos, stores.Nodes, stores.Pods} {
		select {
		case <-s.Synced():
		case <-ctx.Done():
			return nil
		}
	}
	factory := informers.NewSharedInformerFactoryWithOptions(c.kube, 0, informers.WithNamespace(c.namespace), informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", v1alpha1.StatsLeaderLease).String()
	}))
	leases := factory.Coordination().V1().Leases().Informer()
	loop := rerun.New(func(ctx context.Context) (time.Duration, error) { return c.look(ctx, stores, leases.GetStore()) }, rerun.Config{
		RetryMin: time.Second, RetryMax: 30 * time.Second,
		Failed: func(ctx context.Context, err error, _ time.Duration) {
			if !apierrors.IsConflict(err) { // the informer is behind our own write
				klog.FromContext(ctx).Error(err, "Failed to publish the cluster's statistics, retrying")
			}
		},
	})
	if _, err := leases.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { loop.Wake() }, UpdateFunc: func(_, _ any) { loop.Wake() }, DeleteFunc: func(any) { loop.Wake() },
	}); err != nil {
		return fmt.Errorf("watching the Lease: %w", err)
	}
	ctx, stop := context.WithCancel(ctx)
	defer func() { stop(); factory.Shutdown() }()
	factory.StartWithContext(ctx)
	factory.WaitForCacheSyncWithContext(ctx)
	defer stores.Infos.Observe(func(_, _ *kube.Object) { loop.Wake() })()
	defer stores.Nodes.Observe(func(old, now *kube.Object) {
		if old == nil || now == nil || !labels.Equals(old.Labels, now.Labels) {
			loop.Wake() // who is a candidate; what else changes of nodes is seen at the next collection
		}
	})()
	loop.Run(ctx)
	return nil
}

// look writes the status where it is not what it must be.
func (c *Controller) look(ctx context.Context, stores Stores, leases cache.Store) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	info, err := readInfo(stores.Infos)
	if err != nil || info == nil || info.DeletionTimestamp != nil {
		return 0, err
	}
	var lease *coordinationv1.Lease
	if held, ok, err := leases.GetByKey(c.namespace + "/" + v1alpha1.StatsLeaderLease); err == nil && ok {
		lease, _ = held.(*coordinationv1.Lease)
	}
	var collectErr error
	candidate := func(node string) bool { return Candidate(stores.Infos, stores.Nodes, node) }
	status, next := decide(info, readLease(lease), candidate, time.Now(), func() (s v1alpha1.ClusterInfoStatus) {
		s, collectErr = c.collect(ctx, stores)
		return s
	})
	if collectErr != nil {
		return 0, collectErr
	}
	if equality.Semantic.DeepEqual(status, info.Status) {
		return next, nil
	}
	info.Status = status
	return next, c.write(ctx, info)
}

func (c *Controller) write(ctx context.Context, info *v1alpha1.ClusterInfo) error {
	info.TypeMeta = metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "ClusterInfo"}
	m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(info)
	if err != nil {
		return fmt.Errorf("writing the ClusterInfo's status down: %w", err)
	}
	_, err = c.dynamic.Resource(v1alpha1.Resource(v1alpha1.ClusterInfos)).UpdateStatus(ctx, &unstructured.Unstructured{Object: m}, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("updating the ClusterInfo's status: %w", err)
	}
	return nil
}

// collect reads what the informers hold, and asks for what they don't.
func (c *Controller) collect(ctx context.Context, stores Stores) (v1alpha1.ClusterInfoStatus, error) {
	all := &kube.Selection{Labels: labels.Everything(), Fields: fields.Everything()}
	var cluster Cluster
	var failed error
	stores.Nodes.Each(all, func(o *kube.Object) bool {
		n := &corev1.Node{}
		if failed = kube.FromProtobuf(o.Raw, corev1.SchemeGroupVersion.WithKind("Node"), n); failed == nil {
			cluster.Nodes = append(cluster.Nodes, n)
		}
		return failed == nil
	})
	stores.Pods.Each(all, func(o *kube.Object) bool {
		p := &corev1.Pod{}
		if failed == nil {
			failed = kube.FromProtobuf(o.Raw, corev1.SchemeGroupVersion.WithKind("Pod"), p)
		}
		if failed == nil {
			cluster.Pods = append(cluster.Pods, p)
		}
		return failed == nil
	})
	if failed != nil {
		return v1alpha1.ClusterInfoStatus{}, failed
	}
	var err error
	if cluster.VMs, _, err = c.list(ctx, schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "virtualmachineinstances"}); err != nil {
		return v1alpha1.ClusterInfoStatus{}, err
	}
	if cluster.Volumes, cluster.Storage, err = c.list(ctx, schema.GroupVersionResource{Group: "longhorn.io", Version: "v1beta2", Resource: "volumes"}); err != nil {
		return v1alpha1.ClusterInfoStatus{}, err
	}
	return Render(cluster), nil
}

// list asks for a resource that the cluster may not have. What kube-apiserver's watch cache
// has is new enough.
func (c *Controller) list(ctx context.Context, r schema.GroupVersionResource) (items []unstructured.Unstructured, there bool, err error) {
	list, err := c.dynamic.Resource(r).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	switch {
	case apierrors.IsNotFound(err), meta.IsNoMatchError(err):
		return nil, false, nil
	case err != nil:
		return nil, false, fmt.Errorf("listing %s: %w", r.GroupResource(), err)
	}
	return list.Items, true, nil
}
