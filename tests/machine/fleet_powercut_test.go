package machine_test

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// TestFleet_05: the power is cut while an upgrade switches, and unsynced data is lost. The machine
// boots, its pods run again, and the upgrade is confirmed.
func TestFleet_05_PowerIsCutDuringASwitch(t *testing.T) {
	f := newFleet(t)
	for n, step := range []string{`[^}]*}`, `.*"starts":1`}[:times(2)] { // it is armed; its first start is counted
		version := fmt.Sprintf("v7.%d.0", n)
		before, boot := f.running(), f.run("cat /proc/sys/kernel/random/boot_id")
		program := slices.Concat(f.program, []byte(version))
		f.add(version, program)
		name := fmt.Sprintf("cut-%d", n)
		f.begin(name, version, "")
		f.await("the switch", `until grep -q '"trial":{"program":{[^}]*"version":"`+version+`"`+step+`' `+slotsDir+`/state.1; do sleep .1; done`)
		f.Check(f.guest.Cut(t.Context()))
		f.switchOn()
		f.again(before)
		if now := f.run("cat /proc/sys/kernel/random/boot_id"); now == boot {
			t.Error("the machine has not booted")
		}
		o := f.ended(name)
		if reason(o) != v1alpha1.OperationConfirmed {
			t.Errorf("the upgrade to %s: %+v", version, o.Status)
		}
		f.heal()
		if running := f.run("sha256sum /proc/$(systemctl show --value --property=MainPID edgecore)/exe"); !strings.HasPrefix(running, fmt.Sprintf("%x ", sha256.Sum256(program))) {
			t.Errorf("%s does not run, but %s", version, running)
		}
		t.Logf("confirmed after %d starts", o.Status.Upgrade.Starts)
	}
}
