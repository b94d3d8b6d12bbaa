package e2e_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// zone is a time zone as a file (RFC 9636), with one offset of so many seconds.
func zone(offset int) []byte {
	file := append([]byte("TZif"), make([]byte, 16)...)
	for _, n := range []uint32{0, 0, 0, 0, 1, 4, uint32(offset)} { // one type of local time, and 4 bytes of names
		file = binary.BigEndian.AppendUint32(file, n)
	}
	return append(file, 0, 0, '+', '0', '5', 0)
}

// The window is that of the device's own time zone: one that is open by the cloud's clock alone has
// the device fetch and wait, until the set is paused. Of one that opens soon by the device's clock
// it learns late, when its link is back; it switches as that opens, and not before.
func TestFleet_22_WindowIsTheDevicesOwn(t *testing.T) {
	f := newSystem(t).fleet()
	const offset = 5*60*60 + 45*60 // Nepal's
	localtime := f.path("edge1", "/etc/localtime")
	_ = os.Remove(localtime) // it may be a link to the machine's own
	f.Check(os.WriteFile(localtime, zone(offset), 0o644))
	t.Cleanup(func() { f.Check(os.Remove(localtime)) })
	f.restarted("edge1", "TERM")
	window := func(zone *time.Location, opens time.Time) string {
		at := func(d time.Duration) string { return opens.In(zone).Add(d).Format("15:04") }
		return fmt.Sprintf(`, window: {start: %q, end: %q}`, at(0), at(2*time.Hour))
	}
	waits := func(o *v1alpha1.NodeOperation) bool {
		c := o.Status.Conditions
		return len(c) > 0 && strings.Contains(c[0].Message, "waits for its window") || ended(o)
	}
	target := f.add("v9.6.0", f.another("v9.6.0"), nil)
	f.Apply("default", `apiVersion: skerry.io/v1alpha1
kind: NodeOperationSet
metadata: {name: cloud-time}
spec:
  template: {operation: Upgrade, upgrade: {version: v9.6.0}`+window(time.UTC, time.Now().Add(-time.Hour))+`}
  nodeSelector: {matchLabels: {kubernetes.io/hostname: edge1}}
`)
	ofSet := func(ctx context.Context) (string, error) {
		return f.Run(ctx, "kubectl", "get", "nodeoperations", "-l", v1alpha1.OperationSetLabel+"=cloud-time", "-o", "jsonpath={.items[*].metadata.name}")
	}
	name := ""
	f.WaitFor("the set's operation", func(ctx context.Context) (err error) {
		if name, err = ofSet(ctx); err == nil && name == "" {
			err = errors.New("there is none")
		}
		return err
	})
	o := f.waitOperation(name, "fetched", waits)
	if ended(o) || o.Status.Upgrade.Fetched != target.Length {
		t.Errorf("before its window: %+v", o.Status)
	}
	if s := f.slots(); s.Trial.Digest != "" || s.Confirmed.Digest != "" {
		t.Errorf("a version is tried before its window: %+v", s)
	}
	f.Kubectl("patch", "nodeopset", "cloud-time", "--type=merge", "-p", `{"spec":{"paused":true}}`)
	f.WaitFor("the pause to withdraw the operation", func(ctx context.Context) error {
		if left, err := ofSet(ctx); err != nil || left != "" {
			return fmt.Errorf("%s %w", left, err)
		}
		return nil
	})
	f.WaitFor("the device to cancel it", func(context.Context) error {
		if out, _, complaint := f.edgecore("edge1", "operation", "list"); !strings.Contains(out, "Cancelled") {
			return fmt.Errorf("%s%s", out, complaint)
		}
		return nil
	})

	f.Cut("edge1")
	f.waitUnlinked("edge1")
	// A window begins with a minute: it is the next one that leaves time to see the device wait.
	opens := time.Now().Add(90 * time.Second).Truncate(time.Minute)
	f.upgrade("own-time", "v9.6.0", window(time.FixedZone("own", offset), opens))
	f.Heal("edge1")
	if o := f.waitOperation("own-time", "waiting", waits); ended(o) {
		t.Errorf("before its window: %+v", o.Status)
	}
	f.WaitFor("the switch", func(context.Context) error {
		now := time.Now()
		switch s := f.slots(); {
		case s.Trial.Digest == "" && s.Confirmed.Digest == "":
			return fmt.Errorf("there is none, %v before the window", time.Until(opens))
		case now.Before(opens):
			t.Errorf("switched %v before the window: %+v", opens.Sub(now), s)
		}
		return nil
	})
	if o := f.waitOperation("own-time", "confirmed", ended); !isDone(v1alpha1.OperationConfirmed)(o) {
		t.Errorf("in its window: %+v", o.Status)
	}
}
