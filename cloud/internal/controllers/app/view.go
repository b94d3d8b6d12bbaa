package app

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/skerry-io/skerry/cloud/internal/controllers/controller"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// byApp is the index of objects by their application.
const byApp = "app"

// view has the informers that one run reads: the shared collections, and of pods, ReplicaSets and
// claims those with the label of an application.
type view struct {
	kube     kubernetes.Interface
	apps     *controller.Collection[v1alpha1.EdgeApp]
	replicas *controller.Kind[unstructured.Unstructured] // Longhorn's
	changed  func(kube.Key)
	all      func() // a change of a node concerns every application

	pods, sets, claims cache.SharedIndexInformer

	mu     sync.Mutex
	nodes  map[string]Node
	shared bool // plans have nodes: the next change is made to a copy
	// removed has the deleted pods that were bound to a node, until a plan has taken them in.
	removed map[kube.Key]map[types.UID]*corev1.Pod
}

func newView(r *controller.Run) (*view, error) {
	factory := r.Informers(informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = v1alpha1.EdgeAppLabel }))
	v := &view{
		kube: r.Kubernetes(), nodes: map[string]Node{}, removed: map[kube.Key]map[types.UID]*corev1.Pod{}, changed: r.Enqueue,
		apps:     controller.Watch[v1alpha1.EdgeApp](r, v1alpha1.Resource(v1alpha1.EdgeApps), r.Own),
		replicas: controller.Of[unstructured.Unstructured](r, longhorn("replicas")),
		pods:     factory.Core().V1().Pods().Informer(),
		claims:   factory.Core().V1().PersistentVolumeClaims().Informer(),
		sets:     factory.Apps().V1().ReplicaSets().Informer(),
	}
	v.all = func() { r.EnqueueAll(v.apps) }
	controller.Watch[corev1.Node](r, corev1.SchemeGroupVersion.WithResource("nodes"), v.node)
	for _, i := range []cache.SharedIndexInformer{v.pods, v.claims, v.sets} {
		if err := v.index(i); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// index adds the index of an informer's objects by application, and queues the application of each
// changed object.
func (v *view) index(i cache.SharedIndexInformer) error {
	if err := i.AddIndexers(cache.Indexers{byApp: func(o any) ([]string, error) {
		m, err := meta.Accessor(o)
		if err != nil {
			return nil, err
		}
		return []string{m.GetNamespace() + "/" + m.GetLabels()[v1alpha1.EdgeAppLabel]}, nil
	}}); err != nil {
		return fmt.Errorf("indexing by application: %w", err)
	}
	changed := func(o any) {
		if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
			o = gone.Obj
		}
		if m, err := meta.Accessor(o); err == nil {
			v.changed(kube.Key{Namespace: m.GetNamespace(), Name: m.GetLabels()[v1alpha1.EdgeAppLabel]})
		}
	}
	gone := func(o any) {
		if unknown, ok := o.(cache.DeletedFinalStateUnknown); ok {
			o = unknown.Obj
		}
		if pod, ok := o.(*corev1.Pod); ok {
			v.remove(pod)
		}
		changed(o)
	}
	_, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: changed, UpdateFunc: func(_, o any) { changed(o) }, DeleteFunc: gone})
	return err
}

// mostRemoved bounds the deleted pods of an application that are kept until its next plan. Of the
// others a plan has only the status.
const mostRemoved = 64

// remove keeps the last state of a deleted pod. Pods that only have the application's label are
// ignored: no plan would take them in, and they would use up the room for others.
func (v *view) remove(pod *corev1.Pod) {
	key := kube.Key{Namespace: pod.Namespace, Name: pod.Labels[v1alpha1.EdgeAppLabel]}
	if pod.Spec.NodeName == "" || !rendered(pod, key.Name) {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.removed[key] == nil {
		v.removed[key] = map[types.UID]*corev1.Pod{}
	}
	if len(v.removed[key]) < mostRemoved {
		v.removed[key][pod.UID] = pod
	}
}

// takenIn drops deleted pods that a written status accounts for.
func (v *view) takenIn(key kube.Key, pods []*corev1.Pod) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, pod := range pods {
		delete(v.removed[key], pod.UID)
	}
	if len(v.removed[key]) == 0 {
		delete(v.removed, key)
	}
}

// node takes a change of a Node in.
func (v *view) node(old, now *kube.Object) {
	if now == nil {
		v.mu.Lock()
		delete(v.own(), old.Name)
		v.mu.Unlock()
		v.all()
		return
	}
	if v.take(now) {
		v.all()
	}
}

// take notes a Node as it is now, and reports whether that changes anything for plans.
func (v *view) take(o *kube.Object) bool {
	n := &corev1.Node{}
	if err := kube.FromProtobuf(o.Raw, corev1.SchemeGroupVersion.WithKind("Node"), n); err != nil {
		return false // the old value stays
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	was, known := v.nodes[n.Name]
	is := readNode(n, was, known, time.Now())
	if is == was {
		return false
	}
	v.own()[n.Name] = is
	return true
}

// own is the map of nodes to write to: a copy where plans have the one that there is. A copy for
// each change would be nodes x nodes when a replica begins to lead. mu is held.
func (v *view) own() map[string]Node {
	if v.shared {
		v.nodes, v.shared = maps.Clone(v.nodes), false
	}
	return v.nodes
}

// share is the map of nodes for a plan, which never changes. mu is held.
func (v *view) share() map[string]Node {
	v.shared = true
	return v.nodes
}

// readNode is a Node as plans need it; was is its previous value.
func readNode(n *corev1.Node, was Node, known bool, now time.Time) Node {
	is := Node{Name: n.Name, BootID: n.Status.NodeInfo.BootID, Closed: n.Spec.Unschedulable}
	if _, is.Edge = n.Labels[v1alpha1.EdgeOwnLabel]; is.Edge {
		is.Pool = n.Labels[v1alpha1.NodePoolLabel]
		var lines strings.Builder
		for _, key := range slices.Sorted(maps.Keys(n.Labels)) {
			lines.WriteString(key + "=" + n.Labels[key] + "\n")
		}
		is.Labels = lines.String()
	}
	for _, t := range n.Spec.Taints {
		if t.Key == corev1.TaintNodeOutOfService {
			is.OutOfService = true
		}
	}
	is.Since = now
	for _, c := range n.Status.Conditions {
		if c.Type != corev1.NodeReady {
			continue
		}
		is.Ready = c.Status == corev1.ConditionTrue
		if c.Status == corev1.ConditionUnknown && c.LastTransitionTime.Time.Before(now) {
			is.Since = c.LastTransitionTime.Time // written in the cloud: it holds over a restart of cloudcore
			return is
		}
	}
	switch {
	case !known:
	case was.Ready == is.Ready:
		is.Since, is.Back = was.Since, was.Back // the device's own clock may be wrong
	case is.Ready:
		is.Back = now
	}
	return is
}

// state is everything about an application; nil without one.
func (v *view) state(ctx context.Context, key kube.Key, fencer Fencer) (*State, error) {
	app, err := v.apps.Get(key)
	if err == nil && app == nil {
		v.mu.Lock()
		delete(v.removed, key)
		v.mu.Unlock()
	}
	if err != nil || app == nil || app.DeletionTimestamp != nil {
		return nil, err
	}
	s := &State{App: app, Claims: map[string]*corev1.PersistentVolumeClaim{}, Fencer: fencer,
		Storage: func() (Storage, error) { return v.storage(ctx) }, Heard: func(node string) (time.Time, error) { return v.heard(ctx, node) }}
	if set, ok, err := v.sets.GetStore().GetByKey(key.Namespace + "/" + key.Name); err == nil && ok {
		s.ReplicaSet, _ = set.(*appsv1.ReplicaSet)
	}
	pods, err := v.pods.GetIndexer().ByIndex(byApp, key.Namespace+"/"+key.Name)
	if err != nil {
		return nil, fmt.Errorf("looking for the application's pods: %w", err)
	}
	for _, o := range pods {
		pod, ok := o.(*corev1.Pod)
		switch {
		case !ok:
		case s.ReplicaSet != nil && metav1.IsControlledBy(pod, s.ReplicaSet):
			s.Pods = append(s.Pods, pod)
		case rendered(pod, key.Name):
			s.Orphans = append(s.Orphans, pod)
		}
	}
	for i := range app.Spec.Volumes {
		name := claimName(app.Name, app.Spec.Volumes[i].Name)
		if c, ok, err := v.claims.GetStore().GetByKey(key.Namespace + "/" + name); err == nil && ok {
			s.Claims[name], _ = c.(*corev1.PersistentVolumeClaim)
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	s.Nodes = v.share()
	s.Removed = slices.Collect(maps.Values(v.removed[key]))
	return s, nil
}

// rendered reports whether a pod is of a ReplicaSet that has an application's name: the present one
// or one before it.
func rendered(pod *corev1.Pod, app string) bool {
	c := metav1.GetControllerOf(pod)
	return c != nil && c.Kind == "ReplicaSet" && c.Name == app
}

// heard asks when a node's Lease was renewed last.
func (v *view) heard(ctx context.Context, node string) (time.Time, error) {
	lease, err := v.kube.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, node, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && lease.Spec.RenewTime == nil {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, err
	}
	return lease.Spec.RenewTime.Time, nil
}

// storageTimeout bounds one question about volumes.
const storageTimeout = 10 * time.Second

// storage asks kube-apiserver: it matters only when a node was lost.
func (v *view) storage(ctx context.Context) (Storage, error) {
	ctx, cancel := context.WithTimeout(ctx, storageTimeout)
	defer cancel()
	list, err := v.kube.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		return Storage{}, fmt.Errorf("listing VolumeAttachments: %w", err)
	}
	s := Storage{Replicas: func(string) ([]string, bool) { return nil, false }}
	for _, a := range list.Items {
		if pv := a.Spec.Source.PersistentVolumeName; pv != nil {
			s.Attachments = append(s.Attachments, Attachment{Name: a.Name, UID: a.UID, Node: a.Spec.NodeName, Volume: *pv})
		}
	}
	replicas, served, err := v.replicas.ListLive(ctx, false)
	if err != nil || !served {
		return s, err
	}
	healthy := map[string][]string{}
	for i := range replicas {
		volume, node, ok := replica(&replicas[i])
		if volume != "" && healthy[volume] == nil {
			healthy[volume] = []string{}
		}
		if ok {
			healthy[volume] = append(healthy[volume], node)
		}
	}
	s.Replicas = func(volume string) ([]string, bool) { nodes, known := healthy[volume]; return nodes, known }
	return s, nil
}

func longhorn(plural string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "longhorn.io", Version: "v1beta2", Resource: plural}
}

// replica reads one of Longhorn's replicas: it is healthy where it was so once (spec.healthyAt) and
// has not failed since (spec.failedAt).
func replica(u *unstructured.Unstructured) (volume, node string, healthy bool) {
	field := func(name string) string {
		text, _, err := unstructured.NestedString(u.Object, "spec", name)
		if err != nil {
			return ""
		}
		return text
	}
	volume, node = field("volumeName"), field("nodeID")
	return volume, node, volume != "" && node != "" && field("healthyAt") != "" && field("failedAt") == ""
}
