package bench_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/tests/cluster"
	"github.com/skerry-io/skerry/tests/hollow"
)

const (
	whatRolloutWrites   = "roll-out to hollow nodes: writes at kube-apiserver a device"
	whatRolloutRequests = "roll-out to hollow nodes: further requests of cloudcore at kube-apiserver a device"
	whatRolloutBytes    = "roll-out to hollow nodes: bytes on the link a device, both ways"
	whatRolloutTime     = "roll-out to hollow nodes: from the set to the last device"
)

// rollout has a NodeOperationSet pull images on hollow nodes, which report that they have them.
func (s *bench) rollout(b *testing.B) {
	s.up(b)
	s.unlink(b)
	s.operate = hollow.Ends(func(string, *v1alpha1.NodeOperation) string { return hollow.Done })
	defer func() { s.operate = nil }()
	s.link(b, link.WebSocket, *nodes)
	s.awaitControllers(b)
	cfg, err := s.Admin()
	check(b, err)
	objects, err := dynamic.NewForConfig(cfg)
	check(b, err)
	sets := objects.Resource(v1alpha1.Resource(v1alpha1.NodeOperationSets))
	writes := row{what: whatRolloutWrites, unit: "", goal: "at most 8", judge: atMost(8, "")}
	requests := row{what: whatRolloutRequests, unit: "", goal: "at most 6", judge: atMost(6, "")}
	bytes := row{what: whatRolloutBytes, unit: "B", goal: "at most 8,192 B", judge: atMost(8192, "B")}
	took := row{what: whatRolloutTime, unit: "s", goal: "at most 120 s", judge: atMost(120, "s")}
	for i := range *rounds {
		place, before, began := s.audit(b), s.metrics(b)["skerry_hub_bytes_total"], time.Now()
		_, err := sets.Apply(b.Context(), "bench", &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": v1alpha1.SchemeGroupVersion.String(), "kind": "NodeOperationSet", "metadata": map[string]any{"name": "bench"},
			"spec": map[string]any{
				"template":     map[string]any{"operation": "ImagePull", "imagePull": map[string]any{"images": []any{fmt.Sprintf("registry.example.com/till:%d", i)}}},
				"nodeSelector": map[string]any{"matchLabels": map[string]any{v1alpha1.EdgeOwnLabel: ""}}, "maxParallel": int64(500), "failureThreshold": "100%",
			},
		}}, metav1.ApplyOptions{FieldManager: "bench", Force: true})
		check(b, err)
		eventually(b, "the roll-out", time.Second, func(ctx context.Context) error {
			u, err := sets.Get(ctx, "bench", metav1.GetOptions{})
			if err != nil {
				return err
			}
			var set v1alpha1.NodeOperationSet
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &set); err != nil {
				return err
			}
			if !meta.IsStatusConditionTrue(set.Status.Conditions, v1alpha1.SetReady) || set.Status.ObservedGeneration != set.Generation || int(set.Status.Done) < *nodes {
				return fmt.Errorf("%s are done", set.Status.Progress)
			}
			return nil
		})
		took.ours = append(took.ours, time.Since(began).Seconds())
		count, reads := 0, 0
		for _, r := range place.find(b, func(r cluster.Request) bool { return r.ResponseStatus.Code < 300 }) {
			of := r.ObjectRef.Resource == v1alpha1.NodeOperations || r.ObjectRef.Resource == v1alpha1.NodeOperationSets || r.ObjectRef.Resource == "nodes" && r.ImpersonatedUser.Username == "" || r.ObjectRef.Resource == "events"
			switch {
			case !of || !strings.HasSuffix(by(r), ":cloudcore"):
			case r.Write():
				count++
			default:
				reads++
			}
		}
		writes.ours = append(writes.ours, float64(count)/float64(*nodes))
		requests.ours = append(requests.ours, float64(reads)/float64(*nodes))
		bytes.ours = append(bytes.ours, (s.metrics(b)["skerry_hub_bytes_total"]-before)/float64(*nodes))
	}
	writes.note = fmt.Sprintf("%d nodes that report once: the NodeOperation, its status, the annotation of the Node, an event, and the deletion of the operation of the round before.", *nodes)
	bytes.note = "heartbeats of that time are in it."
	took.note = "500 at once; the nodes have no work."
	check(b, sets.Delete(b.Context(), "bench", metav1.DeleteOptions{}))
	s.unlink(b)
	s.rows = append(s.rows, writes, requests, bytes, took)
}
