package e2e_test

import (
	"encoding/binary"
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
// the device fetch and wait, and one that is open by the device's alone does not. The link comes
// late for that.
func TestFleet_22_WindowIsTheDevicesOwn(t *testing.T) {
	f := newSystem(t).fleet()
	const offset = 5*60*60 + 45*60 // Nepal's
	localtime := f.path("edge1", "/etc/localtime")
	_ = os.Remove(localtime) // it may be a link to the machine's own
	f.Check(os.WriteFile(localtime, zone(offset), 0o644))
	t.Cleanup(func() { f.Check(os.Remove(localtime)) })
	f.restarted("edge1", "TERM")
	window := func(zone *time.Location) string {
		at := func(d time.Duration) string { return time.Now().In(zone).Add(d).Format("15:04") }
		return fmt.Sprintf(`, window: {start: %q, end: %q}`, at(-time.Hour), at(time.Hour))
	}
	target := f.add("v9.6.0", f.another("v9.6.0"), nil)
	f.upgrade("cloud-time", "v9.6.0", window(time.UTC))
	o := f.waitOperation("cloud-time", "fetched", func(o *v1alpha1.NodeOperation) bool {
		c := o.Status.Conditions
		return len(c) > 0 && strings.Contains(c[0].Message, "waits for its window") || ended(o)
	})
	if ended(o) || o.Status.Upgrade.Fetched != target.Length {
		t.Errorf("before its window: %+v", o.Status)
	}
	if s := f.slots(); s.Trial.Digest != "" || s.Confirmed.Digest != "" {
		t.Errorf("a version is tried before its window: %+v", s)
	}
	f.Kubectl("patch", "nodeoperation", "cloud-time", "--type=merge", "-p", `{"spec":{"cancel":true}}`)
	f.waitOperation("cloud-time", "cancelled", ended)

	f.Cut("edge1")
	f.waitUnlinked("edge1")
	f.upgrade("own-time", "v9.6.0", window(time.FixedZone("own", offset)))
	f.Heal("edge1")
	if o := f.waitOperation("own-time", "confirmed", ended); !isDone(v1alpha1.OperationConfirmed)(o) {
		t.Errorf("in its window: %+v", o.Status)
	}
}
