package machine_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/tests/cluster/trial"
	"github.com/skerry-io/skerry/tests/machine"
)

// TestEveryday_01: an orderly reboot of a machine without a link: systemd, logind and edgecore's
// lock are Debian's own. The same pods run again, though the image of their sandboxes was
// collected.
func TestEveryday_01_11_RealMachineRebootsOnAnIsland(t *testing.T) {
	s := newSystem(t)
	if long() {
		s.addPods(4, morePods(), "statefulset/sts", "job/job", "pod/sided", "pod/stubborn")
	}
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
	s.switchOn()
	// A critical pod is admitted to any node.
	year := s.await("the pods to be rejected", fmt.Sprintf(`until status=$(edgecore status); grep -q '^pods *1 of %d running' <<<"$status" && grep -q 'enough disk (DiskPressure)' <<<"$status"; do sleep 5; done
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

// TestEveryday_03: the machine is off for a day by its clock, and its link is away; then edgecore
// is stopped and started, and containers continue.
func TestEveryday_03_RealMachineIsOffForADay(t *testing.T) {
	s := newSystem(t)
	changed, before := s.follow(), s.running()
	s.cut()
	boot, err := s.guest.BootID(t.Context())
	s.Check(err)
	s.run("echo $(($(date +%s) + 24 * 3600)) >/etc/machine-clock")
	s.switchOff(powerButton)
	s.switchOn()
	s.again(before)
	s.ended(boot)
	before = s.running()
	s.run("systemctl stop edgecore && ! systemctl is-active edgecore")
	s.same(before, "edgecore's stop")
	s.run("systemctl start edgecore")
	s.await("the device to have them Running", allRunning(len(s.pods)))
	s.run(fmt.Sprintf("date --set=@%d", time.Now().Unix()))
	s.unchanged(changed)
	s.same(before, "edgecore's start")
}

// powerButton is the call of systemd-logind's that a press of the power button leads to.
const powerButton = "busctl call org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager PowerOff b false"

// switchOff runs a script that ends with the machine off.
func (s *system) switchOff(script string) {
	s.T.Helper()
	if _, err := s.guest.Run(s.T.Context(), script); err != nil && !errors.Is(err, machine.ErrSilent) {
		s.T.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(s.T.Context(), patience)
	defer cancel()
	if err := s.guest.AwaitOff(ctx); err != nil {
		s.T.Fatalf("the machine is still on: %v", err)
	}
	s.Check(s.guest.Cut(s.T.Context())) // its kernel may leave processes behind
}

// switchOn switches it on again, and does not wait for its boot.
func (s *system) switchOn() {
	s.T.Helper()
	s.Check(s.Trial.SwitchOn(s.T.Context(), node))
	var err error
	s.guest, err = s.Trial.Guest(node)
	s.Check(err)
}

// TestEveryday_20: dpkg installs another version of edgecore, and containerd is replaced, while
// pods run: containers continue.
func TestEveryday_20_RealMachineIsUpgraded(t *testing.T) {
	s := newSystem(t)
	changed, before := s.follow(), s.running()
	own, err := machine.ProgramVersion(t.Context(), s.Root)
	s.Check(err)
	last := "7"
	if strings.HasSuffix(own, last) {
		last = "8"
	}
	other := own[:len(own)-1] + last
	upgrade := machine.Package{Root: s.Root, Images: filepath.Join(s.Dir, "images"), Version: other}
	s.Check(upgrade.Make(t.Context(), filepath.Join(s.guest.Share(), "edgecore.deb")))
	s.run("dpkg --install /host/edgecore.deb")
	s.await("the new edgecore", "until edgecore status | grep -q '^edgecore *running, "+other+" '; do sleep 3; done")
	s.same(before, "edgecore's upgrade")
	// As Debian's package does it: the program is replaced, and its unit restarted.
	numbers := regexp.MustCompile(`\d+\.\d+\.\d+`).FindString(s.run("containerd --version"))
	newer := numbers[:len(numbers)-1] + "9"
	s.run(fmt.Sprintf("set -e; sed 's/%s/%s/g' /usr/bin/containerd >/usr/bin/containerd.new; chmod 755 /usr/bin/containerd.new; mv /usr/bin/containerd.new /usr/bin/containerd; systemctl restart containerd",
		regexp.QuoteMeta(numbers), newer))
	s.WaitFor("the cloud to have the runtime's version", func(ctx context.Context) error {
		n, err := s.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err == nil && !strings.HasPrefix(n.Status.NodeInfo.ContainerRuntimeVersion, "containerd://"+newer) {
			err = fmt.Errorf("it has %s", n.Status.NodeInfo.ContainerRuntimeVersion)
		}
		return err
	})
	s.same(before, "containerd's upgrade")
	s.unchanged(changed)
}

// TestEveryday_02: an orderly reboot with a link, at whose boot the machine gets a lease of another
// address: its pods stay, and the cloud has the address.
func TestEveryday_02_19_RealMachineRebootsOnLine(t *testing.T) {
	s := newSystem(t)
	changed, before := s.follow(), s.running()
	boot := s.reboots("echo 77 >/etc/machine-lease; systemctl reboot")
	s.again(before)
	s.ended(boot)
	s.unchanged(changed)
	s.WaitFor("the new address", func(ctx context.Context) error {
		n, err := s.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err == nil && !slices.ContainsFunc(n.Status.Addresses, func(a corev1.NodeAddress) bool { return strings.HasSuffix(a.Address, ".77") }) {
			err = fmt.Errorf("it has %v", n.Status.Addresses)
		}
		return err
	})
}

// TestEveryday_04: edgecore is killed, and hangs until systemd's watchdog ends it; containerd is
// restarted. Containers continue.
func TestEveryday_04_RealMachineIsWatched(t *testing.T) {
	s := newSystem(t)
	changed, before := s.follow(), s.running()
	const pid = "systemctl show --property=MainPID --value edgecore"
	if slack, want := strings.TrimSpace(s.run("cat /proc/$("+pid+")/timerslack_ns")), fmt.Sprint(trial.EdgecoreTimerSlack.Nanoseconds()); slack != want {
		t.Errorf("edgecore has a timer slack of %s ns, want its unit's %s", slack, want)
	}
	for how, signal := range map[string]string{"a kill": "KILL", "a hang": "STOP"} {
		s.run("old=$(" + pid + "); kill -" + signal + " $old; until new=$(" + pid + "); [ $new != 0 -a $new != $old ] && timeout 10 edgecore status >/dev/null; do sleep 1; done")
		s.same(before, how+" of edgecore")
	}
	s.run("systemctl restart containerd")
	s.same(before, "a restart of containerd")
	s.unchanged(changed)
}
