package drain_test

import (
	"context"
	"fmt"
	"testing"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/skerry-io/skerry/cloud/internal/controllers/controller"
	"github.com/skerry-io/skerry/cloud/internal/controllers/drain"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/tests/cluster"
)

// An operation for a node that the cluster does not have, or that is no edge node, says so in its
// status, by a real kube-apiserver and with the rights of the manifests; it stops saying so when
// the node joins, and what a device has reported stays.
func TestTraps_15_OperationForAnUnknownNodeSaysSo(t *testing.T) {
	plane := cluster.Run(t)
	plane.Apply(t, "manifests/crds")
	plane.Apply(t, "manifests/cloudcore")
	admin, err := dynamic.NewForConfig(plane.Admin())
	if err != nil {
		t.Fatal(err)
	}
	operations := admin.Resource(v1alpha1.Resource(v1alpha1.NodeOperations))
	cluster.Eventually(t, "NodeOperations to be served", func(ctx context.Context) error {
		_, err := operations.List(ctx, metav1.ListOptions{})
		return err
	})
	client, err := kube.NewClient(plane.ServiceAccount(t, "skerry-system", "cloudcore"), kube.Constrained)
	if err != nil {
		t.Fatal(err)
	}
	informers := kube.NewInformers(client)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return informers.Run(ctx) })
	g.Go(func() error {
		return controller.NewManager(client, informers).Run(ctx, drain.Unknown(), drain.Expired())
	})
	defer func() {
		cancel()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	}()

	node := func(name string, labels map[string]string) {
		t.Helper()
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
		if _, err := plane.Client().CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	operation := func(name, node string) {
		t.Helper()
		o := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "skerry.io/v1alpha1", "kind": "NodeOperation", "metadata": map[string]any{"name": name},
			"spec": map[string]any{"nodeName": node, "operation": "Reboot"},
		}}
		// Admission policies match a new kind some time after it is served.
		cluster.Eventually(t, "operation "+name+" to be made", func(ctx context.Context) error {
			_, err := operations.Create(ctx, o, metav1.CreateOptions{})
			return err
		})
	}
	says := func(name, want string) {
		t.Helper()
		cluster.Eventually(t, "operation "+name+" to say "+want, func(ctx context.Context) error {
			u, err := operations.Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			var o v1alpha1.NodeOperation
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &o); err != nil {
				return err
			}
			got := ""
			if c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.OperationDone); c != nil {
				got = c.Reason + ": " + c.Message
			}
			if got != want {
				return fmt.Errorf("it says %q", got)
			}
			return nil
		})
	}
	edge := map[string]string{v1alpha1.EdgeOwnLabel: ""}
	node("edge1", edge)
	node("worker", nil)
	operation("typo", "edgel")
	operation("central", "worker")
	operation("early", "edge2")
	operation("fine", "edge1")
	operation("taken", "edge3")
	says("typo", "NodeUnknown: the cluster has no node edgel: no device will take the operation up")
	says("central", "NodeUnknown: node worker is no edge node: no device will take the operation up")
	says("early", "NodeUnknown: the cluster has no node edge2: no device will take the operation up")
	says("taken", "NodeUnknown: the cluster has no node edge3: no device will take the operation up")
	node("edge2", edge) // it joins
	says("early", "")
	says("fine", "")

	// A device whose Node has gone continues the operations that it has taken up.
	taken := []byte(`{"status":{"phase":"Requested","phaseNumber":3,"attempts":0,"requestedAt":"2026-11-22T00:00:00Z",` +
		`"conditions":[{"type":"Done","status":"False","reason":"Waiting","message":"m","lastTransitionTime":"2026-11-22T00:00:00Z"}]}}`)
	if _, err := operations.Patch(ctx, "taken", types.MergePatchType, taken, metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	operation("later", "nowhere")
	says("later", "NodeUnknown: the cluster has no node nowhere: no device will take the operation up")
	says("taken", "Waiting: m")

	// Once it has ended, it goes by its ttlSecondsAfterFinished; others stay.
	if _, err := operations.Patch(ctx, "taken", types.MergePatchType, []byte(`{"spec":{"ttlSecondsAfterFinished":1}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"taken", "fine"} {
		if _, err := operations.Patch(ctx, name, types.MergePatchType, []byte(`{"status":{"attempts":0,"phaseNumber":0,"completedAt":"2026-11-22T00:01:00Z"}}`), metav1.PatchOptions{}, "status"); err != nil {
			t.Fatal(err)
		}
	}
	cluster.Eventually(t, "the operation to be deleted", func(ctx context.Context) error {
		_, err := operations.Get(ctx, "taken", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is there: %w", err)
	})
	if _, err := operations.Get(ctx, "fine", metav1.GetOptions{}); err != nil {
		t.Errorf("an operation without ttlSecondsAfterFinished: %v", err)
	}
}
