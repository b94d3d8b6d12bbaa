package hostile_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/tests/cluster"
	"github.com/skerry-io/skerry/tests/hostile"
)

// TestClaims_09_CopiedCertificateLocksNobodyOut: an attacker with a copy of a device's certificate
// opens sessions with the highest epochs that there are, and with the highest that is allowed. The
// device's own next session is told which one it must exceed, and is let in.
func TestClaims_09_CopiedCertificateLocksNobodyOut(t *testing.T) {
	s := newSystem(t, "")
	const node = "edge-copied" // the epochs of the other tests are lower
	plane.AddNode(t, node)
	copied := s.tls(t, node)
	// session opens one, and returns once it writes for the node, or has been ended.
	session := func(epoch uint64) error {
		d, err := hostile.Dial(t.Context(), hostile.Config{Transport: link.WebSocket, Address: s.websocket, TLS: copied, Epoch: epoch})
		if err != nil {
			return err
		}
		t.Cleanup(d.Close)
		var ended error
		cluster.Eventually(t, fmt.Sprintf("the Lease has epoch %d, or the session ends", epoch), func(ctx context.Context) error {
			select {
			case <-d.Done():
				ended = d.Err()
				return nil
			default:
			}
			if err := d.Send(ctx, heartbeat()); err != nil {
				return err
			}
			l, err := plane.Client().CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, node, metav1.GetOptions{})
			if err == nil && l.Annotations["skerry.io/epoch"] != fmt.Sprint(epoch) {
				err = fmt.Errorf("it has %q", l.Annotations["skerry.io/epoch"])
			}
			return err
		})
		return ended
	}
	for _, epoch := range []uint64{math.MaxUint64, math.MaxUint64 - 2, 1 << 63} {
		if err := session(epoch); err == nil {
			t.Errorf("a session of epoch %d was let in", epoch)
		}
	}
	high := uint64(time.Now().UnixMilli()) + 1<<42 - uint64(time.Minute.Milliseconds())
	if err := session(high); err != nil {
		t.Fatalf("the highest epoch that there may be: %v", err)
	}
	if err := session(1); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("epoch=%d", high)) {
		t.Fatalf("a lower epoch: %v, want the one to exceed", err)
	}
	if err := session(high + 1); err != nil {
		t.Fatalf("the device is locked out: %v", err)
	}
}

// TestClaims_20_OlderCopyTakesNoCountBack: a device whose disk was restored from an older copy
// sends its events again as they were then, by every verb. Their counts at kube-apiserver stay.
func TestClaims_20_OlderCopyTakesNoCountBack(t *testing.T) {
	s := newSystem(t, "")
	ns := things(t)
	dial := func(transport link.Transport) *hostile.Device {
		t.Helper()
		d := s.dial(t, transport, own)
		epoch := fmt.Sprint(epochs.Load())
		cluster.Eventually(t, "the session to hold the Lease", func(ctx context.Context) error {
			if err := d.Send(ctx, heartbeat()); err != nil {
				return err
			}
			l, err := plane.Client().CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, own, metav1.GetOptions{})
			if err == nil && l.Annotations["skerry.io/epoch"] != epoch {
				err = fmt.Errorf("it has %q", l.Annotations["skerry.io/epoch"])
			}
			return err
		})
		return d
	}
	d := dial(link.QUIC)
	write := func(verb topicpb.Verb, count int32, message string) {
		t.Helper()
		var e corev1.Event
		if err := json.Unmarshal(eventAbout(ns, "restarts", "mine"), &e); err != nil {
			t.Fatal(err)
		}
		e.Count, e.Message = count, message
		body, err := json.Marshal(&e)
		if err != nil {
			t.Fatal(err)
		}
		w := eventOf(ns, "mine", "restarts")
		w.Verb, w.Body, w.PatchType = verb, body, string(types.MergePatchType)
		if verb == topicpb.Verb_CREATE {
			w.PatchType = ""
		}
		if r, err := d.Write(t.Context(), topic.EventWrite, w); err != nil || !r.GetAccepted() {
			t.Fatalf("%s, %d times: %v %s", verb, count, err, r.GetStatus())
		}
	}
	write(topicpb.Verb_CREATE, 1, "first")
	write(topicpb.Verb_PATCH, 6, "sixth")
	d.Close()
	d = dial(link.WebSocket) // as it starts with the copy
	write(topicpb.Verb_PATCH, 3, "of the copy")
	write(topicpb.Verb_CREATE, 2, "of the copy")
	e, err := plane.Client().CoreV1().Events(ns).Get(t.Context(), "restarts", metav1.GetOptions{})
	if err != nil || e.Count != 6 || e.Message != "sixth" {
		t.Errorf("the event happened %d times, says %q: %v", e.Count, e.Message, err)
	}
	write(topicpb.Verb_PATCH, 7, "seventh")
	if e, err = plane.Client().CoreV1().Events(ns).Get(t.Context(), "restarts", metav1.GetOptions{}); err != nil || e.Count != 7 {
		t.Errorf("the event happened %d times: %v", e.Count, err)
	}
}

// TestClaims_04_LiarMovesNoAddress: of two devices that could hold a virtual IP one reports by its
// link, again and again, that another router has the address's number. The number stays, the other
// device stays the holder, and no number of the pool is used up.
func TestClaims_04_LiarMovesNoAddress(t *testing.T) {
	s := newSystem(t, "")
	ns := plane.Namespace(t)
	admin := dynamic.NewForConfigOrDie(plane.Admin())
	for i, node := range []string{own, another} {
		plane.AddNode(t, node)
		labelAsEdge(t, node)
		made(t)(plane.Client().CoreV1().Nodes().Patch(t.Context(), node, types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q}}}`, v1alpha1.NodePoolLabel, ns), metav1.PatchOptions{}))
		status := fmt.Appendf(nil, `{"status":{"addresses":[{"type":"InternalIP","address":"192.168.77.%d"}]}}`, 11+i)
		made(t)(plane.Client().CoreV1().Nodes().Patch(t.Context(), node, types.StrategicMergePatchType, status, metav1.PatchOptions{}, "status"))
	}
	const address = "192.168.77.230"
	pools := admin.Resource(v1alpha1.Resource(v1alpha1.NodePools))
	made(t)(pools.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "skerry.io/v1alpha1", "kind": "NodePool", "metadata": map[string]any{"name": ns, "labels": map[string]any{"pool": ns}},
		"spec": map[string]any{"network": ns, "addresses": []any{address}},
	}}, metav1.CreateOptions{}))
	made(t)(plane.Client().CoreV1().Services(ns).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "shop", Annotations: map[string]string{v1alpha1.VIPPoolSelector: "pool=" + ns}},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: new(v1alpha1.VIPClass), Selector: map[string]string{"app": "shop"}, Ports: []corev1.ServicePort{{Port: 80}},
		},
	}, metav1.CreateOptions{}))
	vips := admin.Resource(v1alpha1.Resource(v1alpha1.VirtualIPs))
	find := func(ctx context.Context) (v v1alpha1.VirtualIP, err error) {
		all, err := vips.List(ctx, metav1.ListOptions{})
		if err != nil {
			return v, err
		}
		for _, u := range all.Items {
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &v); err != nil {
				return v, err
			}
			if v.Spec.Pool == ns && len(v.Spec.Nodes) == 2 {
				return v, nil
			}
		}
		return v, errors.New("it is not there")
	}
	var v v1alpha1.VirtualIP
	cluster.Eventually(t, "the virtual IP of both", func(ctx context.Context) (err error) {
		v, err = find(ctx)
		return err
	})
	first := v.Spec.VRID
	report := func(d *hostile.Device, e v1alpha1.VirtualIPNodeStatus) {
		t.Helper()
		body, err := json.Marshal(&e)
		if err != nil {
			t.Fatal(err)
		}
		w := reportOf(v.Name, 0)
		w.Resource.Resource, w.Body = v1alpha1.VirtualIPs, body
		if r, err := d.Write(t.Context(), topic.ReportWrite, w); err != nil || !r.GetAccepted() {
			t.Fatalf("a report: %v %s", err, r.GetStatus())
		}
	}
	liar, honest := s.dial(t, link.WebSocket, own), s.dial(t, link.QUIC, another)
	report(honest, v1alpha1.VirtualIPNodeStatus{State: v1alpha1.VIPHolder, Programmed: true, Since: new(metav1.Now())})
	for i := range 20 {
		state := []v1alpha1.VirtualIPState{v1alpha1.VIPBackup, v1alpha1.VIPFault, v1alpha1.VIPHolder}[i%3]
		report(liar, v1alpha1.VirtualIPNodeStatus{State: state, ForeignRouter: "192.168.77.99", ForeignVRID: first + int32(i%2), Message: fmt.Sprint("round ", i)})
	}
	report(liar, v1alpha1.VirtualIPNodeStatus{State: v1alpha1.VIPBackup, ForeignRouter: "192.168.77.99", ForeignVRID: first, Message: "the last"})
	// A change of the pool shows that the controller has seen all of it.
	made(t)(pools.Patch(t.Context(), ns, types.MergePatchType, fmt.Appendf(nil, `{"spec":{"addresses":[%q,"192.168.77.231"]}}`, address), metav1.PatchOptions{}))
	cluster.Eventually(t, "the controller to see the pool", func(ctx context.Context) error {
		u, err := pools.Get(ctx, ns, metav1.GetOptions{})
		if err != nil {
			return err
		}
		raw, err := json.Marshal(u.Object["status"])
		if err == nil && strings.Contains(string(raw), "foreignVRIDs") {
			t.Fatalf("one device's word reserves numbers: %s", raw)
		}
		now, err := find(ctx)
		switch {
		case err != nil:
			return err
		case now.Spec.VRID != first:
			t.Fatalf("one device's word moved the number from %d to %d", first, now.Spec.VRID)
		case !strings.Contains(string(raw), `"free":"1"`) && !strings.Contains(string(raw), `"free":1`):
			return fmt.Errorf("it says %s", raw)
		case !strings.Contains(now.Status.Holder, another) || len(now.Status.Nodes) != 2:
			return fmt.Errorf("held by %q, as %+v", now.Status.Holder, now.Status.Nodes)
		}
		return nil
	})
}
