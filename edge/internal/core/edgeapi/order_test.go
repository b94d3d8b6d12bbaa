package edgeapi_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/tests/cluster/poll"
)

// Pages of the store are recognised by the test's data in them.
const (
	orderPods   = 40
	markPod     = "mark-of-a-pod"
	markConfig  = "mark-of-a-configmap"
	markService = "mark-of-a-service"
	markEvent   = "mark-of-an-event"
)

func coreObject(t *testing.T, resource string, obj runtime.Object) object.Object {
	t.Helper()
	o, err := object.FromObject(schema.GroupVersionResource{Version: "v1", Resource: resource}, obj)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// orderCluster is the cloud's state: pods with a ConfigMap each, services, and the node.
func orderCluster(t *testing.T) *fakeHub {
	t.Helper()
	h := newFakeHub(t)
	filler := strings.Repeat("x", 300)
	for i := range orderPods {
		name := fmt.Sprintf("p%02d", i)
		p := pod(name)
		p.Annotations = map[string]string{"a": markPod + filler}
		p.Spec.Volumes = []corev1.Volume{{Name: "c", VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}},
		}}}
		h.set(asObject(t, p))
		h.set(coreObject(t, "configmaps", &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-c-" + name)}, Data: map[string]string{"k": markConfig + filler},
		}))
		h.set(coreObject(t, "services", &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-s-" + name), Annotations: map[string]string{"a": markService + filler}},
		}))
	}
	h.set(coreObject(t, "nodes", &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, UID: "uid-node"}}))
	return h
}

// kubeletNeeds reads the objects that a kubelet reads before it starts pods, and returns the
// missing ones: a set, or the ConfigMap of a pod. A partial answer fails the test.
func kubeletNeeds(t *testing.T, c kubernetes.Interface, what string) (missing []string) {
	t.Helper()
	ctx, any := t.Context(), metav1.ListOptions{ResourceVersion: "0"}
	own := metav1.ListOptions{ResourceVersion: "0", FieldSelector: "spec.nodeName=" + node}
	named := metav1.ListOptions{ResourceVersion: "0", FieldSelector: "metadata.name=" + node}
	check := func(set string, n, want int, err error) {
		switch {
		case apierrors.IsServiceUnavailable(err):
			missing = append(missing, set)
		case err != nil || n != want:
			t.Errorf("%s: %s: %d of %d, %v: a set with holes passes for the whole", what, set, n, want, err)
		}
	}
	pods, err := c.CoreV1().Pods("").List(ctx, own)
	check("pods", len(pods.Items), orderPods, err)
	services, err := c.CoreV1().Services("").List(ctx, any)
	check("services", len(services.Items), orderPods, err)
	nodes, err := c.CoreV1().Nodes().List(ctx, named)
	check("nodes", len(nodes.Items), 1, err)
	for i := range orderPods {
		list, err := c.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{
			ResourceVersion: "0", FieldSelector: fmt.Sprintf("metadata.name=p%02d", i),
		})
		check("configmaps", len(list.Items), 1, err)
	}
	return slices.Compact(missing)
}

// pagesOf finds the pages of each kind that a store uses: by bbolt's own tools, and by the marks.
func pagesOf(t *testing.T, path string) map[string][]int {
	t.Helper()
	db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true, PreLoadFreelist: true})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	pages := map[string][]int{}
	if err := db.View(func(tx *bolt.Tx) error {
		for id := 0; ; id++ {
			p, err := tx.Page(id)
			if p == nil || err != nil {
				return err
			}
			kind := p.Type
			if p.Type == "leaf" {
				raw := file[id*os.Getpagesize():][:os.Getpagesize()]
				for mark, name := range map[string]string{
					markPod: "pods", markConfig: "configmaps", markService: "services", markEvent: "events or outbox",
				} {
					if bytes.Contains(raw, []byte(mark)) {
						kind = "leaf of " + name
					}
				}
				if bytes.Contains(raw, []byte("outbox")) && bytes.Contains(raw, []byte("answers")) {
					kind = "root"
				}
			}
			if p.Type != "free" {
				pages[kind] = append(pages[kind], id)
			}
			id += p.OverflowCount
		}
	}); err != nil {
		t.Fatal(err)
	}
	return pages
}

// One bit flips in a page of the store of a device that is cut off, and it reboots without a link:
// every resource that is whole is served, with all that a kubelet needs for its pods; one that is
// not is named, answered with 503 and never with a part of it; pending writes still exist. With a
// link it is delivered again, and all pods start. In process: the real store, metamanager and edge
// API; a kubelet's lists are its client.
func TestOrder_05_OneFlippedBitCostsOneResource(t *testing.T) {
	dir := t.TempDir()
	h := orderCluster(t)
	c, stop := device(t, dir, h)
	h.link(true)
	poll.True(t, "all is held", func() bool { return len(kubeletAsks(t.Context(), c)) == 0 })
	h.link(false)
	for i := range 60 {
		_, err := c.CoreV1().Events("default").Create(t.Context(), &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("e%02d", i)},
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "p00", UID: "uid-p00"}, Message: markEvent + strings.Repeat("y", 300),
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	stop()
	path := filepath.Join(dir, "store.db")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	key, err := os.ReadFile(path + ".key")
	if err != nil {
		t.Fatal(err)
	}
	kinds := pagesOf(t, path)
	for _, kind := range []string{"meta", "root", "branch", "leaf of pods", "leaf of configmaps", "leaf of services", "leaf of events or outbox", "leaf"} {
		if len(kinds[kind]) == 0 {
			t.Errorf("the store has no page that is a %s: %v", kind, slices.Collect(maps.Keys(kinds)))
		}
	}
	for kind, pages := range kinds {
		for _, id := range pages[:min(len(pages), 3)] {
			// In its header, in its first element, in the middle of its data.
			for _, offset := range []int{10, 24, os.Getpagesize() / 2} {
				what := fmt.Sprintf("%s %d at %d", kind, id, offset)
				flipped := bytes.Clone(whole)
				flipped[id*os.Getpagesize()+offset] ^= 1 << (id % 8)
				reboot := t.TempDir()
				if err := os.WriteFile(filepath.Join(reboot, "store.db"), flipped, 0o600); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(reboot, "store.db.key"), key, 0o600); err != nil {
					t.Fatal(err)
				}
				h := orderCluster(t)
				c, lost, stop := deviceLost(t, reboot, h)
				missing := kubeletNeeds(t, c, what)
				for _, set := range missing {
					if !strings.Contains(strings.Join(lost, "\n"), "objects of /v1/"+set) {
						t.Errorf("%s: %s are not served, and not named: %v", what, set, lost)
					}
				}
				if only := "leaf of " + strings.Join(missing, ""); len(missing) > 0 && kind != only && kind != "branch" && kind != "leaf" {
					t.Errorf("%s: %v are not served: the damage is not confined", what, missing)
				}
				h.link(true)
				poll.True(t, what+": all is there again", func() bool { return len(kubeletAsks(t.Context(), c)) == 0 })
				kubeletNeeds(t, c, what+", linked")
				stop()
			}
		}
	}
}

// kubeletAsks is kubeletNeeds while sets come.
func kubeletAsks(ctx context.Context, c kubernetes.Interface) (missing []string) {
	own := metav1.ListOptions{ResourceVersion: "0", FieldSelector: "spec.nodeName=" + node}
	if pods, err := c.CoreV1().Pods("").List(ctx, own); err != nil || len(pods.Items) != orderPods {
		missing = append(missing, "pods")
	}
	if s, err := c.CoreV1().Services("").List(ctx, metav1.ListOptions{ResourceVersion: "0"}); err != nil || len(s.Items) != orderPods {
		missing = append(missing, "services")
	}
	if n, err := c.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0", FieldSelector: "metadata.name=" + node}); err != nil || len(n.Items) != 1 {
		missing = append(missing, "nodes")
	}
	if cm, err := c.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{ResourceVersion: "0", FieldSelector: "metadata.name=p00"}); err != nil || len(cm.Items) != 1 {
		missing = append(missing, "configmaps")
	}
	return missing
}
