package join_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/skerry-io/skerry/tests/cluster"
)

// TestClaims_40_NameOfALeaseOfTheFutureIsJoined: cloudcore's clock was a day ahead when it renewed
// a device's Lease. The device that takes its place joins under the name, before that day has come.
func TestClaims_40_NameOfALeaseOfTheFutureIsJoined(t *testing.T) {
	const name = "edge-future"
	s := newSystem(t)
	s.mustJoin(t, s.token(t), name)
	makeAlive(t, name)
	config, _ := device(t)
	if _, errs, code := s.edge(t, config, s.token(t, "--node", name), name, s.join); code != 2 || !strings.Contains(errs, "is alive") {
		t.Fatalf("a name that is alive: %d: %s", code, errs)
	}
	ahead := metav1.NewMicroTime(time.Now().Add(24 * time.Hour)).UTC().Format(metav1.RFC3339Micro)
	_, err := s.plane.Client().CoordinationV1().Leases("kube-node-lease").Patch(t.Context(), name, types.MergePatchType,
		fmt.Appendf(nil, `{"spec":{"renewTime":%q}}`, ahead), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, errs, code := s.edge(t, config, s.token(t), name, s.join); code != 2 || !strings.Contains(errs, "cloudcore token create --node "+name) {
		t.Errorf("with a token for any name: %d: %s", code, errs)
	}
	if out, errs, code := s.edge(t, config, s.token(t, "--node", name), name, s.join); code != 0 || !strings.Contains(out, name) {
		t.Errorf("%d: %s%s", code, out, errs)
	}
}

// TestClaims_41_JoinByForceCountsLostWrites: a device that is cut off has writes for the cloud. A
// join under another name first prints their number, and the command that removes the old Node.
// A cloudcore whose certificate has another name is reported with the settings to change.
func TestClaims_41_JoinByForceCountsLostWrites(t *testing.T) {
	const before, after = "edge-before", "edge-after"
	s := newSystem(t)
	programs, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	d := newDevice(t)
	d.configure(t, s.websocket)
	if _, errs, code := s.edge(t, d.config, s.token(t), before, s.join); code != 0 {
		t.Fatalf("edgecore join: %d: %s", code, errs)
	}
	stop := d.work(t, programs)
	d.gives(t, s, before, "before")
	// Without a link a device accepts writes of objects that it holds.
	cluster.Eventually(t, "the device to hold its Node", func(ctx context.Context) error {
		w, err := d.kubelet.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + before})
		if err != nil {
			return err
		}
		defer w.Stop()
		select {
		case e := <-w.ResultChan():
			if e.Type != watch.Added {
				return fmt.Errorf("the first event is %v", e)
			}
			return nil
		case <-time.After(time.Second):
			return errors.New("no event")
		}
	})
	stop()

	// The same cloudcore by an address that its certificate does not have.
	const elsewhere = "127.43.41.1"
	_, port, err := net.SplitHostPort(s.websocket)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", net.JoinHostPort(elsewhere, port))
	if err != nil {
		t.Fatal(err)
	}
	cluster.Forward(t, l, func() string { return s.websocket })
	d.configure(t, s.websocket, elsewhere)
	d.work(t, programs)
	cluster.Eventually(t, "the status to name the settings", func(context.Context) error {
		out, errs, _ := run(t, s.edgecore, "status", "--config", d.config)
		if !strings.Contains(out, "modules.edgeHub.servers") || !strings.Contains(out, "advertise") {
			return errors.New(out + errs)
		}
		return nil
	})
	const writes = 11
	cluster.Eventually(t, "the device to keep its writes", func(ctx context.Context) error {
		for n := range writes {
			patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"example.com/n%d":"1"}}}`, n)
			if _, err := d.kubelet.CoreV1().Nodes().Patch(ctx, before, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
				return err
			}
		}
		return nil
	})
	out, errs, code := s.edge(t, d.config, s.token(t), after, s.join, "--force")
	if code != 0 {
		t.Fatalf("edgecore join --force: %d: %s", code, errs)
	}
	for _, want := range []string{"writes of node " + before, "are lost", "cloudcore node revoke " + before, "until it is restarted"} {
		if !strings.Contains(errs, want) {
			t.Errorf("it lacks %q: %s%s", want, errs, out)
		}
	}
	if _, err := s.plane.Client().CoreV1().Nodes().Get(t.Context(), before, metav1.GetOptions{}); err != nil {
		t.Errorf("the Node that it names: %v", err)
	}
}
