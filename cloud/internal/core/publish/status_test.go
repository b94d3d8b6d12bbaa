package publish_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/cloud/internal/core/publish"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// staticRoute is as kube-apiserver has it after some reports.
func staticRoute(name, gateway string, reports int) *unstructured.Unstructured {
	nodes := []any{}
	for i := range reports {
		nodes = append(nodes, map[string]any{"name": fmt.Sprint("n", i), "reason": "Applied"})
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "skerry.io/v1alpha1", "kind": "StaticRoute", "metadata": map[string]any{"name": name, "generation": int64(1)},
		"spec": map[string]any{"subnet": "172.20.0.0/16", "gateway": gateway}, "status": map[string]any{"nodes": nodes},
	}}
}

func TestStatusStaysInTheCloud(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, e := newWorld(), newEdge(t)
		gvr := v1alpha1.Resource(v1alpha1.StaticRoutes)
		all := &topicpb.Interest{Id: 1, Resource: resource(gvr)}
		c.synced(t, gvr, staticRoute("a", "10.0.0.1", 0), staticRoute("b", "10.0.0.1", 3))
		seen := 0
		defer c.store(gvr).Observe(func(_, _ *kube.Object) { seen++ })()
		e.connect(publish.New(c, c, c, publish.DefaultQuotas()), all)
		want(t, "first", e.names(gvr), []string{"a", "b"})
		for name, o := range e.objects[gvr] {
			if text := string(o.Object); strings.Contains(text, `"status"`) || strings.Contains(text, "managedFields") || strings.Contains(text, "resourceVersion") {
				t.Errorf("%s came with too much: %s", name, text)
			}
			var got struct{ Metadata metav1.ObjectMeta }
			if err := json.Unmarshal(o.Object, &got); err != nil || got.Metadata.Generation != 1 {
				t.Errorf("%s: generation %d, %v", name, got.Metadata.Generation, err)
			}
		}
		e.takeLog()

		// Reports change the status many times: the cloud's followers see each change, the edge
		// sees none of them.
		for i := range 50 {
			c.put(t, gvr, staticRoute("a", "10.0.0.1", i))
			synctest.Wait()
		}
		want(t, "sent for 50 changes of a status", e.takeLog(), []string(nil))
		want(t, "seen in the cloud", seen, 50)
		c.put(t, gvr, staticRoute("a", "10.0.0.2", 50))
		synctest.Wait()
		want(t, "sent for a change of the spec", e.takeLog(), []string{"+staticroutes/a"})
		labelled := staticRoute("b", "10.0.0.1", 3)
		labelled.SetLabels(map[string]string{"a": "b"})
		c.put(t, gvr, labelled)
		synctest.Wait()
		want(t, "sent for a change of the labels", e.takeLog(), []string{"+staticroutes/b"})
		e.disconnect()

		// Another cloudcore, which has only seen the newest of each: no object is sent, no
		// inventory requested.
		later := newWorld()
		later.version = 5000
		again := labelled.DeepCopy()
		again.Object["status"] = map[string]any{"nodes": []any{}}
		later.synced(t, gvr, staticRoute("a", "10.0.0.2", 7), again)
		e.connect(publish.New(later, later, later, publish.DefaultQuotas()), all)
		want(t, "sent by another cloudcore", e.takeLog(), []string{"synced 1"})
		want(t, "asked by another cloudcore", e.asked, []string(nil))
		e.disconnect()
	})
}

// The one node that a NodeOperation is for needs its progress.
func TestStatusOfOperationsTravels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, e := newWorld(), newEdge(t)
		gvr := v1alpha1.Resource(v1alpha1.NodeOperations)
		o := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "skerry.io/v1alpha1", "kind": "NodeOperation", "metadata": map[string]any{"name": "a"}, "status": map[string]any{"phase": "Complete"},
		}}
		c.synced(t, gvr, o)
		e.connect(publish.New(c, c, c, publish.DefaultQuotas()), &topicpb.Interest{Id: 1, Resource: resource(gvr)})
		if got := string(e.objects[gvr][kube.Key{Name: "a"}].GetObject()); !strings.Contains(got, "Complete") {
			t.Errorf("got %q", got)
		}
		e.disconnect()
	})
}
