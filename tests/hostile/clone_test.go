package hostile_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/tests/cluster"
	"github.com/skerry-io/skerry/tests/hostile"
)

// A copy of a device's disk on other hardware is refused, with both machines in the reason, while
// the device has a link, and by another replica, or later, as well; the device's own link stays.
// What replaces the device, or is joined again, gets its place.
func TestOperate_14_CloneIsRefused(t *testing.T) {
	s := newSystem(t, "")
	const node, original, copied = "hostile-cloned", "00000000000000aa", "00000000000000bb"
	plane.AddNode(t, node)
	leases := plane.Client().CoordinationV1().Leases("kube-node-lease")
	dial := func(certificate *tls.Config, machine string) (*hostile.Device, error) {
		d, err := hostile.Dial(t.Context(), hostile.Config{Transport: link.WebSocket, Address: s.websocket, TLS: certificate, Epoch: epochs.Add(1), Machine: machine})
		if err == nil {
			t.Cleanup(d.Close)
		}
		return d, err
	}
	// refused waits for the cloud to refuse a session: at its begin, or once the Lease was read.
	refused := func(certificate *tls.Config, machine string) {
		t.Helper()
		d, err := dial(certificate, machine)
		if err == nil {
			select {
			case <-d.Done():
				err = d.Err()
			case <-time.After(time.Minute):
				t.Fatalf("machine %s has a session", machine)
			}
		}
		end, ok := errors.AsType[*link.CloseError](err)
		if !ok || end.Code != link.CloseForbidden || !strings.Contains(end.Reason, original) || !strings.Contains(end.Reason, copied) || !strings.Contains(end.Reason, "docs/maintenance.md#a-clone") {
			t.Fatalf("refused by %v", err)
		}
	}
	held := func(machine string) {
		t.Helper()
		cluster.Eventually(t, "the Lease to name machine "+machine, func(ctx context.Context) error {
			l, err := leases.Get(ctx, node, metav1.GetOptions{})
			if err == nil && !strings.HasPrefix(l.Annotations["skerry.io/machine"], machine+" ") {
				err = fmt.Errorf("it has %q", l.Annotations["skerry.io/machine"])
			}
			return err
		})
	}
	certificate := s.tls(t, node)
	device, err := dial(certificate, original)
	if err != nil {
		t.Fatal(err)
	}
	held(original)
	refused(certificate, copied)
	select {
	case <-device.Done():
		t.Fatalf("the clone ended the device's link: %v", device.Err())
	default:
	}
	gone := func() {
		t.Helper()
		cluster.Eventually(t, "no session to be left", func(context.Context) error {
			if n := s.metric(t, `skerry_hub_sessions{transport="websocket"}`); n != 0 {
				return fmt.Errorf("%d sessions", n)
			}
			return nil
		})
	}
	device.Close()
	gone() // the Lease alone refuses it
	refused(certificate, copied)
	held(original)
	// The device itself, and hardware whose firmware has no name, are let in.
	for _, machine := range []string{original, ""} {
		d, err := dial(certificate, machine)
		if err != nil {
			t.Fatal(err)
		}
		d.Close()
		gone()
	}
	// The operator's word, as docs/maintenance.md has it.
	if _, err := leases.Patch(t.Context(), node, types.MergePatchType, []byte(`{"metadata":{"annotations":{"skerry.io/machine":null}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := dial(certificate, copied); err != nil {
		t.Fatal(err)
	}
	held(copied)
}
