package app

import (
	"fmt"
	"runtime"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// nodeView is a view of nodes alone, and a store of them.
func nodeView(t *testing.T, nodes int) (*view, *kube.Store) {
	t.Helper()
	store := kube.NewStore(corev1.SchemeGroupVersion.WithResource("nodes"))
	v := &view{nodes: map[string]Node{}, removed: map[kube.Key]map[types.UID]*corev1.Pod{}, changed: func(kube.Key) {}, all: func() {}}
	for i := range nodes {
		put(t, store, fmt.Sprintf("edge-%d", i), "1", corev1.ConditionTrue)
	}
	return v, store
}

func put(t *testing.T, store *kube.Store, name, version string, ready corev1.ConditionStatus) *kube.Object {
	t.Helper()
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}},
	}
	if err := store.Put(n); err != nil {
		t.Fatal(err)
	}
	return store.Get(kube.Key{Name: name})
}

func (v *view) takeAll(store *kube.Store) {
	store.Each(&kube.Selection{Labels: labels.Everything(), Fields: fields.Everything()}, func(o *kube.Object) bool { v.node(nil, o); return true })
}

// TestViewOfManyNodes bounds the allocation of a new leader for each node, which must not grow with
// their number.
func TestViewOfManyNodes(t *testing.T) {
	const most = 8 << 10 // the Node decoded, and a place in the map that grows
	for _, nodes := range []int{100, 4000} {
		v, store := nodeView(t, nodes)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		v.takeAll(store)
		runtime.ReadMemStats(&after)
		if each := (after.TotalAlloc - before.TotalAlloc) / uint64(nodes); each > most {
			t.Errorf("of %d nodes each took %d bytes, want at most %d", nodes, each, most)
		}
	}
}

// TestPlansKeepTheirNodes: a plan's nodes do not change under it.
func TestPlansKeepTheirNodes(t *testing.T) {
	v, store := nodeView(t, 2)
	v.takeAll(store)
	plan := func() map[string]Node {
		v.mu.Lock()
		defer v.mu.Unlock()
		return v.share()
	}
	first := plan()
	v.node(nil, put(t, store, "edge-0", "2", corev1.ConditionFalse))
	v.node(put(t, store, "edge-1", "1", corev1.ConditionTrue), nil)
	second := plan()
	if !first["edge-0"].Ready || len(first) != 2 {
		t.Errorf("the first plan's nodes have become %v", first)
	}
	if second["edge-0"].Ready || len(second) != 1 {
		t.Errorf("the second plan has %v", second)
	}
}

// Deleted pods that have the label of an application, and are not its own, use up no room.
func TestView_DeletedPodsOfOthers(t *testing.T) {
	v, _ := nodeView(t, 0)
	yes := true
	pod := func(uid, owner string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "ns", Name: uid, UID: types.UID(uid), Labels: map[string]string{v1alpha1.EdgeAppLabel: "a"},
				OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: owner, Controller: &yes}},
			},
			Spec: corev1.PodSpec{NodeName: "edge1"},
		}
	}
	for i := range mostRemoved + 1 {
		v.remove(pod(fmt.Sprint("other", i), "other"))
	}
	v.remove(pod("own", "a"))
	kept := v.removed[kube.Key{Namespace: "ns", Name: "a"}]
	if len(kept) != 1 || kept["own"] == nil {
		t.Errorf("%d pods are kept, want the application's own", len(kept))
	}
}
