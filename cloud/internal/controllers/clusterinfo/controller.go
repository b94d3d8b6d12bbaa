package clusterinfo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/skerry-io/skerry/cloud/internal/controllers/controller"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// Candidate reports whether a node may be the leader: there is a ClusterInfo, and it
// selects the node.
func Candidate(infos, nodes *kube.Store, node string) bool {
	info := &v1alpha1.ClusterInfo{}
	o, n := infos.Get(kube.Key{Name: v1alpha1.ClusterInfoName}), nodes.Get(kube.Key{Name: node})
	return o != nil && n != nil && json.Unmarshal(o.Raw, info) == nil && selects(info, n)
}

// selects reports whether a ClusterInfo makes a node a candidate.
func selects(info *v1alpha1.ClusterInfo, n *kube.Object) bool {
	return info.DeletionTimestamp == nil && labels.SelectorFromSet(info.Spec.NodeSelector).Matches(n.Labels)
}

// run is one leadership.
type run struct {
	infos        *controller.Collection[v1alpha1.ClusterInfo]
	nodes        *controller.Collection[corev1.Node]
	pods         *controller.Collection[corev1.Pod]
	leases       cache.SharedIndexInformer
	namespace    string
	vms, volumes *controller.Kind[unstructured.Unstructured]
}

// Controller publishes while there is a leader. namespace is that of the leader's Lease.
func Controller(namespace string) controller.Config {
	return controller.Config{
		Name: "clusterinfo", RetryMin: time.Second,
		Start: func(_ context.Context, r *controller.Run) (controller.Work, error) { return start(r, namespace) },
	}
}

func start(r *controller.Run, namespace string) (controller.Work, error) {
	factory := r.Informers(informers.WithNamespace(namespace), informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", v1alpha1.StatsLeaderLease).String()
	}))
	c := &run{
		infos: controller.Watch[v1alpha1.ClusterInfo](r, v1alpha1.Resource(v1alpha1.ClusterInfos), r.Any),
		// The labels select the candidates; other changes of nodes are seen at the next collection.
		nodes:     controller.Watch[corev1.Node](r, corev1.SchemeGroupVersion.WithResource("nodes"), controller.LabelsChanged(r.Wake)),
		pods:      controller.Watch[corev1.Pod](r, corev1.SchemeGroupVersion.WithResource("pods"), nil),
		leases:    factory.Coordination().V1().Leases().Informer(),
		namespace: namespace,
		vms:       controller.Of[unstructured.Unstructured](r, schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "virtualmachineinstances"}),
		volumes:   controller.Of[unstructured.Unstructured](r, schema.GroupVersionResource{Group: "longhorn.io", Version: "v1beta2", Resource: "volumes"}),
	}
	wake := func(any) { r.Wake() }
	if _, err := c.leases.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: wake, UpdateFunc: func(_, _ any) { r.Wake() }, DeleteFunc: wake}); err != nil {
		return controller.Work{}, fmt.Errorf("watching the Lease: %w", err)
	}
	return controller.Level(c.sync), nil
}

// sync writes the status if it is not current.
func (c *run) sync(ctx context.Context) (time.Duration, error) {
	info, err := c.infos.Get(kube.Key{Name: v1alpha1.ClusterInfoName})
	if err != nil || info == nil || info.DeletionTimestamp != nil {
		return 0, err
	}
	var lease *coordinationv1.Lease
	if held, ok, err := c.leases.GetStore().GetByKey(c.namespace + "/" + v1alpha1.StatsLeaderLease); err == nil && ok {
		lease, _ = held.(*coordinationv1.Lease)
	}
	var collectErr error
	status, next := decide(info, readLease(lease), func(node string) bool { return c.candidate(info, node) }, time.Now(), func() (s v1alpha1.ClusterInfoStatus) {
		s, collectErr = c.collect(ctx)
		return s
	})
	if collectErr != nil {
		return 0, collectErr
	}
	if equality.Semantic.DeepEqual(status, info.Status) {
		return next, nil
	}
	info.Status = status
	return next, c.infos.UpdateStatus(ctx, info)
}

func (c *run) candidate(info *v1alpha1.ClusterInfo, node string) bool {
	n := c.nodes.Object(kube.Key{Name: node})
	return n != nil && selects(info, n)
}

// collect reads the shared copies, and kube-apiserver for kinds that the cluster may not have,
// whose cache is new enough.
func (c *run) collect(ctx context.Context) (v1alpha1.ClusterInfoStatus, error) {
	var cluster Cluster
	var errs [4]error
	cluster.Nodes, errs[0] = c.nodes.List()
	cluster.Pods, errs[1] = c.pods.List()
	cluster.VMs, _, errs[2] = c.vms.ListLive(ctx, true)
	cluster.Volumes, cluster.Storage, errs[3] = c.volumes.ListLive(ctx, true)
	if err := errors.Join(errs[:]...); err != nil {
		return v1alpha1.ClusterInfoStatus{}, err
	}
	return Render(cluster), nil
}
