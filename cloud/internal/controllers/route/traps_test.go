package route_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/tests/cluster"
)

// row is a StaticRoute as `kubectl get` shows it: GATEWAY APPLIED/DESIRED.
func (w *system) row(ctx context.Context, name string) (string, error) {
	raw, err := w.plane.Client().Discovery().RESTClient().Get().AbsPath("/apis/skerry.io/v1alpha1/staticroutes/"+name).
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(ctx)
	if err != nil {
		return "", err
	}
	var table metav1.Table
	if err := json.Unmarshal(raw, &table); err != nil {
		return "", err
	}
	cells := map[string]any{}
	for i, c := range table.ColumnDefinitions {
		if len(table.Rows) == 1 {
			cells[c.Name] = table.Rows[0].Cells[i]
		}
	}
	return fmt.Sprintf("%v %v/%v", cells["Gateway"], cells["Applied"], cells["Desired"]), nil
}

func (w *system) shows(name, want string) {
	w.t.Helper()
	cluster.Eventually(w.t, "the columns of "+name+" to be "+want, func(ctx context.Context) error {
		got, err := w.row(ctx, name)
		if err == nil && got != want {
			err = fmt.Errorf("they are %s", got)
		}
		return err
	})
}

// GATEWAY shows the spec's hops, in whichever field they are; APPLIED counts the nodes whose kernel
// has the route.
func TestTraps_15_ColumnsShowHopsAndTheKernelsCount(t *testing.T) {
	w := newSystem(t)
	edge := map[string]string{v1alpha1.EdgeOwnLabel: ""}
	w.node("edge1", edge)
	w.node("edge2", edge)
	one, two := w.connect("edge1", 0), w.connect("edge2", 1)
	says := func(s *session, o *v1alpha1.StaticRoute, reason string) {
		t.Helper()
		w.report(s, o.Name, o.UID, &v1alpha1.StaticRouteNode{Name: string(s.Name), Reason: reason, ObservedGeneration: o.Generation})
	}
	hops := []any{map[string]any{"gateway": "10.0.0.1"}, map[string]any{"interface": "eth1"}}
	office := w.create("office", map[string]any{"subnet": "172.20.0.0/16", "nextHops": hops})
	says(one, office, v1alpha1.RouteApplied)
	says(two, office, v1alpha1.RouteDegraded) // the kernel has it, over one hop
	w.shows("office", "10.0.0.1,eth1 2/2")
	says(two, office, v1alpha1.RouteRolledBack)
	w.shows("office", "10.0.0.1,eth1 1/2")
	rehearsal := w.create("rehearsal", map[string]any{"subnet": "172.21.0.0/16", "dryRun": true})
	says(one, rehearsal, v1alpha1.RouteDryRun)
	says(two, rehearsal, v1alpha1.RouteDryRun)
	w.is("rehearsal", "0/2 DryRun [edge1 edge2]")
	w.shows("rehearsal", "detected 0/2")
	w.create("single", map[string]any{"subnet": "172.22.0.0/16", "gateway": "10.0.0.7"})
	w.shows("single", "10.0.0.7 0/2")
	w.create("hole", map[string]any{"subnet": "172.23.0.0/16", "type": "Blackhole"})
	w.is("hole", "0/2 Waiting []")
	w.shows("hole", "<nil> 0/2")
}

// A device does not have the other nodes' pod ranges: the cloud writes into the StaticRoute which
// of them its subnet overlaps.
func TestTraps_13_PodsOfOtherNodesAreGuarded(t *testing.T) {
	w := newSystem(t)
	add := func(name, podCIDR string) {
		t.Helper()
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDR: podCIDR, PodCIDRs: []string{podCIDR}}}
		if _, err := w.plane.Client().CoreV1().Nodes().Create(t.Context(), n, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	noted := func(name, want string) {
		t.Helper()
		cluster.Eventually(t, name+" to be noted as "+want, func(ctx context.Context) error {
			u, err := w.admin.Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if got := u.GetAnnotations()[v1alpha1.RouteCoversAnnotation]; got != want {
				return fmt.Errorf("it is noted as %q", got)
			}
			return nil
		})
	}
	add("cloud-worker", "10.244.3.0/24")
	w.create("wide", map[string]any{"subnet": "10.244.0.0/16", "gateway": "10.0.0.1"})
	w.create("later", map[string]any{"subnet": "10.245.7.7", "gateway": "10.0.0.1"})
	noted("wide", "10.244.3.0/24, the pods of node cloud-worker")
	w.is("later", "0/0 NoNodes []")
	noted("later", "")
	add("edge7", "10.245.7.0/24")
	noted("later", "10.245.7.0/24, the pods of node edge7")
	w.lead(1) // a new leader has the existing nodes, without a change of them
	w.create("after", map[string]any{"subnet": "10.244.0.0/17", "gateway": "10.0.0.1"})
	noted("after", "10.244.3.0/24, the pods of node cloud-worker")
	if err := w.plane.Client().CoreV1().Nodes().Delete(t.Context(), "cloud-worker", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	noted("wide", "")
}
