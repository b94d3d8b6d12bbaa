package machine_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/skerry-io/skerry/tests/machine"
)

// TestEveryday_01: an orderly reboot of a machine without a link: systemd, logind and edgecore's
// lock are Debian's own. The same pods run again, though the image of their sandboxes was
// collected.
func TestEveryday_01_11_RealMachineRebootsOnAnIsland(t *testing.T) {
	s := newSystem(t)
	changed := s.follow()
	s.cut()
	for range times(5) {
		before := s.running()
		boot := s.reboots(`image=$(containerd config dump | sed -n 's/^ *sandbox_image = "\(.*\)"/\1/p')
			ctr -n k8s.io images rm --sync "$image" && systemctl reboot`)
		s.again(before)
		s.ended(boot)
	}
	s.unchanged(changed)
}

// TestEveryday_03: the machine is switched off as by its power button, which is a call of logind's,
// and on again without a link, with a clock of 1970 and a full disk. Its pods are rejected. With
// room they run again, and continue when the clock is right.
func TestEveryday_03_09_12_RealMachineIsSwitchedOff(t *testing.T) {
	s := newSystem(t)
	changed, before := s.follow(), s.running()
	s.cut()
	boot, err := s.guest.BootID(t.Context())
	s.Check(err)
	s.switchOff(`set -e
		echo $((2 * 24 * 3600)) >/etc/machine-clock
		fallocate --length $(($(df --output=avail --block-size=1M / | tail -n 1) - 60))M /var/foreign
		` + powerButton) // at once: the kubelet evicts within seconds
	s.Check(s.guest.Start())
	// A critical pod is admitted to any node.
	year := s.await("the pods to be rejected", fmt.Sprintf(`until status=$(edgecore status); grep -q '^pods *1 of %d running' <<<"$status" && grep -q 'enough disk (DiskPressure)' <<<"$status"; do sleep 2; done
		date +%%Y; rm /var/foreign`, len(s.pods)))
	if !strings.Contains(year, "1970") {
		t.Errorf("the machine has the right clock: %s", year)
	}
	s.again(before)
	s.ended(boot)
	before = s.running()
	s.run(fmt.Sprintf("date --set=@%d", time.Now().Unix()))
	s.await("the device to have them Running", allRunning(len(s.pods)))
	s.unchanged(changed)
	s.same(before, "the clock was set right")
}

// powerButton is the call of systemd-logind's that a press of the power button leads to.
const powerButton = "busctl call org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager PowerOff b false"

// switchOff runs a script that ends with the machine off.
func (s *system) switchOff(script string) {
	s.T.Helper()
	if _, err := s.guest.Run(s.T.Context(), script); err != nil && !errors.Is(err, machine.ErrSilent) {
		s.T.Fatal(err)
	}
	select {
	case <-s.guest.Off():
	case <-time.After(patience):
		s.T.Fatal("the machine is still on")
	}
	s.Check(s.guest.Cut()) // its kernel may leave processes behind
}
