package join_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/tests/cluster"
)

// TestOperate_14_BrokenDeviceIsReplaced: new hardware takes the name of a broken device, by the
// steps of docs/maintenance.md: its Node stays as it is, its pod and what that needs come to the
// new device. The old hardware, switched on again, is refused as a clone and changes nothing.
func TestOperate_14_BrokenDeviceIsReplaced(t *testing.T) {
	const node, marker = "edge-broken", "of-the-broken"
	s := newSystem(t)
	programs, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	admin := s.plane.Client()
	broken, replacement := newDevice(t), newDevice(t)
	broken.machine, replacement.machine = "board-0001", "board-0002"
	broken.configure(t, s.websocket)
	if _, errs, code := s.edge(t, broken.config, s.token(t), node, s.join); code != 0 {
		t.Fatalf("edgecore join: %d: %s", code, errs)
	}
	stop := broken.work(t, programs)
	ns := broken.gives(t, s, node, marker)
	before, err := admin.CoreV1().Nodes().Patch(t.Context(), node, types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"site":"harbour"}},"spec":{"taints":[{"key":"till","effect":"NoSchedule"}]}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	stop()

	replacement.configure(t, s.websocket)
	if _, errs, code := s.edge(t, replacement.config, s.token(t), node, s.join); code != 2 || !strings.Contains(errs, "cloudcore token create --node "+node) && !strings.Contains(errs, "is alive") {
		t.Errorf("with a token for any name: %d: %s", code, errs)
	}
	silence(t, s, node)
	if _, errs, code := s.edge(t, replacement.config, s.token(t), node, s.join); code != 2 || !strings.Contains(errs, "cloudcore token create --node "+node) {
		t.Errorf("with a token for any name, of a device that is silent: %d: %s", code, errs)
	}
	if _, errs, code := s.edge(t, replacement.config, s.token(t, "--node", node), node, s.join); code != 0 {
		t.Fatalf("edgecore join with the node's token: %d: %s", code, errs)
	}
	replacement.work(t, programs)
	cluster.Eventually(t, "the new device to have the pod and its Secret", func(ctx context.Context) error {
		return replacement.has(ctx, node, ns, marker)
	})

	broken.work(t, programs)
	cluster.Eventually(t, "the old device to be refused", func(context.Context) error {
		out, errs, _ := run(t, s.edgecore, "status", "--config", broken.config)
		if !strings.Contains(out, "clone: machine ") {
			return errors.New(out + errs)
		}
		return nil
	})
	cluster.Eventually(t, "the new device to write its Node", func(ctx context.Context) error {
		_, err := replacement.kubelet.CoreV1().Nodes().Patch(ctx, node, types.StrategicMergePatchType, []byte(`{"metadata":{"annotations":{"example.com/by":"replacement"}}}`), metav1.PatchOptions{}, "status")
		if err != nil {
			return err
		}
		after, err := admin.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err == nil && after.Annotations["example.com/by"] != "replacement" {
			err = errors.New("it has not arrived")
		}
		if err == nil && (after.UID != before.UID || after.Labels["site"] != "harbour" || len(after.Spec.Taints) == 0 || after.Spec.Taints[0].Key != "till") {
			t.Errorf("the Node is another: %+v", after)
		}
		return err
	})
}

// silence has the device be out of contact for longer than its Lease lasts.
func silence(t *testing.T, s *system, node string) {
	t.Helper()
	past := metav1.NewMicroTime(time.Now().Add(-time.Hour)).UTC().Format(metav1.RFC3339Micro)
	if _, err := s.plane.Client().CoordinationV1().Leases("kube-node-lease").Patch(t.Context(), node, types.MergePatchType,
		fmt.Appendf(nil, `{"spec":{"renewTime":%q}}`, past), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}
